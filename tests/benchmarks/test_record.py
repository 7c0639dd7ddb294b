"""Result files of benchmarks: what they hold, and that they hold nothing private."""

from __future__ import annotations

import json
import re
import socket
from datetime import date
from pathlib import Path

import pytest
import torch

import arithscope
from arithscope.errors import UserError
from benchmarks import record as results
from benchmarks.record import Table, record

ROWS = [[3, 1 / 3, "one, two"], [4, None, "[a] b"]]


def test_a_result_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["/usr/bin/python3.11", str(results.ROOT / "benchmarks" / "it.py"), "--name", "with space", "--n=3"]
    monkeypatch.setattr("sys.orig_argv", typed)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    path = record("a-test", {"by-layer": Table(["layer", "share", "what"], ROWS)}, ["a note"])
    assert path == tmp_path / "results" / "a-test.json"
    assert "a-test.json" in capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    found = json.loads(text)
    assert found["tables"] == {"by-layer": {"columns": ["layer", "share", "what"], "rows": ROWS}}
    assert (found["name"], found["notes"]) == ("a-test", ["a note"])
    assert found["command"] == "python benchmarks/it.py --name 'with space' --n=3"
    assert abs((date.fromisoformat(found["date"]) - date.today()).days) <= 1
    assert found["versions"]["arithscope"] == arithscope.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert re.search(r"\d+ cores", found["machine"])
    assert str(results.ROOT) not in text
    assert socket.gethostname() not in text
    assert f'[3, {1 / 3!r}, "one, two"]' in text  # a row is a line


def test_bad_names_and_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    for name in ("", "../up", "a b", "Large"):
        with pytest.raises(UserError, match="no name for a result file"):
            record(name, {})
    with pytest.raises(ValueError, match="a row of 1 in a table of 2"):
        Table(["a", "b"], [[1]])
    assert list(tmp_path.iterdir()) == []

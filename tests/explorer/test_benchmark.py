"""benchmarks/explorer.py, with a made-up run of a few neurons: every request that it times is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

import arithscope
from benchmarks import explorer


def test_every_request_is_answered(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OPERATORS": ("+", "-"), "LAYERS": range(2, 4), "TOP": 5, "WIDTH": 12}.items():
        monkeypatch.setattr(explorer, name, value)
    explorer.large_run(arithscope.open(small_run), tmp_path / "run")
    tables = explorer.measure(tmp_path / "run", pages=6)
    assert tables["size"].rows[0][0] == 2 * 2 * 5
    assert [row[0] for row in tables["requests"].rows] == [explorer.PAGE, explorer.MAP, explorer.TABLE]
    assert all(0 < median <= slowest for _, median, _, slowest in tables["requests"].rows)

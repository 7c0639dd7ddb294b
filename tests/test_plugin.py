"""A stage from outside the package (result and stage, figure, finding, check) appears everywhere."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from arithscope.pipeline.registry import all_stages
from tests.command_line import call, error_message
from tests.explorer.client import send, serving
from tests.test_examples import ROOT, registries  # noqa: F401 (a fixture)
from tools.docs_tables import results_reference, stages_table


@pytest.fixture
def plugin(registries: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The modules of examples/new_stage.py and examples/new_figure.py, imported as a plug-in would be."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    for name in ("new_stage", "new_figure"):
        importlib.reload(importlib.import_module(name))


def test_a_stage_from_outside_appears_everywhere(
    plugin: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], saved_adder: Path
) -> None:
    out = tmp_path / "run"
    settings = ("--operators", "+", "--max-operand", "9")
    assert call("run", saved_adder, *settings, "--stages", "symmetry", "--out", out) == 0
    assert "symmetry" in capsys.readouterr().out  # the tables of the summary
    assert "symmetry" in error_message(capsys, "run", saved_adder, "--stages", "nothing")
    assert call("doctor", saved_adder, *settings) == 0
    assert "\n  symmetry " in capsys.readouterr().out
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Does the order of the operands matter?" in page
    assert "of the pairs get the same answer." in page
    assert (out / "figures" / "symmetry.png").is_file()
    with serving([out]) as address:
        [name] = [run["name"] for run in send(address, "/api/runs").json["runs"]]
        listed = send(address, f"/api/runs/{name}/results").json
        assert [entry["tables"] for entry in listed if entry["stage"] == "symmetry"] == [["table"]]
        assert send(address, f"/api/runs/{name}/results/symmetry/table").json["total"] == 2
    assert call("verify", out) == 0
    assert any(line.startswith("symmetry") and "agrees" in line for line in capsys.readouterr().out.splitlines())
    assert "share of pairs" in stages_table(all_stages()).lower()
    assert "Share of pairs that get the same answer." in results_reference(all_stages())

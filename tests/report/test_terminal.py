"""Tables of a summary show every interval completely; the report of a neuron copes with missing stages.

`tests/cli/test_app.py` covers the complete report of a neuron.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

import arithscope
from arithscope.report.terminal import entry_text, neuron_report, summary_tables
from tests.results.test_neuron import without_stages


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"value": 0.5, "low": 0.25, "high": 0.9999, "n": 3}, ".500\n[.250,1.00]"),
        ({"value": -0.0134, "low": -0.0333, "high": 0.0, "n": 3}, "-.013\n[-.033,\n .000]"),
        ({"value": 32.07, "low": 27.97, "high": 36.2, "n": 3}, "32.1\n[28.0,36.2]"),
        ({"value": 12345.6, "low": 1.0, "high": 99999.0, "n": 3}, "1.2e+04\n[1.00,\n 1.0e+05]"),
        ({"value": None, "low": None, "high": None, "n": 0}, "–"),
        (["L1H2", "L3H4"], "L1H2 L3H4"),
        (7, "7"),
        (None, "–"),
    ],
)
def test_entries(entry: object, expected: str) -> None:
    assert entry_text(entry) == expected


def test_nothing_is_cut_off_in_eighty_columns() -> None:
    wide = {"value": -52.93, "low": -152.93, "high": -8.33, "n": 100}
    columns = {operator: {"calibrated_associated_neurons": wide} for operator in ("+", "-", "*", "/", "mean")}
    console = Console(file=io.StringIO(), width=80)
    for table in summary_tables({"failures": columns}):
        console.print(table)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in output
    assert output.count("[-152.9,") == output.count("-8.33]") == 5


@pytest.mark.parametrize(
    ("missing", "message"),
    [(("classify",), "The run has no stage classify"), (("patterns", "classify"), "The run has no stage patterns")],
)
def test_a_neuron_without_some_stages(small_run: Path, tmp_path: Path, missing: tuple[str, ...], message: str) -> None:
    run = arithscope.open(without_stages(small_run, tmp_path, *missing))
    row = run.topk.top.iloc[0]
    *lines, last = map(str, neuron_report(run, int(row.layer), int(row.neuron), str(row.operator)))
    assert last.startswith(message)
    assert lines[1].startswith("effect by probability")
    assert any(line.startswith("numbers it promotes most") for line in lines) == (missing == ("classify",))


def test_only_signs_are_written_with_a_sign(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heuristic that holds for one prompt has size 1, not +1."""
    run = arithscope.open(small_run)
    row = run.topk.top.iloc[0]
    neuron = run.neuron(int(row.layer), int(row.neuron), str(row.operator))
    one_prompt = replace(neuron, heuristics=neuron.best.assign(size=1, sign=-1, calibrated=False))
    monkeypatch.setattr(run, "neuron", lambda *_: one_prompt)
    [table] = [x for x in neuron_report(run, neuron.layer, neuron.index, neuron.operator) if isinstance(x, Table)]
    cells = {str(column.header): set(column.cells) for column in table.columns}
    assert (cells["size"], cells["sign"]) == ({"1"}, {"-1"})
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    assert "…" not in console.file.getvalue()  # type: ignore[attr-defined]

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
from arithscope.report.terminal import _short, entry_text, neuron_report, summary_tables
from tests.results.test_neuron import without_stages


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"value": 0.5, "low": 0.25, "high": 0.9999, "n": 3}, ".500\n[.250,1.00]"),
        ({"value": -0.0134, "low": -0.0333, "high": 0.0, "n": 3}, "-.013\n[-.033,\n .000]"),
        ({"value": 32.07, "low": 27.97, "high": 36.2, "n": 3}, "32.1\n[28.0,36.2]"),
        ({"value": 12345.6, "low": 1.0, "high": 99999.0, "n": 3}, "12,300\n[1.00,\n 99,999]"),
        ({"value": None, "low": None, "high": None, "n": 0}, "–"),
        ({"value": 0.5, "low": None, "high": None, "n": 1}, ".500"),
        (["L1H2", "L3H4"], "L1H2 L3H4"),
        (7, "7"),
        (1500, "1,500"),
        (1500.0, "1,500"),
        (None, "–"),
    ],
)
def test_entries(entry: object, expected: str) -> None:
    assert entry_text(entry) == expected


def test_nothing_is_cut_off_in_eighty_columns() -> None:
    wide = {"value": -52.93, "low": -152.93, "high": -8.33, "n": 1_000_000}
    columns = {operator: {"calibrated_associated_neurons": wide} for operator in ("+", "-", "*", "/", "mean")}
    console = Console(file=io.StringIO(), width=80)
    for table in summary_tables({"failures": columns}):
        console.print(table)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in output
    assert output.count("[-152.9,") == output.count("-8.33]") == output.count("1,000,000") == 5


def test_means_stand_below_their_own_sample_size() -> None:
    """Measures with the same sample sizes share a row of them; plain values come first, as they have none."""
    few, many = ({"value": 0.5, "low": 0.4, "high": 0.6, "n": n} for n in (20, 1500))
    none = {"value": None, "low": None, "high": None, "n": 0}
    plus = {"drop": few, "accuracy": many, "k": 8, "gain": few, "faithfulness": many}
    minus = {"drop": none, "accuracy": many, "k": 2000, "gain": none}
    [table] = summary_tables({"bag": {"+": plus, "-": minus}})
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert [(name, *(str(cell).split("\n")[0] for cell in cells)) for name, *cells in rows] == [
        ("k", "8", "2,000"),
        ("n", "20", ""),
        ("drop", ".500", "–"),
        ("gain", ".500", "–"),
        ("n", "1,500", "1,500"),
        ("accuracy", ".500", ".500"),
        ("n", "1,500", ""),
        ("faithfulness", ".500", "–"),
    ]


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


def heuristics_of_a_neuron(small_run: Path, monkeypatch: pytest.MonkeyPatch, **columns: object) -> Table:
    """The table of a neuron whose matches have these values."""
    run = arithscope.open(small_run)
    row = run.topk.top.iloc[0]
    neuron = run.neuron(int(row.layer), int(row.neuron), str(row.operator))
    changed = replace(neuron, heuristics=neuron.best.assign(**columns))
    monkeypatch.setattr(run, "neuron", lambda *_: changed)
    [table] = [x for x in neuron_report(run, neuron.layer, neuron.index, neuron.operator) if isinstance(x, Table)]
    return table


def test_only_signs_are_written_with_a_sign(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heuristic that holds for one prompt has size 1, not +1."""
    table = heuristics_of_a_neuron(small_run, monkeypatch, size=1, sign=-1, calibrated=False)
    cells = {str(column.header): set(column.cells) for column in table.columns}
    assert (cells["size"], cells["±"]) == ({"1"}, {"−"})


@pytest.mark.parametrize("width", [60, 80])
def test_the_numbers_of_a_neuron_are_never_cut(small_run: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """The widest of each kind; only the names of heuristics may be wrapped."""
    shares = dict.fromkeys(("score", "chance", "corrected", "expected"), -0.25)
    wide = {"heuristic": "result in {100, 101, 102, 103}", "size": 90601, "calibrated": True}
    table = heuristics_of_a_neuron(
        small_run, monkeypatch, sign=-1, fdr=1e-123, neg_log10_p_hypergeom=12345.6, **wide, **shares
    )
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    lines = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    rows = [line[-9:] for line in lines if line[-1:] == ["yes"]]
    assert rows == [["−", "90601", "-.25", "-.25", "-.25", "-.25", "12,300", "1e-123", "yes"]] * len(table.rows) != []
    assert next(line for line in lines if "FDR" in line)[:4] == ["heuristic", "±", "size", "score"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.77, ".77"), (1.0, "1.00"), (-0.14, "-.14"), (0.0, ".00"), (0.0042, ".004"), (0.0003, "3e-04"), (12.34, "12.3")],
)
def test_short_values(value: float, expected: str) -> None:
    assert _short(value) == expected

"""Tables of a summary show every interval completely, even wide ones."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from arithscope.report.terminal import entry_text, summary_tables


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

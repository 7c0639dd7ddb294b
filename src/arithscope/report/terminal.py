"""The end of a run as a person sees it in a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table


def summary_tables(summary: dict[str, Any]) -> list[Table]:
    """One table for each experiment in summary.json: a row an operator, a column a measure with its interval."""
    tables = []
    for experiment, rows in summary.items():
        measures = list(dict.fromkeys(name for row in rows.values() for name in row))
        table = Table(title=experiment, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("operator")
        table.add_column("prompts", justify="right")
        for measure in measures:
            table.add_column(measure.replace("_", " "), justify="right")
        for operator, row in rows.items():
            n = max(row[m]["n"] for m in row)
            table.add_row(operator, f"{n:,}", *(_figure(row.get(m)) for m in measures))
        tables.append(table)
    return tables


def _figure(mean: dict[str, Any] | None) -> str:
    if mean is None or mean["value"] is None:
        return "–"
    low, high = (f"{mean[end]:.3f}".removeprefix("0") for end in ("low", "high"))
    return f"{mean['value']:.3f} [{low}, {high}]"

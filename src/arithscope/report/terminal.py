"""The end of a run as a person sees it in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

WIDEST = 8  # characters of an interval's ends, so that five columns fit into 80


def summary_tables(summary: dict[str, Any]) -> list[Table]:
    """One table for each experiment in summary.json: a column an operator, a row a measure, with its interval below."""
    tables = []
    for experiment, columns in summary.items():
        table = experiment_table(experiment, list(columns))
        measures = list(dict.fromkeys(name for entries in columns.values() for name in entries))
        sizes = [_size(entries) for entries in columns.values()]
        if any(sizes):
            table.add_row("n", *(f"{n:,}" for n in sizes))
        for measure in measures:
            table.add_row(measure.replace("_", " "), *(shown(entries.get(measure)) for entries in columns.values()))
        tables.append(table)
    return tables


def bare_table(**options: Any) -> Table:
    """A table with no lines but one below its header."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), **options)


def experiment_table(experiment: str, columns: Sequence[str]) -> Table:
    """An empty table with a column for names in front."""
    table = bare_table(title=experiment, title_justify="left")
    table.add_column("", min_width=13)
    for name in columns:
        table.add_column(name)
    return table


def _size(entries: dict[str, Any]) -> int:
    """Of the largest sample: prompts, neurons or heuristics."""
    return max((v["n"] for v in entries.values() if isinstance(v, dict)), default=0)


def shown(value: Any) -> str:
    """A mean with what it belongs to and its interval, a list of names, or a plain value."""
    if value is None or (isinstance(value, dict) and value["value"] is None):
        return "–"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if not isinstance(value, dict):
        return figure(value) if isinstance(value, float) else str(value)
    whose = f"{value['component']}\n" if "component" in value else ""
    low, high = figure(value["low"]), figure(value["high"])
    interval = f"[{low},{high}]" if len(low) + len(high) <= WIDEST else f"[{low},\n {high}]"
    return f"{whose}{figure(value['value'])}\n{interval}"


def figure(x: float) -> str:
    if abs(x) >= 1000:
        return f"{x:.1e}"
    if abs(x) >= 10:
        return f"{x:.1f}"
    return f"{x:.3f}".replace("0.", ".", 1) if abs(x) < 0.9995 else f"{x:.2f}"

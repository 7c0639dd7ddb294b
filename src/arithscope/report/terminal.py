"""Tables of a run's summary in the terminal."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

WIDEST = 8  # characters of both ends of an interval on one line; five columns then fit into 80


def summary_tables(summary: dict[str, Any]) -> list[Table]:
    """One table per experiment of summary.json: a column per operator, a row per measure."""
    tables = []
    for experiment, columns in summary.items():
        table = experiment_table(experiment, list(columns))
        means = [[entry for entry in entries.values() if isinstance(entry, dict)] for entries in columns.values()]
        sizes = [max((mean["n"] for mean in column), default=0) for column in means]  # prompts, neurons or heuristics
        if any(sizes):
            table.add_row("n", *(f"{n:,}" for n in sizes))
        for measure in dict.fromkeys(name for entries in columns.values() for name in entries):
            cells = (entry_text(entries.get(measure)) for entries in columns.values())
            table.add_row(measure.replace("_", " "), *cells)
        tables.append(table)
    return tables


def bare_table(**options: Any) -> Table:
    """A table without lines, except one below its header."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), **options)


def experiment_table(experiment: str, columns: Sequence[str]) -> Table:
    """An empty table with a column for row names first."""
    table = bare_table(title=experiment, title_justify="left")
    table.add_column("", min_width=13)
    for name in columns:
        table.add_column(name)
    return table


def entry_text(value: Any) -> str:
    """An entry of a summary: a mean with its interval below (and its component above), names, or a plain value."""
    if value is None or (isinstance(value, dict) and value["value"] is None):
        return "–"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if not isinstance(value, dict):
        return short_number(value) if isinstance(value, float) else str(value)
    component = f"{value['component']}\n" if "component" in value else ""
    low, high = short_number(value["low"]), short_number(value["high"])
    interval = f"[{low},{high}]" if len(low) + len(high) <= WIDEST else f"[{low},\n {high}]"
    return f"{component}{short_number(value['value'])}\n{interval}"


def short_number(x: float) -> str:
    """About three significant digits: .957, 1.00, 12.3, 1.2e+04."""
    if abs(x) >= 1000:
        return f"{x:.1e}"
    if abs(x) >= 10:
        return f"{x:.1f}"
    return f"{x:.3f}".replace("0.", ".", 1) if abs(x) < 0.9995 else f"{x:.2f}"

"""A comparison of runs: tables in the terminal, and a folder with all numbers, curves and figures.

comparison.json                     which runs were compared
table.parquet, curves.parquet       all headline numbers, and the curves
NAME.png, NAME.svg                  figures
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from arithscope.errors import UserError
from arithscope.experiments.common.result import AVERAGE
from arithscope.report.comparison_figures import FIGURES
from arithscope.report.figure_files import save_figure
from arithscope.report.terminal import entry_text, experiment_table
from arithscope.results.comparison import Comparison, compare
from arithscope.utils.files import atomic_folder, explain_write_errors, write_json
from arithscope.utils.progress import Progress

INDEX = "comparison.json"


def write_comparison(paths: Sequence[Path], out: Path, progress: Progress) -> Comparison:
    """Compare runs and write the results into a folder, which appears complete or not at all.

    Raises:
        UserError: If the folder holds something else, or cannot be written.
    """
    if out.exists() and not (out / INDEX).exists():
        raise UserError(f"{out} exists and holds no comparison; choose another --out.")
    comparison = compare(paths)
    figures = [figure for figure in FIGURES if figure.has_data(comparison)]
    with explain_write_errors(out, "choose another --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(out) as folder, progress.task("compare", len(figures)) as advance:
            comparison.table.to_parquet(folder / "table.parquet", index=False)
            comparison.curves.to_parquet(folder / "curves.parquet", index=False)
            for figure in figures:
                save_figure(folder, figure.name, figure.draw(comparison), figure.title, figure.caption)
                advance(1)
            write_json(folder / INDEX, {"runs": dict(zip(comparison.runs, map(str, paths), strict=True))})
    return comparison


def comparison_tables(comparison: Comparison) -> Iterator[Table]:
    """One table per experiment: a column per run, a row per measure; averages over operators where there are any."""
    for experiment in dict.fromkeys(comparison.table.experiment):
        rows = comparison.table[comparison.table.experiment == experiment]
        averages = rows[rows.operator == AVERAGE]
        chosen = (rows if averages.empty else averages).to_dict("records")
        entries = {(str(row["measure"]), str(row["operator"]), str(row["run"])): row for row in chosen}
        table = experiment_table(experiment, comparison.runs)
        for measure, operator in dict.fromkeys((m, o) for m, o, _ in entries):
            name = measure.replace("_", " ") + ("" if operator == AVERAGE else f" {operator}")
            cells = (_entry(entries.get((measure, operator, run))) for run in comparison.runs)
            table.add_row(name, *map(entry_text, cells))
        yield table


def _entry(row: Any) -> Any:
    """A row as an entry of a summary: a mean, a plain number, or None."""
    if row is None or pd.isna(row["value"]):
        return None
    return row["value"] if pd.isna(row["n"]) else row

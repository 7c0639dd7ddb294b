"""Runs side by side: tables in the terminal, and a folder with all numbers, curves and figures.

comparison.json                     which runs were compared
table.parquet, curves.parquet       every headline number, and the curves
NAME.png, NAME.svg                  figures
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from arithscope.errors import UserError
from arithscope.experiments.common.result import AVERAGE
from arithscope.figures.comparison import PANELS
from arithscope.report.figure_files import save_figure
from arithscope.report.terminal import experiment_table, shown
from arithscope.results.compare import compare
from arithscope.results.comparison import Comparison
from arithscope.results.run import Run
from arithscope.utils.files import atomic_folder, explain_write_errors, write_json
from arithscope.utils.progress import Progress

INDEX = "comparison.json"


def write_comparison(paths: Sequence[Path], out: Path, progress: Progress) -> Comparison:
    """Compare runs into a folder, which appears complete or not at all."""
    if out.exists() and not (out / INDEX).exists():
        raise UserError(f"{out} exists and holds no comparison; choose another --out.")
    found = compare([Run(path) for path in paths])
    todo = [panels for panels in PANELS if panels.shown(found)]
    with explain_write_errors(out, "choose another --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(out) as folder, progress.task("compare", len(todo)) as advance:
            found.table.to_parquet(folder / "table.parquet", index=False)
            found.curves.to_parquet(folder / "curves.parquet", index=False)
            for panels in todo:
                save_figure(folder, panels.name, panels.draw(found), panels.title, panels.caption)
                advance(1)
            write_json(folder / INDEX, {"runs": dict(zip(found.runs, map(str, paths), strict=True))})
    return found


def comparison_tables(found: Comparison) -> Iterator[Table]:
    """One table for each experiment: a column a run, a row a measure; averaged over operators where there is an average."""
    for experiment in dict.fromkeys(found.table.experiment):
        rows = found.table[found.table.experiment == experiment]
        averaged = rows[rows.operator == AVERAGE]
        chosen = rows if averaged.empty else averaged
        entries = {
            (str(row["measure"]), str(row["operator"]), str(row["run"])): row for row in chosen.to_dict("records")
        }
        table = experiment_table(experiment, found.runs)
        for measure, operator in dict.fromkeys((m, o) for m, o, _ in entries):
            name = measure.replace("_", " ") + ("" if operator == AVERAGE else f" {operator}")
            table.add_row(name, *(shown(_entry(entries.get((measure, operator, run)))) for run in found.runs))
        yield table


def _entry(row: Any) -> Any:
    """A row as it stood in a summary: a mean, a plain number, or nothing."""
    if row is None or pd.isna(row["value"]):
        return None
    return row["value"] if pd.isna(row["n"]) else row

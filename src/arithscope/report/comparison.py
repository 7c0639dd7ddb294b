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
from arithscope.experiments.compare import CURVES, Comparison, Study, compare
from arithscope.experiments.result import AVERAGE
from arithscope.figures.comparison import PANELS
from arithscope.files import new_folder, write_json
from arithscope.progress import Progress
from arithscope.report.plates import save_figure
from arithscope.report.terminal import experiment_table, shown
from arithscope.stages import STAGES
from arithscope.store import RunFolder

INDEX = "comparison.json"


def open_studies(paths: Sequence[Path]) -> list[Study]:
    """The runs in some folders, each with the stages it has; named after their subjects, or folders where these are the
    same."""
    if len(paths) < 2:
        raise UserError("One run cannot be compared; name two run folders or more.")
    runs = [RunFolder(path) for path in paths]
    subjects = [run.manifest["subject"] for run in runs]
    names = [s["name"] + (f"@{s['revision']}" if s["revision"] else "") for s in subjects]
    if len(set(names)) < len(names):
        names = [run.path.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    drawn = [stage for stage in STAGES if stage.name in {stage for stage, _ in CURVES.values()}]
    return [
        Study(
            name,
            int(subject["sizes"]["layers"]),
            run.summary,
            {stage.name: run.read(stage.name, stage.result) for stage in drawn if stage.name in run.summary},
        )
        for name, subject, run in zip(names, subjects, runs, strict=True)
    ]


def write_comparison(paths: Sequence[Path], out: Path, progress: Progress) -> Comparison:
    """Compare runs into a folder, which appears complete or not at all."""
    if out.exists() and not (out / INDEX).exists():
        raise UserError(f"{out} exists and holds no comparison; choose another --out.")
    found = compare(open_studies(paths))
    todo = [panels for panels in PANELS if panels.shown(found)]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(out) as folder, progress.task("compare", len(todo)) as advance:
            found.table.to_parquet(folder / "table.parquet", index=False)
            found.curves.to_parquet(folder / "curves.parquet", index=False)
            for panels in todo:
                save_figure(folder, panels.name, panels.draw(found), panels.title, panels.caption)
                advance(1)
            write_json(folder / INDEX, {"runs": dict(zip(found.runs, map(str, paths), strict=True))})
    except OSError as error:
        raise UserError(f"Cannot write to {out} ({error.strerror}); choose another --out.") from None
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

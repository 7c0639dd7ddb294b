"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arithscope.errors import UserError
from arithscope.results import comparison
from arithscope.results.comparison import CURVES, Comparison, Study
from arithscope.results.run import Run, distinct_names


def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Every headline number of some runs, open ones or their folders, in one table, and the curves behind the headline
    figures in another."""
    if len(runs) < 2:
        raise UserError("One run cannot be compared; name two run folders or more.")
    opened = [run if isinstance(run, Run) else Run(run) for run in runs]
    return comparison.compare([_study(name, run) for name, run in zip(distinct_names(opened), opened, strict=True)])


def _study(name: str, run: Run) -> Study:
    summary = run.folder.summary
    drawn = {stage for stage, _ in CURVES.values()} & set(summary)
    layers = int(run.manifest["model"]["sizes"]["layers"])
    return Study(name, layers, summary, {stage: run.result(stage) for stage in drawn})

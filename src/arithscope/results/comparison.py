"""Compares runs: every number of their summaries, and the main curves on axes that models of any size share (Appendix I)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from arithscope.errors import UserError
from arithscope.experiments.classify import ALL_LAYERS, ANY, CALIBRATED
from arithscope.experiments.common.ablation import FOUND
from arithscope.experiments.common.result import MEAN, Described
from arithscope.experiments.probe import ALL
from arithscope.experiments.prompt_knockout import OWN, RANDOM
from arithscope.results.run import Run, distinct_names


@dataclass(frozen=True, repr=False)
class Comparison(Described):
    """Every number of the runs' summaries (plain ones have no low, high and n), and the curves of `CURVES`, where x is a share
    of heads, layers (depth), neurons or training, or a number of neurons."""

    runs: list[str]  # names
    summaries: dict[str, dict[str, Any]]  # of each run: its summary.json
    table: pd.DataFrame  # run, experiment, operator, measure, value, low, high, n
    curves: pd.DataFrame  # run, curve, operator, x, value, low, high, n

    def measures(self, experiment: str) -> list[str]:
        """Names of the measures that any run has of an experiment."""
        return list(self.table[self.table.experiment == experiment].measure.unique())


def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Compare runs.

    Args:
        runs: Two or more open runs or run folders.

    Raises:
        UserError: If there are fewer than two runs, or one is named twice.

    Example:
        >>> arithscope.compare(["runs/tiny-llama", "runs/tiny-pythia"]).table
    """
    if len(runs) < 2:
        raise UserError("One run cannot be compared; name two run folders or more.")
    opened = [run if isinstance(run, Run) else Run(run) for run in runs]
    for run, other in combinations(opened, 2):
        if run.path.samefile(other.path):
            raise UserError(f"{run.path} and {other.path} are the same run; name each run once.")
    named = dict(zip(distinct_names(opened), opened, strict=True))
    numbers: list[dict[Any, Any]] = []
    curves: list[pd.DataFrame] = []
    for name, run in named.items():
        numbers += [{"run": name, **row} for row in run.summary.to_dict("records")]
        layers = int(run.manifest["model"]["sizes"]["layers"])
        for curve, (stage, select) in CURVES.items():
            if stage in run.stages and len(rows := select(run.result(stage), layers)):
                curves.append(rows.assign(run=name, curve=curve))
    table = pd.DataFrame(numbers, columns=["run", "experiment", "operator", "measure", *MEAN])
    columns = ["run", "curve", "operator", "x", *MEAN]
    joined = pd.concat(curves, ignore_index=True)[columns] if curves else pd.DataFrame(columns=columns)
    return Comparison(list(named), {name: run.folder.summary for name, run in named.items()}, table, joined)


def _faithfulness(curve: pd.DataFrame, total: int) -> pd.DataFrame:
    rows = curve[(curve.circuit == FOUND) & (curve.measure == "faithfulness")]
    return rows.assign(x=rows["size"] / total)


def _probed(table: pd.DataFrame, layers: int) -> pd.DataFrame:
    rows = table[table.operator != ALL]
    return rows.assign(x=(rows.layer + 1) / layers)


def _classified(shares: pd.DataFrame, layers: int) -> pd.DataFrame:
    rows = shares[(shares.kind == ANY) & (shares.criterion == CALIBRATED) & (shares.layer != ALL_LAYERS)]
    rows = rows[rows.counting == ANY]
    return rows.assign(x=(rows.layer + 1) / layers)


def _ablated(curve: pd.DataFrame, which: str) -> pd.DataFrame:
    rows = curve[(curve.criterion == CALIBRATED) & (curve.measure == "accuracy") & (curve.ablated == which)]
    return rows.assign(x=rows["size"].astype(float))


def _present(present: pd.DataFrame, checkpoints: list[str]) -> pd.DataFrame:
    rows = present[present.criterion == CALIBRATED]
    return rows.assign(x=rows.checkpoint.map(checkpoints.index) / (len(checkpoints) - 1))


# For each curve its stage, and what selects its rows from the stage's result, given the model's number of layers.
CURVES: dict[str, tuple[str, Callable[[Any, int], pd.DataFrame]]] = {
    "faithfulness by share of heads": ("circuit", lambda r, layers: _faithfulness(r.curve, r.curve["size"].max())),
    "probe accuracy by depth": ("probe", lambda r, layers: _probed(r.at_final(), layers)),
    "faithfulness by share of neurons": ("topk", lambda r, layers: _faithfulness(r.curve, r.mlp_size)),
    "share classified by depth": ("classify", lambda r, layers: _classified(r.shares, layers)),
    "accuracy without associated neurons": ("prompt_knockout", lambda r, layers: _ablated(r.curve, OWN)),
    "accuracy without random neurons": ("prompt_knockout", lambda r, layers: _ablated(r.curve, RANDOM)),
    "final pairs present over training": ("training", lambda r, layers: _present(r.present, r.checkpoints)),
}

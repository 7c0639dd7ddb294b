"""Compares runs: every headline number, and the curves behind the headline figures on axes that models share (Appendix J)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from arithscope.errors import UserError
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.classify import ALL_LAYERS, ANY, CALIBRATED, Classification
from arithscope.experiments.common.ablation import FOUND
from arithscope.experiments.common.result import MEAN, Described, summary_numbers
from arithscope.experiments.probe import ALL, Probe
from arithscope.experiments.prompt_knockout import OWN, RANDOM, PromptKnockout
from arithscope.experiments.topk import TopK
from arithscope.experiments.training import Training
from arithscope.pipeline.registry import stage_of
from arithscope.results.run import Run, distinct_names


@dataclass(frozen=True, repr=False)
class Comparison(Described):
    """Numbers and curves of several runs.

    Attributes:
        runs: Names of the runs.
        table: Every number of the runs' summaries; low, high and n are missing for plain ones.
        curves: The curves of `CURVES`; x is a share of heads, layers (depth), neurons or training, or a number of neurons.
    """

    runs: list[str]
    table: pd.DataFrame  # run, experiment, operator, measure, value, low, high, n
    curves: pd.DataFrame  # run, curve, operator, x, value, low, high, n

    def measures(self, experiment: str) -> list[str]:
        rows = self.table[self.table.experiment == experiment]
        return list(dict.fromkeys(rows.measure))


def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Compare runs, open ones or their folders.

    Raises:
        UserError: If there are fewer than two.

    Example:
        >>> arithscope.compare(["runs/tiny-llama", "runs/tiny-pythia"]).table
    """
    if len(runs) < 2:
        raise UserError("One run cannot be compared; name two run folders or more.")
    opened = [run if isinstance(run, Run) else Run(run) for run in runs]
    named = dict(zip(distinct_names(opened), opened, strict=True))
    numbers = [
        {"run": name, "experiment": experiment, **row}
        for name, run in named.items()
        for experiment, summary in run.folder.summary.items()
        for row in summary_numbers(summary)
    ]
    curves = [
        table.assign(run=name, curve=curve)
        for name, run in named.items()
        for curve, (kind, draw) in CURVES.items()
        if stage_of(kind).name in run.stages
        for table in [draw(run[kind], int(run.manifest["model"]["sizes"]["layers"]))]
        if len(table)
    ]
    columns = ["run", "curve", "operator", "x", *MEAN]
    return Comparison(
        list(named),
        pd.DataFrame(numbers, columns=["run", "experiment", "operator", "measure", *MEAN]),
        pd.concat(curves, ignore_index=True)[columns] if curves else pd.DataFrame(columns=columns),
    )


def _by_heads(circuit: Circuit, layers: int) -> pd.DataFrame:
    rows = circuit.curve[(circuit.curve.circuit == FOUND) & (circuit.curve.measure == "faithfulness")]
    return rows.assign(x=rows["size"] / circuit.curve["size"].max())


def _by_depth(probe: Probe, layers: int) -> pd.DataFrame:
    rows = probe.table[(probe.table.position == "last") & (probe.table.operator != ALL)]
    return rows.assign(x=(rows.layer + 1) / layers)


def _by_neurons(topk: TopK, layers: int) -> pd.DataFrame:
    rows = topk.curve[(topk.curve.circuit == FOUND) & (topk.curve.measure == "faithfulness")]
    return rows.assign(x=rows["size"] / topk.mlp_size)


def _classified(classify: Classification, layers: int) -> pd.DataFrame:
    s = classify.shares
    rows = s[(s.kind == ANY) & (s.criterion == CALIBRATED) & (s.layer != ALL_LAYERS)]
    return rows.assign(x=(rows.layer + 1) / layers)


def _ablated(knockout: PromptKnockout, which: str) -> pd.DataFrame:
    c = knockout.curve
    rows = c[(c.criterion == CALIBRATED) & (c.measure == "accuracy") & (c.ablated == which)]
    return rows.assign(x=rows["size"].astype(float))


def _present(training: Training, layers: int) -> pd.DataFrame:
    last = len(training.checkpoints) - 1
    rows = training.present[training.present.criterion == CALIBRATED]
    return rows.assign(x=rows.checkpoint.map(training.checkpoints.index) / last)


CURVES: dict[str, tuple[Any, Any]] = {
    "faithfulness by share of heads": (Circuit, _by_heads),
    "probe accuracy by depth": (Probe, _by_depth),
    "faithfulness by share of neurons": (TopK, _by_neurons),
    "share classified by depth": (Classification, _classified),
    "accuracy without associated neurons": (PromptKnockout, lambda result, layers: _ablated(result, OWN)),
    "accuracy without random neurons": (PromptKnockout, lambda result, layers: _ablated(result, RANDOM)),
    "final pairs present over training": (Training, _present),
}

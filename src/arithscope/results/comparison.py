"""Several studies side by side: every headline number, and the curves behind the headline figures on axes that models share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from arithscope.experiments.circuit import Circuit
from arithscope.experiments.classify import ALL_LAYERS, ANY, CALIBRATED, Classification
from arithscope.experiments.common.ablation import FOUND
from arithscope.experiments.common.result import MEAN, Shown, numbers_of
from arithscope.experiments.probe import ALL, Probe
from arithscope.experiments.prompt_knockout import OWN, RANDOM, PromptKnockout
from arithscope.experiments.topk import TopK
from arithscope.experiments.training import Training


@dataclass(frozen=True)
class Study:
    """What is compared of one run: its summary, results by stage (those of CURVES, as far as they are there), and how many
    layers its model has."""

    name: str
    layers: int
    summary: Mapping[str, Any]
    results: Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """table: every number of the runs' summaries (low, high and n are missing for plain ones).
    curves: by name, as in CURVES: x is a share of heads, of layers (depth), of neurons, a number of neurons, or of training."""

    runs: list[str]
    table: pd.DataFrame  # run, experiment, operator, measure, value, low, high, n
    curves: pd.DataFrame  # run, curve, operator, x, value, low, high, n

    def measures(self, experiment: str) -> list[str]:
        rows = self.table[self.table.experiment == experiment]
        return list(dict.fromkeys(rows.measure))


def compare(studies: list[Study]) -> Comparison:
    """Put all numbers and curves of some studies into one table each."""
    numbers = [
        {"run": study.name, "experiment": experiment, **row}
        for study in studies
        for experiment, summary in study.summary.items()
        for row in numbers_of(summary)
    ]
    curves = [
        table.assign(run=study.name, curve=name)
        for study in studies
        for name, (stage, draw) in CURVES.items()
        if stage in study.results
        for table in [draw(study.results[stage], study.layers)]
        if len(table)
    ]
    columns = ["run", "curve", "operator", "x", *MEAN]
    return Comparison(
        [study.name for study in studies],
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


def _silenced(knockout: PromptKnockout, which: str) -> pd.DataFrame:
    c = knockout.curve
    rows = c[(c.criterion == CALIBRATED) & (c.measure == "accuracy") & (c.ablated == which)]
    return rows.assign(x=rows["size"].astype(float))


def _present(training: Training, layers: int) -> pd.DataFrame:
    last = len(training.checkpoints) - 1
    rows = training.present[training.present.criterion == CALIBRATED]
    return rows.assign(x=rows.checkpoint.map(training.checkpoints.index) / last)


CURVES: dict[str, tuple[str, Any]] = {
    "faithfulness by share of heads": ("circuit", _by_heads),
    "probe accuracy by depth": ("probe", _by_depth),
    "faithfulness by share of neurons": ("topk", _by_neurons),
    "share classified by depth": ("classify", _classified),
    "accuracy without associated neurons": ("prompt_knockout", lambda result, layers: _silenced(result, OWN)),
    "accuracy without random neurons": ("prompt_knockout", lambda result, layers: _silenced(result, RANDOM)),
    "final pairs present over training": ("training", _present),
}

"""Overlap: do operators share their top neurons, and which does an operator have to itself? (Appendix D)

Operators may have different answer layers. Two operators are compared in the layers that both study, and a neuron can be unique
to an operator only in the layers that all study.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.common import schema
from arithscope.experiments.common.result import AVERAGE, Result, by_operator, with_average
from arithscope.experiments.common.stage import Context, stage
from arithscope.experiments.topk import TopK
from arithscope.stats.intervals import share_of

Neurons = set[tuple[int, int]]  # (layer, neuron)

_PAIR = (
    schema.OPERATOR,
    schema.text("other", "the other operator", key=True),
    schema.number("iou", "intersection over union of their top neurons; NaN if neither has any"),
    schema.number("shared", "neurons that both have"),
    schema.number("union", "neurons that either has"),
)


@dataclass(frozen=True, repr=False)
class Overlap(Result):
    """Intersection over union (IoU) of top neurons. Where operators differ in k, it is at most the smaller k ÷ the larger."""

    table: pd.DataFrame = schema.table("Overlap of each pair of operators.", *_PAIR)
    by_layer: pd.DataFrame = schema.table("The same, layer by layer.", *_PAIR, schema.LAYER)
    unique: pd.DataFrame = schema.table(
        "Share of each operator's top neurons that no other operator has, in the layers that all study.",
        schema.OPERATOR,
        *schema.MEAN_COLUMNS,
    )
    operators: list[str] = schema.value("operators with top neurons")

    def pairs_with(self, operator: str) -> pd.DataFrame:
        return self.table[(self.table.operator == operator) | (self.table.other == operator)]

    def summary(self) -> dict[str, Any]:
        """Mean IoU of each operator with the others, and over all pairs."""
        if self.table.empty:
            return {}
        means = {operator: self.pairs_with(operator).iou.mean() for operator in self.operators}
        out = {name: {"mean_iou": iou} for name, iou in {**means, AVERAGE: self.table.iou.mean()}.items()}
        for operator, measures in by_operator(with_average(self.unique.assign(measure="unique_share"))).items():
            out.setdefault(operator, {}).update(measures)
        return out


@stage(needs=(TopK,), paper="App. D")
def overlap(ctx: Context) -> Overlap:
    """Overlap of the top neurons of each pair of operators."""
    topk = ctx.results[TopK]
    sets = {operator: topk.chosen(operator) for operator in topk.operators}
    by_layer = [
        {**row, "layer": layer}
        for layer in sorted({layer for neurons in sets.values() for layer, _ in neurons})
        for row in overlaps(_in_layer(sets, layer))
    ]
    pairs = [row for pair in combinations(sets, 2) for row in overlaps(in_common_layers({o: sets[o] for o in pair}))]
    tables = Overlap.frame("table", pairs), Overlap.frame("by_layer", by_layer)
    return Overlap(*tables, Overlap.frame("unique", unique_shares(sets)), topk.operators)


def _in_layer(sets: Mapping[str, Neurons], layer: int) -> dict[str, Neurons]:
    """The neurons of each set that are in a layer; sets without any are left out."""
    return {o: own for o, neurons in sets.items() if (own := {n for n in neurons if n[0] == layer})}


def in_common_layers(sets: Mapping[str, Neurons]) -> dict[str, Neurons]:
    """The neurons of each set that are in layers which all sets have."""
    common = set.intersection(*({layer for layer, _ in neurons} for neurons in sets.values()))
    return {name: {neuron for neuron in neurons if neuron[0] in common} for name, neurons in sets.items()}


def unique_shares(sets: Mapping[str, Neurons]) -> list[dict[str, Any]]:
    """For each of several sets, the share of its neurons that no other set has."""
    if len(sets) < 2:
        return []
    compared = in_common_layers(sets)
    rows = []
    for operator, own in compared.items():
        others = set.union(*(neurons for o, neurons in compared.items() if o != operator))
        rows.append({"operator": operator, **asdict(share_of([neuron not in others for neuron in own]))})
    return rows


def overlaps(sets: Mapping[str, Neurons]) -> list[dict[str, Any]]:
    """One row for each pair of named sets of heads or neurons."""
    rows = []
    for (operator, ours), (other, theirs) in combinations(sets.items(), 2):
        shared, union = len(ours & theirs), len(ours | theirs)
        iou = shared / union if union else np.nan
        rows.append({"operator": operator, "other": other, "iou": iou, "shared": shared, "union": union})
    return rows

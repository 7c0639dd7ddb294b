"""Whether operators share their neurons: how far the sets of their top neurons overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.common.result import AVERAGE, Result
from arithscope.experiments.topk import TopK

PAIR = ["operator", "other", "iou", "shared", "union"]


@dataclass(frozen=True, repr=False)
class Overlap(Result):
    """table: for each pair of operators the intersection over union of their top neurons (NaN if neither has any), and the
    neurons that both and that either of them has. by_layer: the same, layer by layer. With sets of different sizes, as
    operators may differ in k, the IoU is at most the smaller ÷ the larger."""

    table: pd.DataFrame  # operator, other, iou, shared, union
    by_layer: pd.DataFrame  # operator, other, iou, shared, union, layer
    operators: list[str]

    def of(self, operator: str) -> pd.DataFrame:
        """The pairs that an operator is in."""
        return self.table[(self.table.operator == operator) | (self.table.other == operator)]

    def summary(self) -> dict[str, Any]:
        """The mean IoU of each operator with the others, and over all pairs."""
        if self.table.empty:
            return {}
        means = {operator: self.of(operator).iou.mean() for operator in self.operators}
        return {name: {"mean_iou": iou} for name, iou in {**means, AVERAGE: self.table.iou.mean()}.items()}


def overlap(topk: TopK) -> Overlap:
    """Compare the top neurons of all pairs of operators."""
    sets = {operator: topk.chosen(operator) for operator in topk.operators}
    by_layer = [
        {**row, "layer": layer}
        for layer in sorted({layer for neurons in sets.values() for layer, _ in neurons})
        for row in compared({o: {n for n in neurons if n[0] == layer} for o, neurons in sets.items()})
    ]
    return Overlap(
        pd.DataFrame(compared(sets), columns=PAIR), pd.DataFrame(by_layer, columns=[*PAIR, "layer"]), topk.operators
    )


def compared(sets: Mapping[str, set[tuple[int, int]]]) -> list[dict[str, Any]]:
    """A row for each pair of operators, from the neurons (layer, number) of each."""
    rows = []
    for (operator, ours), (other, theirs) in combinations(sets.items(), 2):
        shared, union = len(ours & theirs), len(ours | theirs)
        iou = shared / union if union else np.nan
        rows.append({"operator": operator, "other": other, "iou": iou, "shared": shared, "union": union})
    return rows

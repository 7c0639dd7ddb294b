"""Overlap: do operators share their top neurons? (Appendix D)"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.common import schema
from arithscope.experiments.common.result import AVERAGE, Result
from arithscope.experiments.common.stage import Context, stage
from arithscope.experiments.topk import TopK

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
    operators: list[str] = schema.value("operators with top neurons")

    def pairs_with(self, operator: str) -> pd.DataFrame:
        return self.table[(self.table.operator == operator) | (self.table.other == operator)]

    def summary(self) -> dict[str, Any]:
        """Mean IoU of each operator with the others, and over all pairs."""
        if self.table.empty:
            return {}
        means = {operator: self.pairs_with(operator).iou.mean() for operator in self.operators}
        return {name: {"mean_iou": iou} for name, iou in {**means, AVERAGE: self.table.iou.mean()}.items()}


@stage(needs=(TopK,), paper="App. D")
def overlap(ctx: Context) -> Overlap:
    """Overlap of the top neurons of each pair of operators."""
    topk = ctx.results[TopK]
    sets = {operator: topk.chosen(operator) for operator in topk.operators}
    by_layer = [
        {**row, "layer": layer}
        for layer in sorted({layer for neurons in sets.values() for layer, _ in neurons})
        for row in overlaps({o: {n for n in neurons if n[0] == layer} for o, neurons in sets.items()})
    ]
    return Overlap(Overlap.frame("table", overlaps(sets)), Overlap.frame("by_layer", by_layer), topk.operators)


def overlaps(sets: Mapping[str, set[tuple[int, int]]]) -> list[dict[str, Any]]:
    """One row for each pair of named sets of heads or neurons."""
    rows = []
    for (operator, ours), (other, theirs) in combinations(sets.items(), 2):
        shared, union = len(ours & theirs), len(ours | theirs)
        iou = shared / union if union else np.nan
        rows.append({"operator": operator, "other": other, "iou": iou, "shared": shared, "union": union})
    return rows

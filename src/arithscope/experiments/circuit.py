"""The circuit of each operator: all MLPs and the fewest heads, of largest effect first, that do as well as all heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.ablation import (
    Asked,
    Judging,
    baselines,
    beside_draws,
    beside_random,
    curve_table,
    kept_scores,
    nested_sets,
    scores_by_prompts,
    smallest_on_plateau,
)
from arithscope.experiments.common.result import AVERAGE, Result, by_operator, table_of
from arithscope.experiments.common.samples import SampleSizes, splits
from arithscope.experiments.localize import Localization, component_name
from arithscope.experiments.means import MeanActivations
from arithscope.models.model import Model
from arithscope.prompts import random_source
from arithscope.stats.measures import Mean
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.progress import Progress

EVERY_SIZE = 64  # up to here each number of heads is tried; from here on, one in ten


@dataclass(frozen=True, repr=False)
class Circuit(Result):
    """curve: faithfulness, accuracy and mean probability of the answer with the first n heads (`found`), and with n random
    ones (`random`: mean over draws, interval and n over draws), per operator.
    heads: every head in the order of its effect, with the position at which that is largest, and whether it is in the
    circuit. table: the chosen circuits' measures, beside random circuits of their size (`random_…`)."""

    curve: pd.DataFrame  # operator, circuit, size, measure, value, low, high, n
    heads: pd.DataFrame  # operator, rank, layer, head, position, value, low, high, n, median, in_circuit
    table: pd.DataFrame  # operator, measure, value, low, high, n
    left_out: dict[str, int]  # prompts without a faithfulness, as the empty circuit does as well as the model

    @property
    def operators(self) -> list[str]:
        return [str(o) for o in self.heads.operator.unique()]

    def kept(self, operator: str) -> pd.DataFrame:
        """The rows of `heads` that are in an operator's circuit, the strongest first."""
        return self.heads[(self.heads.operator == operator) & self.heads.in_circuit]

    def chosen(self, operator: str) -> list[tuple[int, int]]:
        """The same as (layer, head)."""
        rows = self.kept(operator)
        return [(int(layer), int(head)) for layer, head in zip(rows.layer, rows["head"], strict=True)]

    def shared(self) -> list[tuple[int, int]]:
        """The heads that are in the circuit of every operator, in the order of layers."""
        return sorted(set.intersection(*(set(self.chosen(o)) for o in self.operators)))

    def keeps(self, operator: str, layers: int, heads: int) -> Tensor:
        """Which heads the circuit keeps: [1, layers, heads]."""
        keep = torch.zeros(1, layers, heads, dtype=torch.bool)
        for layer, head in self.chosen(operator):
            keep[0, layer, head] = True
        return keep

    def summary(self) -> dict[str, Any]:
        out = by_operator(self.table)
        for operator in self.operators:
            names = [component_name(*head) for head in self.chosen(operator)]
            out[operator] = {"heads": len(names), **out[operator], "head_names": names}
        out[AVERAGE]["shared_heads"] = [component_name(*head) for head in self.shared()]
        return out


def circuit(
    model: Model,
    accuracy: Accuracy,
    means: MeanActivations,
    localize: Localization,
    sizes: SampleSizes,
    seed: int,
    effect: str,
    judging: Judging,
    progress: Progress,
    executor: Executor = LOCAL,
) -> Circuit:
    """For each operator evaluate nested sets of heads, each set once; choose the smallest as good as the plateau."""
    s = model.sizes
    all_heads = s.layers * s.heads
    counts = head_counts(all_heads)
    samples = {operator: split.evaluation for operator, split in splits(accuracy, sizes, seed).items()}
    sources = {operator: random_source(seed, "circuit", operator) for operator in samples}
    rankings = {operator: localize.ranking(operator, effect) for operator in samples}
    asked: list[Asked] = []
    for operator, prompts in samples.items():
        found = (rankings[operator].layer * s.heads + rankings[operator]["head"]).to_numpy()
        orders = [found, *(sources[operator].permutation(all_heads) for _ in range(sizes.draws))]
        kept = nested_sets(orders, counts).unflatten(1, (s.layers, s.heads)).numpy()
        asked.append(((means, kept, {}, None, judging), prompts))
    curves, heads = [], []
    measured: dict[str, dict[str, Mean]] = {}
    left_out: dict[str, int] = {}
    total = sum(map(len, samples.values())) * len(counts) * (1 + sizes.draws)
    with progress.task("circuit", total) as advance:
        scores = scores_by_prompts(executor, kept_scores, model, asked, advance)
        scales = baselines(executor, model, means, list(samples.values()), judging)
    for operator, scored, scale in zip(samples, scores, scales, strict=True):
        ours, theirs = beside_draws(scale, scored, sizes.draws, sources[operator])
        chosen = smallest_on_plateau(ours)
        curves.append(curve_table(operator, counts, ours, theirs))
        heads.append(head_table(operator, rankings[operator], counts[chosen]))
        measured[operator] = beside_random(ours[chosen], theirs[chosen])
        left_out[operator] = len(samples[operator]) - ours[chosen]["faithfulness"].n
    curve, ranked = (pd.concat(tables, ignore_index=True) for tables in (curves, heads))
    return Circuit(curve, ranked, table_of(measured), left_out)


def head_counts(total: int) -> list[int]:
    """Sizes to try: every one while they are few, then in steps of a tenth, and all heads at the end."""
    counts = list(range(min(total, EVERY_SIZE) + 1))
    while counts[-1] < total:
        counts.append(min(total, counts[-1] + -(-counts[-1] // 10)))
    return counts


def head_table(operator: str, ranking: pd.DataFrame, size: int) -> pd.DataFrame:
    columns = ["operator", "layer", "head", "position", "value", "low", "high", "n", "median"]
    table = ranking[columns].copy()
    table.insert(1, "rank", np.arange(len(table)))
    return table.assign(in_circuit=table["rank"] < size)

"""How few neurons suffice: each operator's circuit with only the k best neurons of each MLP at the last position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common.ablation import (
    Asked,
    Judging,
    baselines,
    beside_draws,
    beside_random,
    curve_table,
    nested_scores,
    scores_by_prompts,
    smallest_on_plateau,
)
from arithscope.experiments.common.result import Result, by_operator, table_of
from arithscope.experiments.common.samples import SampleSizes, splits
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.neurons import NeuronEffects
from arithscope.models.model import Model
from arithscope.prompts import random_source
from arithscope.stats.measures import Mean
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.progress import Progress

A_DECADE = (1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.3, 8)  # sizes to try in each, about evenly on a log scale


@dataclass(frozen=True, repr=False)
class TopK(Result):
    """curve: faithfulness, accuracy and mean probability of the answer when each MLP from the first answer layer on keeps its k
    best neurons at the last position (`found`), or k random ones (`random`: mean over draws, interval and n over draws).
    table: the same at the chosen k, and of as many random neurons (`random_…`). top: the k best neurons of each layer."""

    curve: pd.DataFrame  # operator, circuit, size (k), measure, value, low, high, n
    table: pd.DataFrame  # operator, measure, value, low, high, n
    top: pd.DataFrame  # operator, layer, rank, neuron, value
    k: dict[str, int]
    mlp_size: int
    left_out: dict[str, int]  # prompts without a faithfulness, as the empty circuit does as well as the model

    @property
    def operators(self) -> list[str]:
        return list(self.k)

    def kept(self, operator: str) -> pd.DataFrame:
        """The top neurons of an operator, layer by layer, the best first."""
        return self.top[self.top.operator == operator]

    def chosen(self, operator: str) -> set[tuple[int, int]]:
        """The same as (layer, neuron)."""
        rows = self.kept(operator)
        return {(int(layer), int(neuron)) for layer, neuron in zip(rows.layer, rows.neuron, strict=True)}

    def summary(self) -> dict[str, Any]:
        out = by_operator(self.table)
        for operator, k in self.k.items():
            out[operator] = {"k": k, "share_of_neurons": k / self.mlp_size, **out[operator]}
        return out


def topk(
    model: Model,
    accuracy: Accuracy,
    means: MeanActivations,
    circuit: Circuit,
    neurons: NeuronEffects,
    sizes: SampleSizes,
    seed: int,
    effect: str,
    rank: str,
    fixed: Mapping[str, int] | None,
    judging: Judging,
    progress: Progress,
    executor: Executor = LOCAL,
) -> TopK:
    """Keep ever more of each MLP's neurons in each operator's circuit; choose the fewest that do as well as the plateau (one at
    the least, for later stages to look at), or the number that is `fixed` for the operator. The MLPs below the first answer
    layer stay whole, and all of them at earlier positions: neurons were ranked by what they do at the last one."""
    s, layers = model.sizes, range(neurons.first_layer, model.sizes.layers)
    counts = neuron_counts(s.neurons, () if fixed is None else fixed.values())
    samples = {operator: split.evaluation for operator, split in splits(accuracy, sizes, seed).items()}
    sources = {operator: random_source(seed, "topk", operator) for operator in samples}
    rankings = {operator: neurons.ranking(operator, effect, rank) for operator in samples}
    asked: list[Asked] = []
    for operator, prompts in samples.items():
        draw, ranked = sources[operator].permutation, rankings[operator].neuron.to_numpy().reshape(len(layers), -1)
        orders = {
            layer: np.stack([found, *(draw(s.neurons) for _ in range(sizes.draws))]).astype(np.int32)
            for layer, found in zip(layers, ranked, strict=True)
        }
        heads = circuit.keeps(operator, s.layers, s.heads).numpy()
        asked.append(((means, heads, orders, counts, model.positions.last, judging), prompts))
    curves, tops = [], []
    measured: dict[str, dict[str, Mean]] = {}
    ks: dict[str, int] = {}
    left_out: dict[str, int] = {}
    total = sum(map(len, samples.values())) * len(counts) * (1 + sizes.draws)
    with progress.task("topk", total) as advance:
        scores = scores_by_prompts(executor, nested_scores, model, asked, advance)
        scales = baselines(executor, model, means, list(samples.values()), judging)
    for operator, scored, scale in zip(samples, scores, scales, strict=True):
        ours, theirs = beside_draws(scale, scored, sizes.draws, sources[operator])
        chosen = max(smallest_on_plateau(ours), 1) if fixed is None else counts.index(fixed[operator])
        curves.append(curve_table(operator, counts, ours, theirs))
        tops.append(best_of_layers(rankings[operator], counts[chosen]))
        measured[operator] = beside_random(ours[chosen], theirs[chosen])
        ks[operator] = counts[chosen]
        left_out[operator] = len(samples[operator]) - ours[chosen]["faithfulness"].n
    curve, top = (pd.concat(tables, ignore_index=True) for tables in (curves, tops))
    return TopK(curve, table_of(measured), top, ks, s.neurons, left_out)


def neuron_counts(total: int, fixed: Iterable[int] = ()) -> list[int]:
    """Sizes to try: none, about ten a decade, all neurons, and fixed ones."""
    decades = (10**power for power in range(len(str(total))))
    steps = {int(step * decade + 0.5) for decade in decades for step in A_DECADE}
    return sorted({0, total, *(n for n in steps if n < total), *fixed})


def best_of_layers(ranking: pd.DataFrame, k: int) -> pd.DataFrame:
    """The first k neurons of each layer."""
    ranked = ranking.assign(rank=ranking.groupby("layer").cumcount())
    return ranked.loc[ranked["rank"] < k, ["operator", "layer", "rank", "neuron", "value"]]

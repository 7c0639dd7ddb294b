"""How few neurons suffice: each operator's circuit with only the top k neurons of each later MLP (Section 3.1).

1. Rank the neurons of each MLP from the first answer layer on by their effect.
2. Keep the first k of each MLP at the last position, mean-ablate the others, for growing k. Compare with random neurons.
   MLPs below the first answer layer stay whole, and so do all MLPs at earlier positions.
3. Choose the smallest k whose faithfulness is within 0.02 of the best, at least one; or a fixed k.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common import ablation, schema
from arithscope.experiments.common.result import Result, by_operator, summary_table
from arithscope.experiments.common.samples import evaluation_prompts
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.neurons import NeuronEffects
from arithscope.models.model import Model
from arithscope.prompts import random_source
from arithscope.settings import Settings

SIZES_PER_DECADE = (1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.3, 8)  # about even on a log scale


@dataclass(frozen=True, repr=False)
class TopK(Result):
    """The top neurons of each operator, and the curves that chose their number."""

    curve: pd.DataFrame = schema.table("Circuits with k top neurons per later MLP, or k random ones.", *ablation.CURVE)
    table: pd.DataFrame = schema.table("Measures at the chosen k, and under `random_…` with as many random neurons.")
    top: pd.DataFrame = schema.table(
        "The top k neurons of each layer.",
        schema.OPERATOR,
        schema.LAYER,
        schema.integer("rank", "rank in the layer, from 0"),
        schema.NEURON,
        schema.number("value", "mean effect"),
    )
    k: dict[str, int] = schema.value("neurons kept per MLP, by operator")
    mlp_size: int = schema.value("neurons of an MLP")
    excluded: dict[str, int] = schema.value("prompts without a faithfulness: the empty circuit is as good as the model")

    @property
    def operators(self) -> list[str]:
        return list(self.k)

    def kept(self, operator: str) -> pd.DataFrame:
        """Top neurons of an operator, layer by layer, by descending effect."""
        return self.top[self.top.operator == operator]

    def chosen(self, operator: str) -> set[tuple[int, int]]:
        """Top neurons of an operator as (layer, neuron)."""
        rows = self.kept(operator)
        return {(int(layer), int(neuron)) for layer, neuron in zip(rows.layer, rows.neuron, strict=True)}

    def summary(self) -> dict[str, Any]:
        out = by_operator(self.table)
        for operator, k in self.k.items():
            out[operator] = {"k": k, "share_of_neurons": k / self.mlp_size, **out[operator]}
        return out


def _memory(model: Model, settings: Settings) -> int:
    """A replay, and the masks of the circuits' neurons."""
    s = model.sizes
    circuits = len(neuron_counts(s.neurons)) * (1 + settings.sizes.draws)
    return replay_memory(model, settings) + circuits * s.layers * s.neurons


@stage(
    needs=(Accuracy, MeanActivations, Circuit, NeuronEffects),
    reads=("sizes", "seed", "effect", "rank", "fixed_k"),
    memory=_memory,
    paper="3.1",
)
def topk(ctx: Context) -> TopK:
    """Fewest top neurons per MLP that keep the circuit's faithfulness, by operator."""
    s, settings, neurons = ctx.model.sizes, ctx.settings, ctx.results[NeuronEffects]
    fixed, draws, samples = settings.fixed_k, settings.sizes.draws, evaluation_prompts(ctx)
    layers = range(neurons.first_layer, s.layers)
    counts = neuron_counts(s.neurons, (fixed or {}).values())
    sources = {operator: random_source(settings.seed, "topk", operator) for operator in samples}
    rankings = {operator: neurons.ranking(operator, settings.effect, settings.rank) for operator in samples}

    def arguments(operator: str, sizes: list[int]) -> tuple[Any, ...]:
        ranked = rankings[operator].neuron.to_numpy().reshape(len(layers), -1)
        orders = [ablation.with_random_orders(order, draws, sources[operator]).astype(np.int32) for order in ranked]
        heads = ctx.results[Circuit].keeps(operator, s.layers, s.heads)
        by_layer = dict(zip(layers, orders, strict=True))
        return ctx.results[MeanActivations], heads, by_layer, sizes, ctx.model.positions.last

    total = sum(map(len, samples.values())) * len(counts) * (1 + draws)
    with ctx.progress.task("topk", total) as advance:
        scores = ablation.nested_circuit_scores
        curve = ablation.growth_curve(ctx, "topk", scores, samples, counts, arguments, advance)
    tops, measured, ks, excluded = [], {}, {}, {}
    for operator, prompts in samples.items():
        means = ablation.curve_means(curve, operator)
        k = max(ablation.smallest_on_plateau(means), counts[1]) if fixed is None else fixed[operator]
        ranked = rankings[operator].assign(rank=rankings[operator].groupby("layer").cumcount())
        tops.append(ranked.loc[ranked["rank"] < k, TopK.columns("top")])
        ks[operator], measured[operator] = k, means[k]
        excluded[operator] = len(prompts) - means[k]["faithfulness"].n
    return TopK(curve, summary_table(measured), pd.concat(tops, ignore_index=True), ks, s.neurons, excluded)


def neuron_counts(total: int, fixed: Iterable[int] = ()) -> list[int]:
    """Sizes to try: 0, about ten per decade, all neurons, and the fixed sizes."""
    steps = {int(step * 10**power + 0.5) for power in range(len(str(total))) for step in SIZES_PER_DECADE}
    return sorted({0, total, *(n for n in steps if n < total), *fixed})

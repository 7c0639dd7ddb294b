"""How few neurons suffice: each operator's circuit with only the top k neurons of each later MLP (Section 3.1).

1. Rank the neurons of each MLP of the operator's answer layers by their effect.
2. Keep the first k of each MLP at the last position, mean-ablate the others, for growing k. MLPs below the answer layers stay
   whole, and so do all MLPs at earlier positions.
3. On the selection prompts, choose the smallest k, at least one, whose faithfulness is within 0.02 of the best, and unless as
   in the paper, its accuracy within 0.1; or a fixed k.
4. Report the circuits of all k on the evaluation prompts, beside random neurons and beside another ranking: the paper's, or
   if that is in use, by mean absolute effect. The floor is the circuit with no neuron kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common import ablation, schema
from arithscope.experiments.common.result import Result, by_operator, mean_entry, summary_table
from arithscope.experiments.common.samples import evaluation_prompts, selection_prompts
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.neurons import NeuronEffects
from arithscope.models.model import Model
from arithscope.prompts import random_source
from arithscope.settings import MEAN, MEAN_ABS, Settings

SIZES_PER_DECADE = (1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.3, 8)  # about even on a log scale


@dataclass(frozen=True, repr=False)
class TopK(Result):
    """The top neurons of each operator, and the curves that chose their number."""

    curve: pd.DataFrame = schema.table(
        "Circuits with k top neurons per answer layer, or k random ones, on the evaluation prompts.", *ablation.CURVE
    )
    selection: pd.DataFrame = schema.table(
        "The same on the selection prompts, without random neurons.", *ablation.CURVE
    )
    table: pd.DataFrame = schema.table(
        "Measures at the chosen k; under `random_…` with as many random neurons, under `floor_…` with none."
    )
    rankings: pd.DataFrame = schema.table(
        "What each ranking needs: the k chosen with it, and the measures of its circuit.",
        schema.OPERATOR,
        schema.text(
            "ranking", "statistic of the effects that ranks neurons: `mean`, `mean_abs` or `mean+std`", key=True
        ),
        schema.number("k", "neurons kept per MLP"),
        *schema.MEASURED,
    )
    top: pd.DataFrame = schema.table(
        "The top k neurons of each layer.",
        schema.OPERATOR,
        schema.LAYER,
        schema.integer("rank", "rank in the layer, from 0"),
        schema.NEURON,
        schema.number("value", "mean effect"),
        schema.number("mean_abs", "mean of the absolute effect"),
    )
    k: dict[str, int] = schema.value("neurons kept per MLP, by operator")
    ranked_by: str = schema.value("statistic of the effects that ranks neurons: `mean`, `mean_abs` or `mean+std`")
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
            out[operator] = {
                "ranked_by": self.ranked_by,
                "k": k,
                "share_of_neurons": k / self.mlp_size,
                **out[operator],
            }
        for row in self.rankings.to_dict("records"):
            out[str(row["operator"])][f"k_by_{row['ranking']}"] = int(row["k"])
            out[str(row["operator"])][f"{row['measure']}_by_{row['ranking']}"] = mean_entry(row)
        return out


def _memory(model: Model, settings: Settings) -> int:
    """A replay, and the masks of the circuits' neurons."""
    s = model.sizes
    circuits = len(neuron_counts(s.neurons)) * (1 + settings.sizes.draws)
    return replay_memory(model, settings) + circuits * s.layers * s.neurons


@stage(
    needs=(Accuracy, MeanActivations, Circuit, NeuronEffects),
    reads=("sizes", "seed", "effect", "ranking", "sufficient", "fixed_k"),
    memory=_memory,
    paper="3.1",
)
def topk(ctx: Context) -> TopK:
    """Fewest top neurons per MLP that suffice in the circuit, by operator."""
    s, settings, neurons = ctx.model.sizes, ctx.settings, ctx.results[NeuronEffects]
    fixed, draws = settings.fixed_k, settings.sizes.draws
    samples, selected = evaluation_prompts(ctx), selection_prompts(ctx)
    counts = neuron_counts(s.neurons, (fixed or {}).values())
    sources = {operator: random_source(settings.seed, "topk", operator) for operator in samples}
    other = MEAN_ABS if settings.ranking == MEAN else MEAN
    circuits = {ablation.FOUND: settings.ranking, f"by_{other}": other}
    rankings = {(o, c): neurons.ranking(o, settings.effect, by) for o in samples for c, by in circuits.items()}

    def arguments(operator: str, sizes: list[int], draws: int) -> tuple[Any, ...]:
        layers = range(neurons.first_layer[operator], s.layers)
        ranked = [rankings[operator, c].neuron.to_numpy().reshape(len(layers), -1) for c in circuits]
        by_layer = {
            layer: ablation.with_random_orders(np.stack(orders), draws, sources[operator]).astype(np.int32)
            for layer, *orders in zip(layers, *ranked, strict=True)
        }
        heads = ctx.results[Circuit].keeps(operator, s.layers, s.heads)
        return ctx.results[MeanActivations], heads, by_layer, sizes, ctx.model.positions.final

    n_prompts, n_selected = (sum(map(len, prompts.values())) for prompts in (samples, selected))
    total = len(counts) * (n_selected * len(circuits) + n_prompts * (len(circuits) + draws))
    with ctx.progress.task("topk", total) as advance:
        scores, names = ablation.nested_circuit_scores, list(circuits)
        selection = ablation.growth_curve(ctx, "selection", scores, selected, counts, arguments, 0, advance, names)
        curve = ablation.growth_curve(ctx, "curve", scores, samples, counts, arguments, draws, advance, names)
    tops, compared, measured = [], [], {}
    ks: dict[str, int] = {}
    for operator in samples:
        means = ablation.curve_means(curve, operator)
        for circuit, ranking in circuits.items():
            smallest = max(ablation.smallest_on_plateau(selection, operator, settings.sufficient, circuit), counts[1])
            k = smallest if fixed is None else fixed[operator]
            rows = curve[(curve.operator == operator) & (curve.circuit == circuit) & (curve["size"] == k)]
            compared.append(rows.assign(ranking=ranking, k=k)[TopK.columns("rankings")])
            ks.setdefault(operator, k)  # the ranking in use comes first
        ranked = rankings[operator, ablation.FOUND]
        ranked = ranked.assign(rank=ranked.groupby("layer").cumcount())
        tops.append(ranked[ranked["rank"] < ks[operator]][TopK.columns("top")])
        floor = {f"floor_{measure}": means[0][measure] for measure in ablation.MEASURES}
        measured[operator] = {**means[ks[operator]], **floor}
    excluded = {o: len(prompts) - measured[o]["faithfulness"].n for o, prompts in samples.items()}
    by_ranking, top = (pd.concat(each, ignore_index=True) for each in (compared, tops))
    return TopK(curve, selection, summary_table(measured), by_ranking, top, ks, settings.ranking, s.neurons, excluded)


def neuron_counts(total: int, fixed: Iterable[int] = ()) -> list[int]:
    """Sizes to try: 0, about ten per decade, all neurons, and the fixed sizes."""
    steps = {int(step * 10**power + 0.5) for power in range(len(str(total))) for step in SIZES_PER_DECADE}
    return sorted({0, total, *(n for n in steps if n < total), *fixed})

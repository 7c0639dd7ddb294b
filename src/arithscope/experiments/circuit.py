"""The circuit of each operator: all MLPs, and the fewest top-ranked heads that suffice.

1. Rank heads by their effect in activation patching.
2. Keep the first n heads and mean-ablate all others. On the selection prompts, choose the smallest n whose faithfulness is
   within 0.02 of the best (Section 2.1, Appendix A), and unless as in the paper, its accuracy within 0.1.
3. Report the circuits of all sizes, and random ones as large, on the evaluation prompts.
4. Evaluate the union of all operators' circuits, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common import ablation, schema
from arithscope.experiments.common.result import AVERAGE, Result, by_operator, summary_table
from arithscope.experiments.common.samples import evaluation_prompts, selection_prompts
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.localize import Localization, component_name
from arithscope.experiments.means import MeanActivations
from arithscope.prompts import Prompts, random_source
from arithscope.utils.progress import Advance

EVERY_SIZE = 64  # up to this size every number of heads is tried; beyond it, sizes grow by a tenth


@dataclass(frozen=True, repr=False)
class Circuit(Result):
    """The chosen circuits, and their curves."""

    curve: pd.DataFrame = schema.table(
        "Circuits of the first n heads, and of n random heads, on the evaluation prompts.", *ablation.CURVE
    )
    selection: pd.DataFrame = schema.table("The same on the selection prompts, without random heads.", *ablation.CURVE)
    heads: pd.DataFrame = schema.table(
        "Every head, by descending effect.",
        schema.OPERATOR,
        schema.integer("rank", "rank of the head, from 0"),
        *schema.HEAD_KEY[1:],
        schema.text("position", "position at which patching the head has its largest effect"),
        *schema.EFFECT_COLUMNS,
        schema.boolean("in_circuit", "whether the head is in the operator's circuit"),
    )
    table: pd.DataFrame = schema.table("Measures of the chosen circuits, and under `random_…` of random ones as large.")
    union: pd.DataFrame = schema.table("Measures of the union of all operators' circuits.")
    excluded: dict[str, int] = schema.value("prompts without a faithfulness: the empty circuit is as good as the model")

    @property
    def operators(self) -> list[str]:
        return [str(o) for o in self.heads.operator.unique()]

    def kept(self, operator: str) -> pd.DataFrame:
        """Rows of `heads` that are in an operator's circuit, by descending effect."""
        return self.heads[(self.heads.operator == operator) & self.heads.in_circuit]

    def chosen(self, operator: str) -> list[tuple[int, int]]:
        """The circuit's heads as (layer, head), by descending effect."""
        rows = self.kept(operator)
        return [(int(layer), int(head)) for layer, head in zip(rows.layer, rows["head"], strict=True)]

    def shared(self) -> list[tuple[int, int]]:
        """Heads in the circuit of every operator, sorted by layer."""
        return sorted(set.intersection(*(set(self.chosen(o)) for o in self.operators)))

    def in_any(self) -> list[tuple[int, int]]:
        """Heads in the circuit of any operator, sorted by layer: the union circuit."""
        return sorted({head for operator in self.operators for head in self.chosen(operator)})

    def keeps(self, operator: str, layers: int, heads: int) -> NDArray[np.bool_]:
        """Mask of the heads that the circuit keeps: [1, layers, heads]."""
        keep, rows = np.zeros((1, layers, heads), dtype=np.bool_), self.kept(operator)
        keep[0, rows.layer, rows["head"]] = True
        return keep

    def summary(self) -> dict[str, Any]:
        out = by_operator(self.table)
        for operator in self.operators:
            names = [component_name(*head) for head in self.chosen(operator)]
            out[operator] = {"heads": len(names), **out[operator], "head_names": names}
        for operator, measures in by_operator(self.union).items():
            out[operator] |= {f"union_{measure}": entry for measure, entry in measures.items()}
        out[AVERAGE]["shared_heads"] = [component_name(*head) for head in self.shared()]
        out[AVERAGE]["union_heads"] = len(self.in_any())
        return out


@stage(
    needs=(Accuracy, MeanActivations, Localization),
    reads=("sizes", "seed", "effect", "sufficient"),
    memory=replay_memory,
    paper="2.1, App. A",
)
def circuit(ctx: Context) -> Circuit:
    """Smallest set of attention heads that suffices, by operator."""
    s, draws = ctx.model.sizes, ctx.settings.sizes.draws
    samples, selected = evaluation_prompts(ctx), selection_prompts(ctx)
    counts = head_counts(s.layers * s.heads)
    sources = {operator: random_source(ctx.settings.seed, "circuit", operator) for operator in samples}
    rankings = {o: ctx.results[Localization].ranking(o, ctx.settings.effect) for o in samples}

    def arguments(operator: str, sizes: list[int], draws: int) -> tuple[Any, ...]:
        ranked = (rankings[operator].layer * s.heads + rankings[operator]["head"]).to_numpy()
        orders = ablation.with_random_orders(ranked[None], draws, sources[operator])
        kept = ablation.nested_sets(orders, sizes).unflatten(1, (s.layers, s.heads)).numpy()
        return ctx.results[MeanActivations], kept, {}, None

    n_prompts, n_selected = (sum(map(len, prompts.values())) for prompts in (samples, selected))
    total = len(counts) * (n_selected + n_prompts * (1 + draws)) + n_prompts
    with ctx.progress.task("circuit", total) as advance:
        scores = ablation.circuit_scores
        selection = ablation.growth_curve(ctx, "selection", scores, selected, counts, arguments, 0, advance)
        curve = ablation.growth_curve(ctx, "curve", scores, samples, counts, arguments, draws, advance)
        sizes = {o: ablation.smallest_on_plateau(selection, o, ctx.settings.sufficient) for o in samples}
        union = _union(ctx, samples, rankings, sizes, advance)
    tables, measured, excluded = [], {}, {}
    for operator, prompts in samples.items():
        means = ablation.curve_means(curve, operator)[sizes[operator]]
        rank = np.arange(s.layers * s.heads)
        tables.append(rankings[operator].assign(rank=rank, in_circuit=rank < sizes[operator]))
        measured[operator], excluded[operator] = means, len(prompts) - means["faithfulness"].n
    ranked = pd.concat(tables, ignore_index=True)[Circuit.columns("heads")]
    return Circuit(curve, selection, ranked, summary_table(measured), union, excluded)


def _union(
    ctx: Context,
    samples: Mapping[str, Prompts],
    rankings: Mapping[str, pd.DataFrame],
    sizes: Mapping[str, int],
    advance: Advance,
) -> pd.DataFrame:
    """Measures of the circuit that keeps every head of any operator's circuit."""
    s = ctx.model.sizes
    kept = np.zeros((1, s.layers, s.heads), dtype=np.bool_)
    for operator, ranking in rankings.items():
        kept[0, ranking.layer[: sizes[operator]], ranking["head"][: sizes[operator]]] = True
    means = ctx.results[MeanActivations]
    tasks: list[ablation.Task] = [((means, kept, {}, None), prompts) for prompts in samples.values()]
    scores = ablation.scores_of_tasks(ctx, ablation.circuit_scores, tasks, advance)
    ends = ablation.baselines(ctx, samples)
    measured = {o: ends[o].measure(own)[0] for o, own in zip(samples, scores, strict=True)}
    spans = {operator: baseline.smallest_span for operator, baseline in ends.items()}
    return ctx.confirmed("union", summary_table(measured), smallest_span=spans)


def head_counts(total: int) -> list[int]:
    """Sizes to try: every one up to EVERY_SIZE, then in steps of a tenth, and all heads."""
    counts = list(range(min(total, EVERY_SIZE) + 1))
    while counts[-1] < total:
        counts.append(min(total, counts[-1] + -(-counts[-1] // 10)))
    return counts

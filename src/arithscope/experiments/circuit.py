"""The circuit of each operator: all MLPs, and the fewest top-ranked heads that reach the faithfulness plateau.

1. Rank heads by their effect in activation patching.
2. Evaluate nested sets of heads (the first n), and random sets of the same sizes, with all other heads mean-ablated.
3. Choose the smallest n whose faithfulness is within 0.02 of the best (Section 2.1, Appendix A).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common import ablation, schema
from arithscope.experiments.common.result import AVERAGE, Result, by_operator, summary_table
from arithscope.experiments.common.samples import evaluation_prompts
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.localize import Localization, component_name
from arithscope.experiments.means import MeanActivations
from arithscope.prompts import random_source

EVERY_SIZE = 64  # up to this size every number of heads is tried; beyond it, sizes grow by a tenth


@dataclass(frozen=True, repr=False)
class Circuit(Result):
    """The chosen circuits, and the curves they were chosen from."""

    curve: pd.DataFrame = schema.table("Circuits of the first n heads, and of n random heads.", *ablation.CURVE)
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
        out[AVERAGE]["shared_heads"] = [component_name(*head) for head in self.shared()]
        return out


@stage(
    needs=(Accuracy, MeanActivations, Localization),
    reads=("sizes", "seed", "effect"),
    memory=replay_memory,
    paper="2.1, App. A",
)
def circuit(ctx: Context) -> Circuit:
    """Smallest set of attention heads whose faithfulness reaches the plateau, by operator."""
    s, draws, samples = ctx.model.sizes, ctx.settings.sizes.draws, evaluation_prompts(ctx)
    counts = head_counts(s.layers * s.heads)
    sources = {operator: random_source(ctx.settings.seed, "circuit", operator) for operator in samples}
    rankings = {o: ctx.results[Localization].ranking(o, ctx.settings.effect) for o in samples}

    def arguments(operator: str, sizes: list[int]) -> tuple[Any, ...]:
        ranked = (rankings[operator].layer * s.heads + rankings[operator]["head"]).to_numpy()
        orders = ablation.with_random_orders(ranked, draws, sources[operator])
        kept = ablation.nested_sets(orders, sizes).unflatten(1, (s.layers, s.heads)).numpy()
        return ctx.results[MeanActivations], kept, {}, None

    total = sum(map(len, samples.values())) * len(counts) * (1 + draws)
    with ctx.progress.task("circuit", total) as advance:
        scores = ablation.circuit_scores
        curve = ablation.growth_curve(ctx, "circuit", scores, samples, counts, arguments, advance)
    tables, measured, excluded = [], {}, {}
    for operator, prompts in samples.items():
        means = ablation.curve_means(curve, operator)
        size = ablation.smallest_on_plateau(means)
        rank = np.arange(s.layers * s.heads)
        tables.append(rankings[operator].assign(rank=rank, in_circuit=rank < size))
        measured[operator], excluded[operator] = means[size], len(prompts) - means[size]["faithfulness"].n
    ranked = pd.concat(tables, ignore_index=True)[Circuit.columns("heads")]
    return Circuit(curve, ranked, summary_table(measured), excluded)


def head_counts(total: int) -> list[int]:
    """Sizes to try: every one up to EVERY_SIZE, then in steps of a tenth, and all heads."""
    counts = list(range(min(total, EVERY_SIZE) + 1))
    while counts[-1] < total:
        counts.append(min(total, counts[-1] + -(-counts[-1] // 10)))
    return counts

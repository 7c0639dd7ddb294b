"""The first MLP: which neurons matter at op1, operator and op2, how few suffice, and what numbers they respond to (Appendix B).

1. Patch each neuron at each of the three positions with its counterfactual activation; rank neurons by their mean effect.
2. Keep a growing share of the best neurons in the operator's circuit, at all positions, and mean-ablate the others.
3. Read each neuron's activation at op1 for every number.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common import ablation, schema
from arithscope.experiments.common.result import Result, by_operator, of_operator, summary_table
from arithscope.experiments.common.samples import Split, batches, splits
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.localize import effect_tables
from arithscope.experiments.means import MeanActivations, Singles
from arithscope.experiments.neurons import neuron_effects
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, random_source
from arithscope.utils.executor import split_evenly
from arithscope.utils.progress import Advance

POSITIONS = ("op1", "operator", "op2")
ALL_POSITIONS = "mean"  # value of the column `position` for the average over positions
SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)  # of the neurons to keep
NEURONS_IN_UNIT = 4096
VERIFIED_NEURONS = 12  # neurons of each operator that `verify` patches again


@dataclass(frozen=True, repr=False)
class FirstMlp(Result):
    """Effects of the first MLP's neurons, and circuits that keep only some of them."""

    effects: pd.DataFrame = schema.table(
        "Effect of patching each neuron at each position, and the mean effect over positions.",
        schema.OPERATOR,
        schema.text("position", "`op1`, `operator`, `op2`, or `mean`: averaged over the three", key=True),
        schema.NEURON,
        schema.EFFECT_MEASURE,
        *schema.EFFECT_COLUMNS,
    )
    curve: pd.DataFrame = schema.table(
        "The circuit with only the best neurons of the first MLP, or as many random ones.",
        *ablation.CURVE,
        schema.number("share", "share of the neurons that is kept"),
    )
    table: pd.DataFrame = schema.table("Measures at the smallest share that suffices, and with 1 % of the neurons.")
    tuning: Singles = schema.array("activation of each neuron at op1, for each number", "float32", "neurons, numbers")
    smallest_share: dict[str, float] = schema.value("smallest share within 0.02 of the best faithfulness, by operator")

    def strongest(self, operator: str, measure: str = "probability") -> NDArray[np.int64]:
        """Neurons by descending effect, averaged over positions."""
        return _strongest(self.effects, operator, measure)

    def summary(self) -> dict[str, Any]:
        out = by_operator(self.table)
        for operator, share in self.smallest_share.items():
            out[operator]["share_that_suffices"] = share
        return out


@stage(
    needs=(Accuracy, MeanActivations, Circuit),
    reads=("max_operand", "sizes", "seed", "effect"),
    memory=replay_memory,
    paper="App. B",
)
def mlp0(ctx: Context) -> FirstMlp:
    """Effects of the first MLP's neurons at the operands and the operator, and the smallest share of them that suffices."""
    s, draws, samples = ctx.model.sizes, ctx.settings.sizes.draws, splits(ctx)
    evaluation = {operator: split.evaluation for operator, split in samples.items()}
    sources = {operator: random_source(ctx.settings.seed, "mlp0", operator) for operator in samples}
    # Shares by number of neurons kept. In a small MLP several shares may give the same number; the smallest wins.
    shares = {max(round(share * s.neurons), int(share > 0)): share for share in reversed(SHARES)}
    counts = sorted(shares)

    def arguments(operator: str, sizes: list[int]) -> tuple[Any, ...]:
        best = _strongest(effects, operator, ctx.settings.effect)
        orders = ablation.with_random_orders(best, draws, sources[operator]).astype(np.int32)
        heads = ctx.results[Circuit].keeps(operator, s.layers, s.heads)
        return ctx.results[MeanActivations], heads, {0: orders}, sizes, None

    first = ctx.settings.sizes.first_mlp
    patched = s.neurons * len(POSITIONS) * sum(min(len(split.discovery), first) for split in samples.values())
    ablated = len(counts) * (1 + draws) * sum(map(len, evaluation.values()))
    with ctx.progress.task("mlp0", patched + ablated) as advance:
        effects = _effects(ctx, samples, advance)
        scores = ablation.nested_circuit_scores
        curve = ablation.growth_curve(ctx, "mlp0", scores, evaluation, counts, arguments, advance)
        [tuning] = ctx.map(number_tuning, [(ctx.settings.max_operand,)], advance)
    measured, smallest = {}, {}
    for operator in samples:
        means = ablation.curve_means(curve, operator)
        size, one_percent = ablation.smallest_on_plateau(means), means[max(round(0.01 * s.neurons), 1)]
        smallest[operator] = shares[size]
        measured[operator] = {
            **{measure: means[size][measure] for measure in ("faithfulness", "accuracy")},
            "faithfulness_of_1_percent": one_percent["faithfulness"],
            "random_1_percent": one_percent["random_faithfulness"],
        }
    curve = curve.assign(share=curve["size"] / s.neurons)
    return FirstMlp(effects, curve, summary_table(measured), ctx.confirmed("tuning", tuning), smallest)


def _effects(ctx: Context, samples: dict[str, Split], advance: Advance) -> pd.DataFrame:
    """Effects of patching each neuron at each position, by operator."""
    some, positions = slice(0, ctx.settings.sizes.first_mlp), [ctx.model.positions.named()[p] for p in POSITIONS]
    chosen = {o: ctx.sample(ctx.model.sizes.neurons, VERIFIED_NEURONS, "mlp0", o) for o in samples}
    chunks = {operator: split_evenly(len(neurons), NEURONS_IN_UNIT) for operator, neurons in chosen.items()}
    groups = [
        [(split.discovery[some], split.counterfactuals[some], [0], chosen[o][None, c], at) for c in chunks[o]]
        for o, split in samples.items()
        for at in positions
    ]
    parts = (np.concatenate(own, axis=1)[0] for own in ctx.map_groups(neuron_effects, groups, advance))
    tables: list[pd.DataFrame] = []
    for o, neurons in chosen.items():
        values = np.stack([next(parts) for _ in positions])
        values = np.concatenate([values, values.mean(0, keepdims=True)])  # mean over positions, after these
        position = np.repeat([*POSITIONS, ALL_POSITIONS], len(neurons))
        columns = {"operator": o, "position": position, "neuron": np.tile(neurons.astype(np.int32), len(values))}
        tables += effect_tables(columns, values)
    return ctx.confirmed("effects", pd.concat(tables, ignore_index=True))


def _strongest(effects: pd.DataFrame, operator: str, measure: str) -> NDArray[np.int64]:
    rows = of_operator(effects, operator, measure)
    rows = rows[rows.position == ALL_POSITIONS]
    return rows.sort_values(["value", "neuron"], ascending=[False, True]).neuron.to_numpy()


@torch.no_grad()
def number_tuning(model: Model, max_operand: int, *, advance: Advance) -> Singles:
    """Unit of work: activations of the first MLP at op1, [neurons, numbers]. They depend on the number alone."""
    numbers = np.arange(max_operand + 1)
    operator = np.full_like(numbers, OPERATORS.index(model.encoder.operators[0]))
    at, activations = model.positions.op1, []
    for _, batch in batches(model, Prompts(numbers, operator, np.zeros_like(numbers)), 0):
        with capturing(model, neurons=[0], keep=lambda x: x[:, at].float().cpu()) as seen:
            model.logits(model.encode(batch))
        activations.append(seen.neurons[0])
    return torch.cat(activations).T.contiguous().numpy()

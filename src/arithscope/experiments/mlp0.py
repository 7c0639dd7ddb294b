"""The first MLP: which of its neurons matter at op1, operator and op2, how few suffice, and what numbers they respond to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common.ablation import (
    Asked,
    Judging,
    baselines,
    beside_draws,
    curve_table,
    nested_circuit_scores,
    scores_by_prompts,
    smallest_on_plateau,
)
from arithscope.experiments.common.result import Result, by_operator, summary_table
from arithscope.experiments.common.samples import SampleSizes, batches, splits
from arithscope.experiments.localize import effect_statistics
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.neurons import neuron_effects
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, random_source
from arithscope.stats.measures import EFFECTS, Mean
from arithscope.utils.executor import LOCAL, Executor, split_evenly
from arithscope.utils.progress import Advance, Progress

POSITIONS = ("op1", "operator", "op2")
SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)  # of the neurons that are kept
NEURONS_IN_UNIT = 4096
ALL_POSITIONS = "mean"  # stands in the column `position` for the average over positions


@dataclass(frozen=True, repr=False)
class FirstMlp(Result):
    """effects: of each neuron at op1, operator and op2, and averaged over the three (`mean`), by which neurons are ranked.
    curve: faithfulness, accuracy and mean probability of the circuit, with all its heads and other MLPs, when only a share of
    the first MLP's neurons is kept: the strongest (`found`), or as many random ones (`random`: mean over draws).
    tuning: activation of each neuron at op1 for each number 0…max operand."""

    effects: pd.DataFrame  # operator, position, neuron, measure, value, low, high, n, median
    curve: pd.DataFrame  # operator, circuit, size, measure, value, low, high, n, share
    table: pd.DataFrame  # operator, measure, value, low, high, n
    tuning: NDArray[np.float32]  # neurons, numbers
    enough: dict[str, float]  # the smallest share within the circuit's tolerance of the plateau

    def strongest(self, operator: str, measure: str = "probability") -> NDArray[np.int64]:
        """Neurons, the strongest first, by their effect averaged over positions."""
        return _strongest(self.effects[self.effects.operator == operator], measure)

    def summary(self) -> dict[str, Any]:
        out: dict[str, Any] = by_operator(self.table)
        for operator, share in self.enough.items():
            out[operator]["share_that_suffices"] = share
        return out


def mlp0(
    model: Model,
    accuracy: Accuracy,
    means: MeanActivations,
    circuit: Circuit,
    max_operand: int,
    sizes: SampleSizes,
    seed: int,
    effect: str,
    judging: Judging,
    progress: Progress,
    executor: Executor = LOCAL,
) -> FirstMlp:
    """Rank the first MLP's neurons on discovery prompts, then keep ever more of them in each operator's circuit."""
    samples = splits(accuracy, sizes, seed)
    size, positions = model.sizes.neurons, [model.positions.named()[p] for p in POSITIONS]
    counts = [max(round(share * size), int(share > 0)) for share in SHARES]
    some, parts_of_mlp = slice(0, sizes.first_mlp), split_evenly(size, NEURONS_IN_UNIT)
    units = [
        (split.discovery[some], split.counterfactuals[some], [0], np.arange(size)[None, b], p)
        for split in samples.values()
        for p in positions
        for b in parts_of_mlp
    ]
    sources = {operator: random_source(seed, "mlp0", operator) for operator in samples}
    effects, curves = [], []
    asked: list[Asked] = []
    measured: dict[str, dict[str, Mean]] = {}
    enough: dict[str, float] = {}
    patched = size * len(POSITIONS) * sum(min(len(s.discovery), sizes.first_mlp) for s in samples.values())
    ablated = len(SHARES) * (1 + sizes.draws) * sum(len(s.evaluation) for s in samples.values())
    with progress.task("mlp0", patched + ablated) as advance:
        parts = iter(executor.map(neuron_effects, model, units, advance))
        for operator, random in sources.items():
            found = np.stack([np.concatenate([next(parts)[0] for _ in parts_of_mlp]) for _ in positions])
            table = pd.concat([_effect_table(operator, m, found[..., i], random) for i, m in enumerate(EFFECTS)])
            effects.append(table)
            orders = np.stack([_strongest(table, effect), *(random.permutation(size) for _ in range(sizes.draws))])
            heads = circuit.keeps(operator, model.sizes.layers, model.sizes.heads).numpy()
            given = (means, heads, {0: orders.astype(np.int32)}, counts, None, judging)
            asked.append((given, samples[operator].evaluation))
        scores = scores_by_prompts(executor, nested_circuit_scores, model, asked, advance)
        scales = baselines(executor, model, means, [split.evaluation for split in samples.values()], judging)
        [tuning] = executor.map(number_tuning, model, [(max_operand,)], advance)
    for (operator, random), scored, scale in zip(sources.items(), scores, scales, strict=True):
        ours, theirs = beside_draws(scale, scored, sizes.draws, random)
        curves.append(curve_table(operator, counts, ours, theirs).assign(share=lambda t: t["size"] / size))
        chosen = smallest_on_plateau(ours)
        enough[operator] = SHARES[chosen]
        measured[operator] = {
            "faithfulness": ours[chosen]["faithfulness"],
            "accuracy": ours[chosen]["accuracy"],
            "faithfulness_of_1_percent": ours[SHARES.index(0.01)]["faithfulness"],
            "random_1_percent": theirs[SHARES.index(0.01)]["faithfulness"],
        }
    ranked, curve = (pd.concat(tables, ignore_index=True) for tables in (effects, curves))
    return FirstMlp(ranked, curve, summary_table(measured), tuning, enough)


@torch.no_grad()
def number_tuning(model: Model, max_operand: int, *, advance: Advance) -> NDArray[np.float32]:
    """A unit: [neurons, numbers], the first MLP's activations at op1. No more than the number, and what precedes every prompt,
    can matter there."""
    numbers = np.arange(max_operand + 1)
    operator = np.full_like(numbers, OPERATORS.index(model.encoder.operators[0]))
    at, found = model.positions.op1, []
    for _, batch in batches(model, Prompts(numbers, operator, np.zeros_like(numbers)), 0):
        with capturing(model, neurons=[0], keep=lambda x: x[:, at].float().cpu()) as seen:
            model.logits(model.encode(batch))
        found.append(seen.neurons[0])
    return torch.cat(found).T.contiguous().numpy()


def _strongest(effects: pd.DataFrame, measure: str) -> NDArray[np.int64]:
    rows = effects[(effects.measure == measure) & (effects.position == ALL_POSITIONS)]
    return rows.sort_values(["value", "neuron"], ascending=[False, True]).neuron.to_numpy()


def _effect_table(
    operator: str, measure: str, values: NDArray[np.float32], random: np.random.Generator
) -> pd.DataFrame:
    """From [positions, neurons, prompts]."""
    values = np.concatenate([values, values.mean(0, keepdims=True)])
    positions, neurons, n = values.shape
    flat = values.reshape(-1, n)
    return pd.DataFrame(
        {
            "operator": operator,
            "position": np.repeat([*POSITIONS, ALL_POSITIONS], neurons),
            "neuron": np.tile(np.arange(neurons, dtype=np.int32), positions),
            "measure": measure,
            **effect_statistics(flat, random),
        }
    )

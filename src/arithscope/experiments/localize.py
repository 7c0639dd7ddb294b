"""Which heads and MLPs matter, and where: each is patched, at each position, with a counterfactual's activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.result import Result, strongest
from arithscope.experiments.common.samples import SampleSizes, batches, splits
from arithscope.models.engine.replay import Reduce, record, replay
from arithscope.models.hooks import capturing, edit
from arithscope.models.model import Model, Site
from arithscope.prompts import OPERATORS, Prompts, random_source
from arithscope.stats.measures import EFFECTS, bootstrap_intervals, effects
from arithscope.utils.executor import LOCAL, Executor, split_evenly
from arithscope.utils.progress import Advance, Progress

MLP = -1  # stands in the column `head` for the layer's MLP
LAYERS_IN_UNIT = 16


@dataclass(frozen=True, repr=False)
class Localization(Result):
    """effects: for each operator, position and component (head MLP = −1 is the whole MLP), and each way of measuring an
    effect (`probability` is the paper's), its mean over prompts with interval, and its median.
    prompts: the discovery prompts and the counterfactuals they were patched from."""

    effects: pd.DataFrame  # operator, position, layer, head, measure, value, low, high, n, median
    prompts: pd.DataFrame  # operator, op1, op2, answer, and the same of the counterfactual

    def ranking(self, operator: str, measure: str) -> pd.DataFrame:
        """Heads of largest effect first. A head counts with the position at which its mean effect is largest."""
        rows = self._rows(operator, measure)
        order = ["value", "layer", "head", "position"]
        best = rows[rows["head"] != MLP].sort_values(order, ascending=[False, True, True, True])
        return best.drop_duplicates(["layer", "head"]).reset_index(drop=True)

    def summary(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for operator in self.effects.operator.unique():
            rows = self._rows(operator, "probability")
            is_mlp = rows["head"] == MLP
            out[str(operator)] = {
                "strongest_head": strongest(rows[~is_mlp], _placed_name),
                "strongest_mlp": strongest(rows[is_mlp], _placed_name),
            }
        return out

    def _rows(self, operator: str, measure: str) -> pd.DataFrame:
        return self.effects[(self.effects.operator == operator) & (self.effects.measure == measure)]


def component_name(layer: int, head: int) -> str:
    return f"MLP{layer}" if head == MLP else f"L{layer}H{head}"


def _placed_name(row: Any) -> str:
    return f"{component_name(row.layer, row['head'])} at {row.position}"


def localize(
    model: Model, accuracy: Accuracy, sizes: SampleSizes, seed: int, progress: Progress, executor: Executor = LOCAL
) -> Localization:
    """Patch every head and MLP at the positions op1, operator, op2 and last, operator by operator."""
    samples = splits(accuracy, sizes, seed)
    for operator in [o for o in accuracy.operators if o not in samples]:
        progress.note(f"{operator} is left out: fewer than two of its prompts are answered correctly")
    s, positions = model.sizes, list(model.positions.named().values())
    some = [range(s.layers)[block] for block in split_evenly(s.layers, LAYERS_IN_UNIT)]
    units = [
        (x.discovery, x.counterfactuals, p, layers) for x in samples.values() for p in positions for layers in some
    ]
    per_prompt = s.layers * (s.heads + 1) * len(positions)
    with progress.task("localize", per_prompt * sum(len(split.discovery) for split in samples.values())) as advance:
        parts = iter(executor.map(component_effects, model, units, advance))
    tables, prompts = [], []
    for operator, split in samples.items():
        found = np.stack([np.concatenate([next(parts) for _ in some]) for _ in positions])
        random = random_source(seed, "localize", operator)
        tables += [_table(model, operator, m, found[..., i], random) for i, m in enumerate(EFFECTS)]
        prompts.append(prompt_table(operator, split.discovery, split.counterfactuals))
    return Localization(pd.concat(tables, ignore_index=True), pd.concat(prompts, ignore_index=True))


def component_effects(
    model: Model, prompts: Prompts, others: Prompts, position: int, layers: Sequence[int], *, advance: Advance
) -> NDArray[np.float64]:
    """A unit: effects of some layers' components at a position, [layers, heads and the MLP behind them, prompts, measures]."""
    s = model.sizes
    found = np.empty((len(layers), s.heads + 1, len(prompts), len(EFFECTS)))
    # Variant by variant one head is patched, and in the last variant the MLP.
    which_head = torch.eye(s.heads + 1, s.heads, dtype=torch.bool)
    which_neurons = (torch.arange(s.heads + 1) == s.heads)[:, None].expand(-1, s.neurons)
    for rows, batch in batches(model, prompts, position):
        with torch.no_grad(), capturing(model, heads=layers, neurons=layers, keep=lambda x: x[:, [position]]) as seen:
            model.logits(model.encode(others[rows]))
        reduce = effect_reducer(model, batch, others[rows], advance)
        tape = record(model, model.encode(batch), position)
        for i, layer in enumerate(layers):
            patches = [
                edit(model, Site.HEADS, layer, which_head, positions=position, values=seen.heads[layer]),
                edit(model, Site.NEURONS, layer, which_neurons, positions=position, values=seen.neurons[layer]),
            ]
            found[i][:, rows] = replay(tape, patches, reduce).cpu().numpy()
    return found


def effect_reducer(model: Model, prompts: Prompts, others: Prompts, advance: Callable[[int], None]) -> Reduce:
    """From logits to effects by every measure: [variants, prompts, measures]."""
    answer, other = model.answers(prompts), model.answers(others)

    def reduce(before: Tensor, after: Tensor) -> Tensor:
        advance(after.shape[0] * after.shape[1])
        found = effects(before, after, answer, other)
        return torch.stack([found[measure] for measure in EFFECTS], dim=-1)

    return reduce


def _table(
    model: Model, operator: str, measure: str, values: NDArray[np.float64], random: np.random.Generator
) -> pd.DataFrame:
    positions, layers, components, n = values.shape
    flat = values.reshape(-1, n)
    position, layer, head = (i.ravel() for i in np.indices((positions, layers, components)))
    names = np.array(list(model.positions.named()))
    return pd.DataFrame(
        {
            "operator": operator,
            "position": names[position],
            "layer": layer.astype(np.int32),
            "head": np.where(head == components - 1, MLP, head).astype(np.int32),
            "measure": measure,
            **effect_statistics(flat, random),
        }
    )


def effect_statistics(values: NDArray[np.floating[Any]], random: np.random.Generator) -> pd.DataFrame:
    """For each row of [rows, prompts] the mean with its interval, and the median: value, low, high, n, median."""
    value, low, high = bootstrap_intervals(values, random)
    columns = {"value": value, "low": low, "high": high, "n": values.shape[1], "median": np.median(values, axis=1)}
    return pd.DataFrame(columns)


def prompt_table(operator: str, prompts: Prompts, others: Prompts) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "operator": operator,
            "op1": prompts.op1,
            "op2": prompts.op2,
            "answer": prompts.answer,
            "counterfactual_operator": np.array(OPERATORS)[others.operator],
            "counterfactual_op1": others.op1,
            "counterfactual_op2": others.op2,
            "counterfactual_answer": others.answer,
        }
    )

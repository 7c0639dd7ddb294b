"""Activation patching: which heads and MLPs matter, and at which position (Section 2.1).

1. Run the counterfactual prompt (corrupted run) and keep its activations.
2. Run the clean prompt with one head, or one whole MLP, at one position replaced by the counterfactual's activation.
3. Compare the probabilities of both answers with those of the clean run (Eq. 1); average over the discovery prompts.

Steps 2 and 3 are done for every head and MLP of every layer at op1, operator, op2 and last.
"""

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
from arithscope.experiments.common import schema
from arithscope.experiments.common.memory import replay_memory
from arithscope.experiments.common.result import Result, strongest
from arithscope.experiments.common.samples import batches, splits
from arithscope.experiments.common.stage import Context, stage
from arithscope.models.engine.replay import Reduce
from arithscope.models.hooks import capturing, edit
from arithscope.models.model import Model, Site
from arithscope.prompts import OPERATORS, Prompts, random_source
from arithscope.stats.effects import EFFECTS, effects
from arithscope.stats.intervals import bootstrap_intervals
from arithscope.utils.executor import split_evenly
from arithscope.utils.progress import Advance

MLP = -1  # stands in the column `head` for the layer's whole MLP
LAYERS_IN_UNIT = 16
VERIFIED_UNITS = 2  # layers at a position, of each operator, that `verify` patches again


@dataclass(frozen=True, repr=False)
class Localization(Result):
    """Effects of activation patching, and the prompts they were measured on."""

    effects: pd.DataFrame = schema.table(
        "Effect of patching each component at each position, by every effect measure (`probability` is the paper's).",
        schema.OPERATOR,
        schema.POSITION,
        schema.LAYER,
        schema.integer("head", "attention head; −1 for the whole MLP", key=True),
        schema.EFFECT_MEASURE,
        *schema.EFFECT_COLUMNS,
    )
    prompts: pd.DataFrame = schema.table(
        "The discovery prompts, and the counterfactuals they were patched from.",
        schema.OPERATOR,
        *(schema.integer(name, "of the clean prompt", key=True) for name in ("op1", "op2")),
        schema.number("answer", "of the clean prompt"),
        schema.text("counterfactual_operator", "of the counterfactual"),
        *(schema.integer(f"counterfactual_{name}", "of the counterfactual") for name in ("op1", "op2")),
        schema.number("counterfactual_answer", "of the counterfactual"),
    )

    def ranking(self, operator: str, measure: str) -> pd.DataFrame:
        """Heads in order of falling effect. A head counts with the position at which its mean effect is largest."""
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
                "strongest_head": strongest(rows[~is_mlp], _name_at_position),
                "strongest_mlp": strongest(rows[is_mlp], _name_at_position),
            }
        return out

    def _rows(self, operator: str, measure: str) -> pd.DataFrame:
        return self.effects[(self.effects.operator == operator) & (self.effects.measure == measure)]


def component_name(layer: int, head: int) -> str:
    """`L3H2` for a head, `MLP3` for an MLP."""
    return f"MLP{layer}" if head == MLP else f"L{layer}H{head}"


def _name_at_position(row: Any) -> str:
    return f"{component_name(row.layer, row['head'])} at {row.position}"


@stage(needs=(Accuracy,), reads=("sizes", "seed"), memory=replay_memory, paper="2.1")
def localize(ctx: Context) -> Localization:
    """Activation patching of every head and MLP at every position, by operator."""
    samples, model = splits(ctx), ctx.model
    for operator in [o for o in ctx.results[Accuracy].operators if o not in samples]:
        ctx.progress.note(f"{operator} is left out: fewer than two of its prompts are answered correctly")
    positions, layers = model.positions.named(), model.sizes.layers
    patched = {
        operator: _places(ctx, operator, list(positions), layers) for operator in samples
    }  # by operator: position and layers of each unit
    units = [
        (samples[operator].discovery, samples[operator].counterfactuals, positions[position], group)
        for operator, places in patched.items()
        for position, group in places
    ]
    total = sum(len(prompts) * len(group) * (model.sizes.heads + 1) for prompts, _, _, group in units)
    with ctx.progress.task("localize", total) as advance:
        parts = iter(ctx.map(component_effects, units, advance))
    tables = [
        _effect_table(operator, places, [next(parts) for _ in places], ctx.settings.seed)
        for operator, places in patched.items()
    ]
    prompts = [_prompt_table(o, split.discovery, split.counterfactuals) for o, split in samples.items()]
    whole = ctx.confirmed("effects", pd.concat(tables, ignore_index=True))
    return Localization(whole, pd.concat(prompts, ignore_index=True))


def _places(ctx: Context, operator: str, positions: Sequence[str], layers: int) -> list[tuple[str, Sequence[int]]]:
    """Positions and layers of an operator's units of work."""
    chosen = ctx.sample(len(positions) * layers, VERIFIED_UNITS, "localize", operator)
    if len(chosen) < len(positions) * layers:
        return [(positions[i // layers], [int(i % layers)]) for i in chosen]
    return [(p, range(layers)[chunk]) for p in positions for chunk in split_evenly(layers, LAYERS_IN_UNIT)]


def component_effects(
    model: Model, prompts: Prompts, counterfactuals: Prompts, position: int, layers: Sequence[int], *, advance: Advance
) -> NDArray[np.float64]:
    """Unit of work: effects of patching each head, and the MLP, of some layers: [layers, heads + 1, prompts, measures]."""
    s = model.sizes
    found = np.empty((len(layers), s.heads + 1, len(prompts), len(EFFECTS)))
    # Variant i patches head i; the last variant patches the MLP.
    which_head = torch.eye(s.heads + 1, s.heads, dtype=torch.bool)
    which_neurons = (torch.arange(s.heads + 1) == s.heads)[:, None].expand(-1, s.neurons)
    for rows, batch in batches(model, prompts, position):
        corrupted = counterfactuals[rows]
        with torch.no_grad(), capturing(model, heads=layers, neurons=layers, keep=lambda x: x[:, [position]]) as seen:
            model.logits(model.encode(corrupted))
        reduce = effect_reducer(model, batch, corrupted, advance)
        tape = model.engine.record(model, model.encode(batch), position)
        for i, layer in enumerate(layers):
            patches = [
                edit(model, Site.HEADS, layer, which_head, positions=position, values=seen.heads[layer]),
                edit(model, Site.NEURONS, layer, which_neurons, positions=position, values=seen.neurons[layer]),
            ]
            found[i][:, rows] = model.engine.replay(tape, patches, reduce).cpu().numpy()
    return found


def effect_reducer(model: Model, prompts: Prompts, counterfactuals: Prompts, advance: Callable[[int], None]) -> Reduce:
    """Reduces logits to effects by every measure: [variants, prompts, measures]."""
    answer, corrupted_answer = model.answers(prompts), model.answers(counterfactuals)

    def reduce(clean: Tensor, patched: Tensor) -> Tensor:
        advance(patched.shape[0] * patched.shape[1])
        by_measure = effects(clean, patched, answer, corrupted_answer)
        return torch.stack([by_measure[measure] for measure in EFFECTS], dim=-1)

    return reduce


def effect_statistics(values: NDArray[np.floating[Any]], random: np.random.Generator) -> pd.DataFrame:
    """Mean with interval, and median, of each row of [rows, prompts]: value, low, high, n, median."""
    value, low, high = bootstrap_intervals(values, random)
    columns = {"value": value, "low": low, "high": high, "n": values.shape[1], "median": np.median(values, axis=1)}
    return pd.DataFrame(columns)


def _effect_table(
    operator: str, places: Sequence[tuple[str, Sequence[int]]], parts: Sequence[NDArray[np.float64]], seed: int
) -> pd.DataFrame:
    """Statistics of an operator's effects. Resamples are the same for all components, so a sample has the same intervals."""
    random = random_source(seed, "localize", operator)
    values = np.concatenate(parts)  # layers of all places, heads + 1, prompts, measures
    components = values.shape[1]
    at = [(position, layer) for position, layers in places for layer in layers]
    head = np.append(np.arange(components - 1), MLP)
    columns = {
        "operator": operator,
        "position": np.repeat([position for position, _ in at], components),
        "layer": np.repeat(np.array([layer for _, layer in at], dtype=np.int32), components),
        "head": np.tile(head.astype(np.int32), len(at)),
    }
    tables = []
    for i, measure in enumerate(EFFECTS):
        statistics = effect_statistics(values[..., i].reshape(-1, values.shape[2]), random)
        tables.append(pd.DataFrame({**columns, "measure": measure, **statistics}))
    return pd.concat(tables, ignore_index=True)


def _prompt_table(operator: str, prompts: Prompts, counterfactuals: Prompts) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "operator": operator,
            "op1": prompts.op1,
            "op2": prompts.op2,
            "answer": prompts.answer,
            "counterfactual_operator": np.array(OPERATORS)[counterfactuals.operator],
            "counterfactual_op1": counterfactuals.op1,
            "counterfactual_op2": counterfactuals.op2,
            "counterfactual_answer": counterfactuals.answer,
        }
    )

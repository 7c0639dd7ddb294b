"""Activation patching: which heads and MLPs matter, and at which position (Section 2.1).

1. Run the counterfactual prompt (corrupted run) and keep its activations.
2. Run the clean prompt with one head, or one whole MLP, at one position replaced by the counterfactual's activation.
3. Compare the probabilities of both answers with those of the clean run (Eq. 1); average over the discovery prompts.

Steps 2 and 3 are done for every head and MLP of every layer at op1, operator, op2 and last. Where answers have several steps,
each pass is read at all of them that patch the same prompts (`localize_steps`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common import schema
from arithscope.experiments.common.ranking import rounded
from arithscope.experiments.common.result import Result, of_operator, strongest
from arithscope.experiments.common.samples import Places, Split, batches, places_of_units, splits
from arithscope.experiments.common.shared_steps import of_step, shared_steps
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.models.engine.replay import Reduce
from arithscope.models.hooks import capturing, edit
from arithscope.models.model import Model, Site
from arithscope.prompts import OPERATORS, Prompts
from arithscope.stats.effects import EFFECTS, effects
from arithscope.stats.intervals import t_intervals
from arithscope.utils.executor import Unit
from arithscope.utils.progress import Advance

MLP = -1  # value of the column `head` for the layer's whole MLP
LAYERS_IN_UNIT = 16
VERIFIED_UNITS = 2  # layers at a position, of each operator, that `verify` patches again


_EFFECTS = (
    schema.POSITION,
    schema.LAYER,
    schema.integer("head", "attention head; −1 for the whole MLP", key=True),
    schema.EFFECT_MEASURE,
    *schema.EFFECT_COLUMNS,
)


@dataclass(frozen=True, repr=False)
class SharedLocalization(Result):
    """Effects of activation patching at answer steps that patch the same prompts; their stage `localize` takes them over."""

    effects: pd.DataFrame = schema.table(
        "Effect of patching each component at each position on each answer step.",
        schema.OPERATOR,
        schema.STEP,
        *_EFFECTS,
    )

    def summary(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, repr=False)
class Localization(Result):
    """Effects of activation patching, and the prompts they were measured on."""

    effects: pd.DataFrame = schema.table(
        "Effect of patching each component at each position, by every effect measure (`probability` is the paper's).",
        schema.OPERATOR,
        *_EFFECTS,
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
        """Heads by descending effect: each head's mean effect at the position where it is largest."""
        rows = of_operator(self.effects, operator, measure)
        rows = rows.assign(by=rounded(rows.value))
        order, ascending = ["by", "layer", "head", "position"], [False, True, True, True]
        best = rows[rows["head"] != MLP].sort_values(order, ascending=ascending)
        return best.drop_duplicates(["layer", "head"]).drop(columns="by").reset_index(drop=True)

    def summary(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for operator in self.effects.operator.unique():
            rows = of_operator(self.effects, operator, "probability")
            is_mlp = rows["head"] == MLP
            for name, which in (("strongest_head", ~is_mlp), ("strongest_mlp", is_mlp)):
                best = strongest(rows[which], lambda row: f"{component_name(row.layer, row['head'])} at {row.position}")
                out.setdefault(str(operator), {})[name] = best
        return out


def component_name(layer: int, head: int) -> str:
    """`L3H2` for a head, `MLP3` for an MLP."""
    return f"MLP{layer}" if head == MLP else f"L{layer}H{head}"


@stage(needs=(WholeAnswers,), reads=("operators", "sizes", "seed"), memory=replay_memory, joins_steps=True, paper="2.1")
def localize_steps(ctx: Context) -> SharedLocalization:
    """Activation patching for all answer steps that patch the same prompts: each pass is read at every step."""
    shared, heads = shared_steps(ctx), ctx.model.sizes.heads
    patched: dict[str, list[tuple[tuple[str, Sequence[int]], list[int]]]] = {}  # places, and the steps they are read at
    groups = []
    for operator, together in shared.items():
        positions, last = together.model.positions.named(), together.steps[-1]
        places = places_of_units(ctx, LAYERS_IN_UNIT, VERIFIED_UNITS, "localize", operator, at=together.model)
        patched[operator] = [(place, together.read_at(positions[place[0]])) for place in places]
        prompts = together.split.discovery, together.split.counterfactuals
        groups.append([(*prompts, positions[p], layers, last - r[0] + 1, last) for (p, layers), r in patched[operator]])
    with ctx.progress.task("localize_steps", _passes(ctx, groups)) as advance:
        parts = ctx.map_groups(component_effects, groups, advance)
    tables = [SharedLocalization.frame("effects", [])]
    for operator, found in zip(patched, parts, strict=True):
        for step in shared[operator].steps:
            read = [(place, x, steps) for (place, steps), x in zip(patched[operator], found, strict=True)]
            own = [(place, x[..., step - steps[0], :]) for place, x, steps in read if step in steps]
            if own:
                columns = {"operator": operator, "step": step, **_component_columns([place for place, _ in own], heads)}
                tables += effect_tables(columns, np.concatenate([x for _, x in own]))
    return SharedLocalization(ctx.confirmed("effects", pd.concat(tables[1:] or tables, ignore_index=True)))


@stage(needs=(Accuracy,), given=(SharedLocalization,), reads=("sizes", "seed"), memory=replay_memory, paper="2.1")
def localize(ctx: Context) -> Localization:
    """Activation patching of every head and MLP at every position, by operator."""
    samples, model = splits(ctx), ctx.model
    for operator in [o for o in ctx.results[Accuracy].operators if o not in samples]:
        ctx.progress.note(f"{operator} is left out: fewer than three of its prompts are answered correctly")
    positions, given = model.positions.named(), ctx.results.get(SharedLocalization)
    rows = {} if given is None else {o: of_step(given.effects, model.encoder.step, o) for o in samples}
    known = {o: own for o, own in rows.items() if len(own)}
    unknown = [o for o in samples if o not in known]
    patched = {o: places_of_units(ctx, LAYERS_IN_UNIT, VERIFIED_UNITS, "localize", o) for o in unknown}
    groups = [
        [(samples[o].discovery, samples[o].counterfactuals, positions[position], layers) for position, layers in places]
        for o, places in patched.items()
    ]
    with ctx.progress.task("localize", _passes(ctx, groups)) as advance:
        parts = dict(zip(patched, ctx.map_groups(component_effects, groups, advance), strict=True))
    tables: list[pd.DataFrame] = []
    for operator in samples:
        if operator in known:
            tables.append(known[operator])
            continue
        columns = {"operator": operator, **_component_columns(patched[operator], model.sizes.heads)}
        tables += effect_tables(columns, np.concatenate(parts[operator]))
    prompts = pd.concat([_prompt_table(operator, split) for operator, split in samples.items()], ignore_index=True)
    return Localization(ctx.confirmed("effects", pd.concat(tables, ignore_index=True)), prompts)


def _passes(ctx: Context, groups: Sequence[Sequence[Unit]]) -> int:
    """Number of edited passes in groups of units."""
    return sum(len(unit[0]) * len(unit[3]) * (ctx.model.sizes.heads + 1) for group in groups for unit in group)


def component_effects(
    model: Model,
    prompts: Prompts,
    counterfactuals: Prompts,
    position: int,
    layers: Sequence[int],
    reads: int = 1,
    step: int | None = None,
    *,
    advance: Advance,
) -> NDArray[np.float64]:
    """Unit of work: effects of patching each head, and the MLP, of some layers: [layers, heads + 1, prompts, measures].

    With a `step`, each pass is read at several answer steps, `reads` of them up to this one, and there is an axis of steps
    before the measures.
    """
    model = model if step is None else model.every_step()[step - 1]
    s = model.sizes
    found = np.empty((len(layers), s.heads + 1, len(prompts), *([] if step is None else [reads]), len(EFFECTS)))
    # Variant i patches head i; the last variant patches the MLP.
    which_head = torch.eye(s.heads + 1, s.heads, dtype=torch.bool)
    which_neurons = (torch.arange(s.heads + 1) == s.heads)[:, None].expand(-1, s.neurons)
    for rows, batch in batches(model, prompts, position):
        corrupted = counterfactuals[rows]
        with torch.no_grad(), capturing(model, heads=layers, neurons=layers, keep=lambda x: x[:, [position]]) as seen:
            model.logits(model.encode(corrupted))
        reduce = effect_reducer(model, batch, corrupted, advance, reads)
        tape = model.engine.record(model, model.encode(batch), position, last=reads)
        for i, layer in enumerate(layers):
            head = edit(model, Site.HEADS, layer, which_head, positions=position, values=seen.heads[layer])
            mlp = edit(model, Site.NEURONS, layer, which_neurons, positions=position, values=seen.neurons[layer])
            effects = model.engine.replay(tape, [head, mlp], reduce).cpu().numpy()
            found[i][:, rows] = effects.reshape(found[i][:, rows].shape)
    return found


def effect_reducer(
    model: Model, prompts: Prompts, counterfactuals: Prompts, advance: Advance, reads: int = 1
) -> Reduce:
    """Reduces logits to effects by every measure: [variants, prompts, measures], or if they are read at several last positions,
    one for each answer step, [variants, prompts, steps, measures]."""
    own_step = model.encoder.step
    views = [*model.every_step()[own_step - reads : own_step - 1], model]
    answers = [[view.answers(x.asking(view.encoder.asked)) for x in (prompts, counterfactuals)] for view in views]

    def at_step(clean: Tensor, patched: Tensor, answer: Tensor, corrupted_answer: Tensor) -> Tensor:
        by_measure = effects(clean, patched, answer, corrupted_answer)
        return torch.stack([by_measure[measure] for measure in EFFECTS], dim=-1)

    def reduce(clean: Tensor, patched: Tensor) -> Tensor:
        advance(patched.shape[0] * patched.shape[1])
        if reads == 1:
            return at_step(clean, patched, *answers[0])
        return torch.stack([at_step(clean[:, i], patched[:, :, i], *own) for i, own in enumerate(answers)], dim=2)

    return reduce


def effect_tables(columns: Mapping[str, Any], effects: NDArray[Any]) -> Iterator[pd.DataFrame]:
    """One table per measure: statistics over prompts of effects [*components, prompts, measures], after the given columns."""
    for i, measure in enumerate(EFFECTS):
        values = effects[..., i].reshape(-1, effects.shape[-2])
        value, low, high = t_intervals(values)
        found = {"value": value, "low": low, "high": high, "n": values.shape[1], "median": np.median(values, axis=1)}
        found |= {"mean_abs": np.abs(values).mean(1, dtype=np.float64), "std": values.std(1, dtype=np.float64)}
        yield pd.DataFrame({**columns, "measure": measure, **found})


def _component_columns(places: Places, heads: int) -> dict[str, Any]:
    """Position, layer and head: every head, then the MLP, of each layer of each place."""
    position, layer = zip(*((position, layer) for position, layers in places for layer in layers), strict=True)
    head = np.append(np.arange(heads), MLP).astype(np.int32)
    layers = np.repeat(np.array(layer, dtype=np.int32), len(head))
    return {"position": np.repeat(position, len(head)), "layer": layers, "head": np.tile(head, len(layer))}


def _prompt_table(operator: str, split: Split) -> pd.DataFrame:
    names, other = ("op1", "op2", "answer"), split.counterfactuals
    columns = {"operator": operator, **{name: getattr(split.discovery, name) for name in names}}
    columns |= {"counterfactual_operator": np.array(OPERATORS)[other.operator]}
    return pd.DataFrame({**columns, **{f"counterfactual_{name}": getattr(other, name) for name in names}})

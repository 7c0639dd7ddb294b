"""Where the model holds a digit and a carry: exchange of the residual stream with counterfactuals that differ in one thing.

For each operator and answer step, on prompts that the step gets right:

1. Counterfactuals, each with one other digit. `carry` (for + and −, at steps with lower digits): a lower digit differs, and
   with it the carry into the place that is asked for, so the token differs by one. `digit`: of the answer, only the token that
   is asked for differs. Control, `same_carry`: a lower digit differs, but no carry; the token is the same.
2. Replace the residual stream at one position, after one layer, by that of the counterfactual's own run, and let the model
   answer. The share of answers that *follow* become the counterfactual's token; with the control, the token of the `carry`
   counterfactual, which nothing in it asks for.
3. Where: by layer, the position at which most answers follow, chosen on the selection prompts and reported on the evaluation
   prompts. After the last layer this is the last position, by construction, and before the first layer a changed digit itself.
4. Which heads and MLPs: activation patching of each with the carry counterfactual's activations, as in `localize`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.experiments.accuracy import as_prompts
from arithscope.experiments.common import schema
from arithscope.experiments.common.exchange import exchanged_answers
from arithscope.experiments.common.result import MEAN, Result
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.localize import MLP, component_effects, component_name, effect_tables
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.models.hooks import EMBEDDINGS
from arithscope.models.model import Model
from arithscope.prompts import (
    Ints,
    Prompts,
    Stratum,
    carry_counterfactuals,
    changed_digits,
    digit_counterfactuals,
    random_source,
    same_carry_controls,
)
from arithscope.stats.intervals import share_of
from arithscope.utils.executor import Unit
from arithscope.utils.progress import Advance

CARRY, DIGIT, SAME_CARRY = SOURCES = ("carry", "digit", "same_carry")
SELECTION, EVALUATION = "selection", "evaluation"
TRIED = 8  # prompts that are tried for each that is wanted, as not all have a counterfactual
FEWEST = 10  # prompts that a kind of counterfactual needs, in each of the two samples
VERIFIED_POSITIONS = 1  # of each exchange, that `verify` makes again

_STEP = schema.integer("step", "answer step, from 1", key=True)
_SOURCES = schema.text(
    "sources",
    "counterfactuals: `carry` (another carry into the place), `digit` (another digit at the place), or the control "
    "`same_carry` (other lower digits, the same carry)",
    key=True,
)
_LAYER = schema.integer("layer", "layer after which the residual stream is exchanged; −1 for the embeddings", key=True)


@dataclass(frozen=True, repr=False)
class Carries(Result):
    """Shares of answers that follow a counterfactual whose residual stream takes the prompt's place."""

    exchange: pd.DataFrame = schema.table(
        "Share of answers that follow, by position and layer.",
        schema.OPERATOR,
        _STEP,
        _SOURCES,
        schema.text("sample", "prompts: `selection`, on which positions are chosen, or `evaluation`", key=True),
        schema.POSITION,
        _LAYER,
        *schema.MEAN_COLUMNS,
    )
    held: pd.DataFrame = schema.table(
        "By layer, the position at which most answers follow on the selection prompts; the share on the evaluation prompts.",
        schema.OPERATOR,
        _STEP,
        schema.text("sources", "counterfactuals: `carry` or `digit`", key=True),
        _LAYER,
        schema.text("position", "the position"),
        *schema.MEAN_COLUMNS,
        schema.number("control", "the share with `same_carry` counterfactuals there; NaN if there are none"),
    )
    components: pd.DataFrame = schema.table(
        "Effect of patching each head and MLP with its activation in the `carry` counterfactual's run (evaluation prompts).",
        schema.OPERATOR,
        _STEP,
        schema.POSITION,
        schema.LAYER,
        schema.integer("head", "attention head; −1 for the whole MLP", key=True),
        schema.EFFECT_MEASURE,
        *schema.EFFECT_COLUMNS,
    )

    def path(self, operator: str, step: int, sources: str) -> list[tuple[str, int, int]]:
        """Where it is held: position, from and to which layer, as long as more than half of the answers follow there."""
        rows = self.held[(self.held.operator == operator) & (self.held.step == step) & (self.held.sources == sources)]
        found: list[tuple[str, int, int]] = []
        for row in rows[rows.value > 0.5].sort_values("layer").itertuples():
            position, layer = str(row.position), int(row.layer)  # type: ignore[arg-type]
            if found and found[-1][0] == position and found[-1][2] == layer - 1:
                found[-1] = (position, found[-1][1], layer)
            else:
                found.append((position, layer, layer))
        return found

    def summary(self) -> dict[str, Any]:
        out: dict[str, dict[str, Any]] = {}
        for operator, step, sources in (
            self.held[["operator", "step", "sources"]].drop_duplicates().itertuples(index=False)
        ):
            path = [f"{position} {layer_span(low, high)}" for position, low, high in self.path(operator, step, sources)]
            out.setdefault(str(operator), {})[f"{sources}_of_step_{step}"] = path
        components = self.components[self.components.measure == "log_ratio"]
        for (operator, step), rows in components.groupby(["operator", "step"], sort=False):
            best = rows.iloc[int(rows.value.argmax())]
            component = f"{component_name(best.layer, best['head'])} at {best.position}"
            entry = {**{name: best[name] for name in MEAN}, "component": component}
            out[str(operator)][f"strongest_for_carry_of_step_{step}"] = entry
        return out


def layer_span(low: int, high: int) -> str:
    """Some consecutive layers: `L1–L2`; those before layer 0 are the embeddings."""
    first, last = ("embeddings" if layer == EMBEDDINGS else f"L{layer}" for layer in (low, high))
    return first if low == high else f"{first}–{last}"


class _Exchange(NamedTuple):
    """Prompts of an operator at an answer step, with counterfactuals of one kind and the tokens that follow them."""

    operator: str
    step: int
    sources: str
    sample: str
    prompts: Prompts
    counterfactuals: Prompts
    followed: Ints  # the token that counts as following

    @property
    def key(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("operator", "step", "sources", "sample")}


@stage(needs=(WholeAnswers,), reads=("operators", "sizes", "seed"), memory=replay_memory, joins_steps=True)
def carries(ctx: Context) -> Carries:
    """Where each digit and each carry is held, by exchanging the residual stream with counterfactuals."""
    views, layers = ctx.model.every_step(), range(EMBEDDINGS, ctx.model.sizes.layers)
    planned = [exchange for operator in ctx.settings.operators for exchange in _planned(ctx, operator)]
    units: list[Unit] = []
    places = []
    for exchange in planned:
        names = list(views[exchange.step - 1].positions.named())
        key = exchange.operator, exchange.step, exchange.sources, exchange.sample
        for i in ctx.sample(len(names), VERIFIED_POSITIONS, "carries", *key):
            places.append((exchange, names[i]))
            units.append((exchange.step, exchange.prompts, exchange.counterfactuals, names[i], list(layers)))
    patched = [x for x in planned if (x.sources, x.sample) == (CARRY, EVALUATION)]
    of_components = [
        (x, name, i)
        for x in patched
        for i, name in enumerate(views[x.step - 1].positions.named())
        if i in ctx.sample(len(views[x.step - 1].positions.names), VERIFIED_POSITIONS, "carries", x.operator, x.step)
    ]
    every = list(range(ctx.model.sizes.layers))
    of_each = ctx.model.sizes.layers * (ctx.model.sizes.heads + 1)
    total = sum(len(x.prompts) * len(layers) for x, _ in places) + sum(
        len(x.prompts) * of_each for x, *_ in of_components
    )
    with ctx.progress.task("carries", total) as advance:
        answers = ctx.map(exchanged_at_step, units, advance)
        patches = [(x.step, x.prompts, x.counterfactuals, name, every) for x, name, _ in of_components]
        effects = ctx.map(patched_at_step, patches, advance)
    rows = [
        {**exchange.key, "position": position, "layer": layer, **asdict(share_of(found[i] == exchange.followed))}
        for (exchange, position), found in zip(places, answers, strict=True)
        for i, layer in enumerate(layers)
    ]
    table = ctx.confirmed("exchange", Carries.frame("exchange", rows))
    tables = [
        part
        for (x, name, _), found in zip(of_components, effects, strict=True)
        for part in effect_tables(_component_columns(x, name, ctx.model), found)
    ]
    components = ctx.confirmed(
        "components", pd.concat([*tables] or [Carries.frame("components", [])], ignore_index=True)
    )
    return Carries(table, _held(table), components)


def exchanged_at_step(
    model: Model, step: int, prompts: Prompts, sources: Prompts, position: str, layers: list[int], *, advance: Advance
) -> NDArray[np.int32]:
    """Unit of work: answers at a step after exchanging the residual stream at a position after each of some layers,
    [layers, prompts]."""
    return exchanged_answers(model.every_step()[step - 1], prompts, sources, position, layers, advance=advance)


def patched_at_step(
    model: Model, step: int, prompts: Prompts, sources: Prompts, position: str, layers: list[int], *, advance: Advance
) -> NDArray[np.float64]:
    """Unit of work: effects at a step of patching each head and MLP at a position, [layers, heads + 1, prompts, measures]."""
    view = model.every_step()[step - 1]
    return component_effects(view, prompts, sources, view.positions.named()[position], layers, advance=advance)


def _component_columns(exchange: _Exchange, position: str, model: Model) -> Mapping[str, Any]:
    """Operator, step, position, layer and head: every head, then the MLP, of each layer."""
    s = model.sizes
    head = np.tile(np.append(np.arange(s.heads), MLP).astype(np.int32), s.layers)
    layer = np.repeat(np.arange(s.layers, dtype=np.int32), s.heads + 1)
    return {"operator": exchange.operator, "step": exchange.step, "position": position, "layer": layer, "head": head}


def _planned(ctx: Context, operator: str) -> Iterator[_Exchange]:
    """The exchanges of an operator, with as many prompts as there are counterfactuals that the model gets right, too."""
    answers, sizes, seed = ctx.results[WholeAnswers], ctx.settings.sizes, ctx.settings.seed
    own = (answers.prompts.operator == operator).to_numpy()
    for stratum, right in zip(answers.stratum.every_step(), answers.right(), strict=True):
        correct = as_prompts(answers.prompts[own & right], stratum.asked)
        known = _Known(correct, stratum)
        random = random_source(seed, "carries", operator, stratum.step)
        order = random.permutation(len(correct))
        pools = {name: correct[order[i::2]] for i, name in enumerate((SELECTION, EVALUATION))}
        pools = {name: pool[: TRIED * getattr(sizes, name)] for name, pool in pools.items()}
        found = {
            (sources, sample): exchange
            for sample, pool in pools.items()
            for sources, exchange in _exchanges(known, pool, stratum, operator, sample, getattr(sizes, sample), random)
        }
        for sources in SOURCES:
            both = [found[sources, sample] for sample in pools if (sources, sample) in found]
            if len(both) == len(pools) and min(len(x.prompts) for x in both) >= FEWEST:
                yield from both


class _Known:
    """The prompts of an operator that a step gets right."""

    def __init__(self, prompts: Prompts, stratum: Stratum):
        self._stratum, self._cells = stratum, np.sort(stratum.cells(prompts))

    def includes(self, prompts: Prompts) -> NDArray[np.bool_]:
        """Which prompts are among them. Of many operands the grid has a sample only; nothing is known of others."""
        on_grid = self._stratum.on_grid(prompts)
        on_grid[on_grid] = np.isin(self._stratum.cells(prompts[on_grid]), self._cells)
        return on_grid


def _exchanges(
    known: _Known,
    pool: Prompts,
    stratum: Stratum,
    operator: str,
    sample: str,
    size: int,
    random: np.random.Generator,
) -> Iterator[tuple[str, _Exchange]]:
    """The exchanges of a sample: at most `size` prompts of the pool, in its order, that have such a counterfactual."""
    about = operator, stratum.step
    others, has = digit_counterfactuals(pool, stratum, random)
    rows = np.flatnonzero(has)[known.includes(others)][:size]
    kept = others[known.includes(others)][:size]
    yield DIGIT, _Exchange(*about, DIGIT, sample, pool[rows], kept, kept.result)
    if operator in "+-" and stratum.asked.low > 0:
        others, has = carry_counterfactuals(pool, stratum, random)
        # Where two digits differ, exchanging one of them alone may make a third kind of prompt.
        right = known.includes(others) & (changed_digits(pool[has], others) == 1)
        prompts, kept = pool[np.flatnonzero(has)[right][:size]], others[right][:size]
        yield CARRY, _Exchange(*about, CARRY, sample, prompts, kept, kept.result)
        controls, has = same_carry_controls(prompts, kept, stratum, random)
        yield SAME_CARRY, _Exchange(*about, SAME_CARRY, sample, prompts[has], controls, kept[has].result)


def _held(exchange: pd.DataFrame) -> pd.DataFrame:
    """By layer, the best position of the selection prompts, and its share among the evaluation prompts."""
    keys = ["operator", "step", "sources", "layer"]
    selected, measured = (exchange[exchange["sample"] == name] for name in (SELECTION, EVALUATION))
    control = measured[measured.sources == SAME_CARRY].drop(columns="sources").rename(columns={"value": "control"})
    selected = selected[selected.sources != SAME_CARRY].sort_values("value", ascending=False, kind="stable")
    chosen = selected.drop_duplicates(keys)[[*keys, "position"]].sort_index()
    place = ["operator", "step", "layer", "position"]
    found = chosen.merge(measured, how="left", on=[*keys, "position"])
    return found.merge(control[[*place, "control"]], how="left", on=place)[Carries.columns("held")]

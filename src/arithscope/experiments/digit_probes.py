"""Linear probes of digits and carries: where can each be read off the residual stream?

1. For each operator, prompts whose whole answer is right, with the answer's tokens behind them (teacher forcing): all
   positions of the last answer step. 80 % train, 20 % test.
2. At every position, after every layer, a linear discriminant (stats/discriminants.py) of each digit of the answer,
   whatever token holds it, and for + and − of each carry or borrow.
3. The first layer at a position is the first that makes READABLE of the way from chance to the best accuracy of the
   variable. Half of it, as in `probe`, would be reached by half of the story: who knows one of the two digits that make a
   carry is right in three of four cases, and who knows all of a digit but the carry into it, in every other case.
4. Control: the same with labels that are permuted over the prompts. What the best of so many probes reaches there is
   luck, and a layer has to exceed it.

The discriminants have a closed form. Unlike the probes of `probe`, which are trained as in the paper, they have no
learning rate and no order of examples, and one factorisation at each place serves all variables.

A probe cannot know more than the tokens up to its position say, and what it reads may be no work of the model:

    determined   the tokens up to the position determine the variable
    given        those of the answer among them do: the model was told it, and may just remember

Nor is readable the same as computed: a carry is a threshold of the sum of two digits, so a linear probe may find it as soon
as both are at one place. `carries` tells where the model uses it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.accuracy import as_prompts
from arithscope.experiments.common import schema
from arithscope.experiments.common.result import Result, mean_entry
from arithscope.experiments.common.samples import TRAINING_SHARE
from arithscope.experiments.common.stage import Context, stage, sweep_memory
from arithscope.experiments.common.states import distinct_rows, read_positions
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.heuristics.digits import WRITTEN, digit_of
from arithscope.heuristics.rule import ANSWER
from arithscope.models.memory import storage
from arithscope.models.model import Model
from arithscope.prompts import Ints, Prompts, Stratum, carry_into, power_name, random_source, sample
from arithscope.settings import Settings, stratum_of
from arithscope.stats.discriminants import classified
from arithscope.stats.intervals import share
from arithscope.utils.executor import split_evenly
from arithscope.utils.out_of_memory import rows_within
from arithscope.utils.progress import Advance

READABLE = 0.75  # of the way from chance to the best accuracy
FEWEST = 50  # prompts that an operator needs
LAYERS_IN_UNIT = 32  # whose states are read in one sweep
VERIFIED_PLACES = 3  # positions and layers at which `verify` makes all probes again

Place = tuple[str, int]  # position and layer

_VARIABLE = schema.text("variable", "a digit of the answer, `answer tens`, or a carry, `carry into tens`", key=True)


@dataclass(frozen=True, repr=False)
class DigitProbes(Result):
    """Accuracy of linear probes of each digit of the answer and each carry, and where they can first be read."""

    table: pd.DataFrame = schema.table(
        "Test accuracy of the probe of each variable after each layer at each position of the last answer step.",
        schema.OPERATOR,
        _VARIABLE,
        schema.POSITION,
        schema.LAYER,
        *schema.MEAN_COLUMNS,
        schema.number("shuffled", "the accuracy if labels are permuted over prompts"),
    )
    first: pd.DataFrame = schema.table(
        "By position, the first layer at which a variable can be read.",
        schema.OPERATOR,
        _VARIABLE,
        schema.POSITION,
        schema.integer(
            "layer",
            "first layer that makes three quarters of the way from chance to the variable's best accuracy (over all positions "
            "where it is not given) and exceeds all its probes of permuted labels; −1 if none does",
        ),
        schema.number("best", "accuracy of the best layer at this position"),
        schema.number("chance", "accuracy of always giving the training prompts' most frequent value"),
        schema.number("shuffled", "highest accuracy of a layer at this position if labels are permuted over prompts"),
        schema.boolean("determined", "whether the tokens up to this position determine the variable"),
        schema.boolean("given", "whether the answer's tokens up to this position determine it"),
    )

    def summary(self) -> dict[str, Any]:
        out: dict[str, dict[str, Any]] = {}
        made = self.first[~self.first.given.astype(bool)]  # also of an empty table
        for (operator, variable), rows in made.groupby(["operator", "variable"], sort=False):
            readable = rows[rows.layer >= 0].sort_values("layer", kind="stable")
            places = [_place(*place) for place in zip(readable.position, readable.layer, strict=True)]
            own = self.table[(self.table.operator == operator) & (self.table.variable == variable)]
            own = own[own.position.isin(rows.position)]
            best = own.iloc[int(own.value.argmax())]
            name = str(variable).replace(" ", "_")
            out.setdefault(str(operator), {})[f"{name}_first_readable"] = places[0] if places else "nowhere"
            entry = {**mean_entry(best), "place": _place(best.position, best.layer), "chance": rows.chance.iloc[0]}
            out[str(operator)][f"{name}_best"] = entry
        return out


def _place(position: str, layer: int) -> str:
    return f"{position} L{layer}"


class Known(NamedTuple):
    """Whether tokens up to a position determine a variable: all of them, or already those of the answer."""

    determined: bool
    given: bool


class _Studied(NamedTuple):
    """What is probed for an operator."""

    operator: str
    prompts: Prompts  # in random order, the training prompts first
    training: int
    variables: dict[str, Ints]  # the value of each prompt
    shuffled: dict[str, Ints]  # the same, permuted over prompts

    @property
    def tested(self) -> int:
        return len(self.prompts) - self.training


def _memory(model: Model, settings: Settings) -> int:
    """A sweep, the residual stream of one operator's prompts, and what a discriminant of them needs."""
    prompts = min(len(stratum_of(model, settings).prompts(settings.operators)), settings.sizes.probe)
    width = model.sizes.width
    states = model.sizes.layers * _layer_bytes(model, prompts, len(model.positions.named()))
    return sweep_memory(model, settings) + min(states, storage(model)) + 24 * width * (width + prompts)


def _layer_bytes(model: Model, prompts: int, positions: int) -> int:
    return prompts * positions * model.sizes.width * model.hf_model.dtype.itemsize


@stage(needs=(WholeAnswers,), reads=("operators", "sizes", "seed"), memory=_memory, joins_steps=True)
def digit_probes(ctx: Context) -> DigitProbes:
    """Where each digit of the answer and each carry can be read linearly off the residual stream, by layer and position."""
    studied = [found for operator in ctx.settings.operators if (found := _studied(ctx, operator)) is not None]
    positions, layers = list(ctx.model.positions.named()), ctx.model.sizes.layers
    every = [(own, position, layer) for own in range(len(studied)) for position in positions for layer in range(layers)]
    chosen = [every[i] for i in ctx.sample(len(every), VERIFIED_PLACES, "digit_probes")]
    units, done = [], []
    for i, own in enumerate(studied):
        for chunk in split_evenly(layers, LAYERS_IN_UNIT):
            places = [(at, layer) for j, at, layer in chosen if j == i and layer in range(layers)[chunk]]
            if places:
                labels = [*own.variables.values(), *own.shuffled.values()]
                units.append((own.prompts, own.training, labels, places))
                done.append((own, places))
    with ctx.progress.task("digit_probes", len(chosen)) as advance:
        right = ctx.map(probed_places, units, advance)
    rows = [row for (own, places), found in zip(done, right, strict=True) for row in _rows(own, places, found)]
    table = ctx.confirmed("table", DigitProbes.frame("table", rows))
    first = [row for own in studied for row in _first_layers(own, table, known_at(ctx.model, own.operator))]
    return DigitProbes(table, DigitProbes.frame("first", first))


def variables_of(prompts: Prompts, operator: str, stratum: Stratum) -> dict[str, Ints]:
    """Digits of the answer, and carries, of prompts of an operator; without what is the same for all of them."""
    found = {f"{ANSWER} {power_name(e)}": digit_of(prompts.answer, e) for e in range(_digits(stratum.answers[1]))}
    if operator in WRITTEN:
        _, carry = WRITTEN[operator]
        highest = _digits(max(stratum.op1[1], stratum.op2[1]))
        found |= {carry.form.format(power_name(e)): carry_into(prompts, e) for e in range(1, highest + 1)}
    return {name: values for name, values in found.items() if len(np.unique(values)) > 1}


def _digits(number: int) -> int:
    return len(str(number))


def _studied(ctx: Context, operator: str) -> _Studied | None:
    """A sample of the operator's prompts whose whole answer is right; None, with a note, if there are too few."""
    answers, settings = ctx.results[WholeAnswers], ctx.settings
    rows = answers.prompts[answers.prompts.correct & (answers.prompts.operator == operator)]
    size = settings.sizes.probe // len(settings.operators)
    random = random_source(settings.seed, "digit probes", operator)
    prompts = sample(as_prompts(rows, answers.stratum.asked), size, random)
    if len(prompts) < FEWEST:
        ctx.progress.note(
            f"digit_probes: {operator} is left out, as it has {len(prompts)} of the {FEWEST} prompts it needs"
        )
        return None
    if not (variables := variables_of(prompts, operator, answers.stratum)):
        ctx.progress.note(f"digit_probes: {operator} is left out, as all its right answers are equal")
        return None
    shuffled = {
        name: random_source(settings.seed, "digit probes shuffled", operator, name).permutation(values)
        for name, values in variables.items()
    }
    return _Studied(operator, prompts, int(TRAINING_SHARE * len(prompts)), variables, shuffled)


def probed_places(
    model: Model, prompts: Prompts, training: int, labels: Sequence[Ints], places: Sequence[Place], *, advance: Advance
) -> NDArray[np.int64]:
    """Unit of work: probes of each kind of labels at some places, fitted to the first prompts; how many of the others they
    classify rightly, [places, kinds]."""
    right, rows = np.empty((len(places), len(labels)), dtype=np.int64), {place: i for i, place in enumerate(places)}
    positions, layers = (list(dict.fromkeys(each)) for each in zip(*places, strict=True))
    size = _layer_bytes(model, len(prompts), len(positions))
    together = rows_within(min(storage(model), len(layers) * size), size)
    for start in range(0, len(layers), together):
        group = layers[start : start + together]
        for position, found in zip(positions, read_positions(model, prompts, positions, group), strict=True):
            values = [np.unique(own[:training]) for own in labels]
            counts = [
                _counted(found.of_prompt[:training], np.searchsorted(v, own[:training]), found.states.shape[1], len(v))
                for v, own in zip(values, labels, strict=True)
            ]
            of_test = found.of_prompt[training:]
            for layer, states in zip(group, found.states, strict=True):
                if (position, layer) not in rows:
                    continue
                precise = (states.cpu() if states.device.type == "mps" else states).double()
                given = classified(precise, [c.to(precise) for c in counts])
                right[rows[position, layer]] = [
                    (v[own[of_test]] == wanted[training:]).sum()
                    for v, own, wanted in zip(values, given, labels, strict=True)
                ]
                advance(1)
    return right


def _counted(states: Ints, values: Ints, n_states: int, n_values: int) -> torch.Tensor:
    """How often each state has each value."""
    counts = np.bincount(states * n_values + values, minlength=n_states * n_values)
    return torch.from_numpy(counts.reshape(n_states, n_values))


def _rows(studied: _Studied, places: Sequence[Place], right: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    """Rows of `table`."""
    own, shuffled = np.split(right, 2, axis=1)
    for i, name in enumerate(studied.variables):
        for (position, layer), n, by_luck in zip(places, own[:, i].tolist(), shuffled[:, i], strict=True):
            key = {"operator": studied.operator, "variable": name, "position": position, "layer": layer}
            yield {**key, **asdict(share(n, studied.tested)), "shuffled": by_luck / studied.tested}


def _first_layers(
    studied: _Studied, table: pd.DataFrame, known: Mapping[tuple[str, str], Known]
) -> Iterator[dict[str, Any]]:
    """Rows of `first`."""
    for name, values in studied.variables.items():
        rows = table[(table.operator == studied.operator) & (table.variable == name)]
        made = [not known[position, name].given for position in rows.position]
        chance, luck = _chance(values, studied.training), rows.shuffled.max()
        enough = chance + READABLE * (rows.value[made].max() - chance)
        for position, own in rows.groupby("position", sort=False):
            readable = own.layer[(own.value >= enough) & (own.value > luck)]
            yield {
                "operator": studied.operator,
                "variable": name,
                "position": position,
                "layer": int(readable.min()) if len(readable) else -1,
                "best": own.value.max(),
                "chance": chance,
                "shuffled": own.shuffled.max(),
                **known[str(position), name]._asdict(),
            }


def _chance(values: Ints, training: int) -> float:
    kinds, counts = np.unique(values[:training], return_counts=True)
    return float((values[training:] == kinds[counts.argmax()]).mean())


def known_at(model: Model, operator: str) -> dict[tuple[str, str], Known]:
    """By position and variable, what the tokens up to the position determine, over all prompts of the model's stratum."""
    stratum, positions = model.encoder.stratum, model.positions.named()
    assert stratum is not None
    prompts = stratum.prompts(operator)
    ids, found = model.encode(prompts).cpu().numpy(), {}
    answer = positions["last"] + 1
    for position, at in positions.items():
        seen = [distinct_rows(ids[:, start : at + 1]) for start in (model.positions.op1, answer)]
        for name, values in variables_of(prompts, operator, stratum).items():
            found[position, name] = Known(*(_determined(tokens, values) for tokens in seen))
    return found


def _determined(groups: Ints, values: Ints) -> bool:
    """Whether all members of each group have the same value."""
    return len(np.unique(groups * 10 + values)) == len(np.unique(groups))

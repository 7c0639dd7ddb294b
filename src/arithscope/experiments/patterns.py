"""Activation maps of the top neurons over all pairs of operands, and what their value vectors write (Section 3.2).

1. Run every prompt of the operand grid, legal or not, and keep each top neuron's activation at the last position.
2. Read each neuron's value vector through the logit lens (final norm's gain, then unembedding): its logit of every number.
3. Over the legal prompts: share of the map's variance that op1, op2 and the result explain, and correlation of the activation
   with the value vector's logit of the answer.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common import schema
from arithscope.experiments.common.result import Result, of_neuron
from arithscope.experiments.common.stage import Context, stage, sweep_memory
from arithscope.experiments.means import Singles, prompt_units
from arithscope.experiments.topk import TopK
from arithscope.heuristics.kinds import Ints
from arithscope.heuristics.overlaps import take_columns
from arithscope.heuristics.variance import Spread
from arithscope.models.model import Model
from arithscope.models.offload import fetched
from arithscope.prompts import Prompts, Stratum, stratum_from_json
from arithscope.settings import Settings, stratum_of
from arithscope.stats.intervals import Floats
from arithscope.utils.executor import Unit, split_evenly
from arithscope.utils.out_of_memory import rows_within
from arithscope.utils.progress import Advance
from arithscope.utils.threads import thread_pool

TOP_TOKENS = 10
NEURONS_IN_UNIT = 512
LARGEST = float(np.finfo(np.float16).max)
ROWS = 16  # neurons processed together; many more are slower, because their memory is allocated anew each time
VERIFIED_NEURONS, VERIFIED_PROMPTS = 32, 200  # neurons of each operator, and prompts, that `verify` runs again
Halves = NDArray[np.float16]
VARIABLES = ("op1", "op2", "result")
_STATISTICS = (*(f"variance_explained_{name}" for name in VARIABLES), "alignment")


@dataclass(frozen=True, repr=False)
class ActivationMaps(Result):
    """Activation maps and value-vector logits, with one row for each row of `neurons`."""

    neurons: pd.DataFrame = schema.table(
        "The top neurons, operator by operator.",
        *schema.NEURON_KEY,
        schema.integer("rank", "rank in the layer, from 0"),
        schema.number("effect", "mean effect"),
        *(schema.number(f"variance_explained_{x}", f"share of the map's variance explained by {x}") for x in VARIABLES),
        schema.number("alignment", "correlation of the activation with the value vector's logit of the answer"),
        schema.boolean("direct", "whether the result explains more than either operand and the alignment is positive"),
        schema.listing("tokens", "numbers with the largest logits, largest first"),
    )
    activations: Halves = schema.array(
        "activation at the last position for every pair of operands, legal or not; NaN where the layout is another",
        "float16",
        "rows, op1, op2",
    )
    logits: Singles = schema.array(
        "value vector's logit of each number (logit lens); NaN where it has no token", "float32", "rows, numbers"
    )
    studied: dict[str, Any] = schema.value(schema.STUDIED)

    @cached_property
    def stratum(self) -> Stratum:
        return stratum_from_json(self.studied)

    @property
    def limit(self) -> int:
        return self.logits.shape[1]

    @property
    def operators(self) -> list[str]:
        return [str(o) for o in self.neurons.operator.unique()]

    def rows(self, operator: str) -> slice:
        """Rows of an operator, which are consecutive."""
        rows = np.flatnonzero(self.neurons.operator == operator)
        return slice(int(rows[0]), int(rows[-1]) + 1)

    def place(self, operator: str, layer: int, neuron: int) -> int:
        return int(of_neuron(self.neurons.reset_index(drop=True), operator, layer, neuron).index[0])

    def direct_logit_attribution(self, operator: str, prompts: Prompts, numbers: NDArray[np.int64]) -> Floats:
        """Activation × value vector's logit of one number per prompt: [neurons of the operator, prompts]."""
        rows, (op1, op2) = self.rows(operator), self.stratum.indices(prompts)
        return self.activations[rows, op1, op2].astype(np.float64) * self.logits[rows, numbers]

    def attribution_map(self, place: int) -> NDArray[np.float32]:
        """Activation × logit of the prompt's answer for every pair of operands: [op1, op2]; NaN if not legal."""
        prompts = self.stratum.grid(str(self.neurons.operator.iloc[place]))
        legal = self.stratum.legal(prompts)
        logit = np.full(len(prompts), np.nan, dtype=np.float32)
        logit[legal] = self.logits[place][prompts.result[legal]]
        return self.activations[place].astype(np.float32) * logit.reshape(self.activations.shape[1:])

    def summary(self) -> dict[str, Any]:
        tables = {operator: self.neurons.iloc[self.rows(operator)] for operator in self.operators}
        return {o: {"neurons": len(rows), "share_direct": float(rows.direct.mean())} for o, rows in tables.items()}


def _memory(model: Model, settings: Settings) -> int:
    """A sweep, and the activation maps."""
    neurons = model.sizes.layers * settings.largest_k(model) * len(settings.operators)
    return sweep_memory(model, settings) + neurons * 2 * math.prod(stratum_of(model, settings).shape)


@stage(needs=(TopK,), reads=("max_operand",), memory=_memory, paper="3.2")
def patterns(ctx: Context) -> ActivationMaps:
    """Activation map of every top neuron over the operand grid, and the numbers its value vector promotes."""
    model, stratum = ctx.model, ctx.stratum
    every = ctx.results[TopK].top.rename(columns={"value": "effect"}).reset_index(drop=True)
    groups = {str(operator): own.index for operator, own in every.groupby("operator", sort=False)}
    rows = np.concatenate([own[ctx.sample(len(own), VERIFIED_NEURONS, "patterns", o)] for o, own in groups.items()])
    top = every.iloc[rows].reset_index(drop=True)
    layer, neuron = top.layer.to_numpy(), top.neuron.to_numpy()
    by_operator = {str(o): as_slice(own.index.to_numpy()) for o, own in top.groupby("operator", sort=False)}
    by_layer = {int(i): np.flatnonzero(layer == i) for i in np.unique(layer)}
    prompts = _prompts_to_run(ctx, list(by_operator))
    cells = {operator: stratum.cells(own) for operator, own in prompts.items()}
    columns = cells if ctx.complete else {operator: np.arange(len(own)) for operator, own in prompts.items()}
    width = math.prod(stratum.shape) if ctx.complete else len(next(iter(cells.values())))
    activations: NDArray[np.float16] = np.full((len(top), width), np.nan, dtype=np.float16)
    logits = np.empty((len(top), model.limit), dtype=np.float32)
    with ctx.progress.task("patterns", sum(map(len, prompts.values()))) as advance:
        parts = [(operator, chunk) for operator, own in prompts.items() for chunk in prompt_units(own)]
        units: list[Unit] = [(prompts[o][chunk], layer[by_operator[o]], neuron[by_operator[o]]) for o, chunk in parts]
        for done in ctx.executor.stream(neuron_activations, model, units, advance):  # all results together are large
            operator, chunk = parts[done.index]
            activations[by_operator[operator], as_slice(columns[operator][chunk])] = done.result
        if not ctx.complete:
            measured = np.stack([cells[operator] for operator in top.operator])
            where = (rows[:, None], *np.unravel_index(measured, stratum.shape))
            activations = ctx.confirmed("activations", activations, where)
        activations = activations.reshape(-1, *stratum.shape)
        units = [(i, neuron[own]) for i, own in by_layer.items()]
        for own, part in zip(by_layer.values(), ctx.map(number_logits, units, advance), strict=True):
            logits[own] = part
        logits = ctx.confirmed("logits", logits, rows)
        units = []
        for operator, which in by_operator.items():
            for chunk in split_evenly(len(rows[which]), NEURONS_IN_UNIT):
                at = as_slice(rows[which][chunk])
                units.append((operator, stratum, activations[at], logits[at]))
        statistics = np.concatenate(ctx.map(map_statistics, units, advance), axis=1)
    op1, op2, result, alignment = statistics
    written = int((model.encoder.answer_tokens >= 0).sum())  # numbers that have a token; others come last
    tokens = np.argsort(-logits[as_slice(rows)], axis=1, kind="stable")[:, : min(TOP_TOKENS, written)]
    direct = (result > np.maximum(op1, op2)) & (alignment > 0)
    table = top.assign(**dict(zip(_STATISTICS, statistics, strict=True)), direct=direct, tokens=list(tokens))
    confirmed = ctx.confirmed("neurons", table[ActivationMaps.columns("neurons")])
    return ActivationMaps(confirmed, activations, logits, stratum.as_json())


def _prompts_to_run(ctx: Context, operators: list[str]) -> dict[str, Prompts]:
    """By operator, the prompts of the activation maps; under `verify`, a sample, of all operators equally many."""
    prompts = {operator: ctx.stratum.run(operator) for operator in operators}
    if ctx.complete:
        return prompts
    some = ctx.sample(min(map(len, prompts.values())), VERIFIED_PROMPTS, "patterns")
    return {operator: own[some] for operator, own in prompts.items()}


def as_slice(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Consecutive row numbers as a slice: indexing with it makes no copy, and assignment is ten times as fast."""
    return slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) and (np.diff(rows) == 1).all() else rows


def neuron_activations(model: Model, prompts: Prompts, layers: Ints, neurons: Ints, *, advance: Advance) -> Halves:
    """Unit of work: activations at the last position of neurons given by layer and number, [neurons, prompts]."""
    activations = np.empty((len(neurons), len(prompts)), dtype=np.float16)
    by_layer = {int(layer): np.flatnonzero(layers == layer) for layer in np.unique(layers)}
    chosen = {layer: torch.from_numpy(neurons[rows]).long() for layer, rows in by_layer.items()}

    def as_stored(x: Tensor) -> Tensor:
        return x.float().clamp(-LARGEST, LARGEST).half().T.contiguous().cpu()

    for columns, seen in model.engine.sweep_neurons(model, prompts, chosen, advance, keep=as_stored):
        for layer, rows in by_layer.items():
            at = as_slice(rows), as_slice(columns)
            consecutive = all(isinstance(x, slice) for x in at)
            activations[at if consecutive else np.ix_(rows, columns)] = seen[layer].numpy()
    return activations


def activation_map(
    model: Model, operator: str, layer: int, neuron: int, stratum: Stratum, advance: Advance
) -> NDArray[np.float16]:
    """Activation map of any neuron: [op1, op2]. `advance` is called after each batch; what it raises ends the work."""
    prompts = stratum.run(operator)
    activations = np.full(math.prod(stratum.shape), np.nan, dtype=np.float16)
    [own] = neuron_activations(model, prompts, np.array([layer]), np.array([neuron]), advance=advance)
    activations[stratum.cells(prompts)] = own
    return activations.reshape(stratum.shape)


@torch.no_grad()
def number_logits(model: Model, layer: int, neurons: NDArray[Any], *, advance: Advance) -> NDArray[np.float32]:
    """Unit of work: logits of all numbers, from the value vectors of some neurons of a layer, [neurons, numbers]."""
    tokens, vectors, logits = model.encoder.answer_tokens, model.value_vectors(layer), []
    with fetched(model.unembedding):
        for chunk in np.array_split(neurons, -(-len(neurons) // rows_within(ROWS, 1))):
            lens = model.logit_lens(vectors[torch.from_numpy(chunk).to(vectors.device, torch.long)])
            logits.append(lens[:, tokens.to(lens.device)].cpu().numpy())
    found = np.concatenate(logits)
    found[:, (tokens < 0).numpy()] = np.nan
    return found


def map_statistics(
    model: Model, operator: str, stratum: Stratum, activations: NDArray[Any], logits: NDArray[Any], *, advance: Advance
) -> Floats:
    """Unit of work: variance explained by op1, op2 and the result, and alignment, of some neurons: [4, neurons]."""
    prompts = stratum.prompts(operator)
    cells = torch.from_numpy(stratum.cells(prompts)).to(model.device)
    numbers = [torch.from_numpy(x).to(model.device) for x in (prompts.op1, prompts.op2, prompts.result)]

    def statistics(rows: NDArray[np.int64]) -> Tensor:
        maps, values = (torch.from_numpy(x[rows]).to(model.device) for x in (activations, logits))
        spread = Spread(take_columns(maps.flatten(1), cells))
        explained = (spread.variance_explained(x) for x in numbers)
        return torch.stack([*explained, spread.correlation(numbers[2], values.nan_to_num())]).cpu()

    chunks = np.array_split(np.arange(len(activations)), -(-len(activations) // rows_within(ROWS, 1)))
    with thread_pool() as pool:
        each = map if model.device.type == "cuda" else pool.map
        return torch.cat(list(each(statistics, chunks)), dim=1).numpy()

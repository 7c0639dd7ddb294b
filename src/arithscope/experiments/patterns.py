"""What makes each top neuron fire, and what it writes: its activation for all pairs of operands, its value vector's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common.result import Result, of_neuron
from arithscope.experiments.means import grid_units
from arithscope.experiments.topk import TopK
from arithscope.heuristics.matching import taken
from arithscope.heuristics.variance import Spread
from arithscope.models.engine.sweep import sweep_neurons
from arithscope.models.model import Model
from arithscope.models.offload import fetched
from arithscope.prompts import Prompts, legal_prompts, operand_grid
from arithscope.utils.executor import LOCAL, Executor, split_evenly
from arithscope.utils.out_of_memory import rows_within
from arithscope.utils.progress import Advance, Progress
from arithscope.utils.threads import workers

TOP_TOKENS = 10
NEURONS_IN_UNIT = 512
LARGEST = float(np.finfo(np.float16).max)
ROWS = 16  # patterns that are looked at together; many more are slower, as memory for them is fetched anew each time


@dataclass(frozen=True, repr=False)
class ActivationMaps(Result):
    """neurons: the top neurons, operator after operator. `op1`, `op2` and `result` are the shares of the pattern's variance,
    over legal prompts, that each of the three tells; `alignment` is the correlation, over the same, of the activation with the
    value vector's logit of the answer. A neuron is `direct` if its pattern is told by the result rather than by an operand
    and its value vector promotes the answers it fires for (alignment > 0). `tokens`: the numbers it promotes most.
    activations: at the last position, for every pair of operands, legal or not. logits: of the numbers, from the value
    vector through the logit lens. Both have a row for each row of `neurons`."""

    neurons: pd.DataFrame  # operator, layer, neuron, rank, effect, op1, op2, result, alignment, direct, tokens
    activations: NDArray[np.float16]  # rows, op1, op2
    logits: NDArray[np.float32]  # rows, numbers

    @property
    def max_operand(self) -> int:
        return self.activations.shape[1] - 1

    @property
    def limit(self) -> int:
        return self.logits.shape[1]

    @property
    def operators(self) -> list[str]:
        return [str(o) for o in self.neurons.operator.unique()]

    def rows(self, operator: str) -> slice:
        """Where the neurons of an operator are."""
        found = np.flatnonzero(self.neurons.operator == operator)
        return slice(int(found[0]), int(found[-1]) + 1)

    def place(self, operator: str, layer: int, neuron: int) -> int:
        """The row of a neuron."""
        return int(of_neuron(self.neurons.reset_index(drop=True), operator, layer, neuron).index[0])

    def pushes(self, operator: str, prompts: Prompts, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Activation × the value vector's logit of a number, one for each prompt: [neurons of the operator, prompts]."""
        rows = self.rows(operator)
        return self.activations[rows, prompts.op1, prompts.op2].astype(np.float64) * self.logits[rows, numbers]

    def push(self, place: int) -> NDArray[np.float32]:
        """Activation × logit of the prompt's answer, for every pair of operands; NaN where a prompt is not legal."""
        prompts = operand_grid(str(self.neurons.operator.iloc[place]), self.max_operand)
        legal = prompts.legal(self.limit)
        on_answer = np.full(len(prompts), np.nan, dtype=np.float32)
        on_answer[legal] = self.logits[place][prompts.answer[legal]]
        return self.activations[place].astype(np.float32) * on_answer.reshape(self.activations.shape[1:])

    def summary(self) -> dict[str, Any]:
        return {
            operator: {"neurons": len(rows), "share_direct": float(rows.direct.mean())}
            for operator, rows in ((o, self.neurons.iloc[self.rows(o)]) for o in self.operators)
        }


def patterns(
    model: Model, topk: TopK, max_operand: int, progress: Progress, executor: Executor = LOCAL
) -> ActivationMaps:
    """One sweep over the operand square of each operator."""
    neurons = topk.top.rename(columns={"value": "effect"}).reset_index(drop=True)
    layer, neuron = neurons.layer.to_numpy(), neurons.neuron.to_numpy()
    operators = {
        str(o): slice(rows.index[0], rows.index[-1] + 1) for o, rows in neurons.groupby("operator", sort=False)
    }
    activations = np.empty((len(neurons), (max_operand + 1) ** 2), dtype=np.float16)
    logits = np.empty((len(neurons), model.limit), dtype=np.float32)
    with progress.task("patterns", len(operators) * (max_operand + 1) ** 2) as advance:
        places = [(o, cells) for o in operators for cells in grid_units(1, max_operand)]
        swept = [
            (operand_grid(o, max_operand)[cells], layer[operators[o]], neuron[operators[o]]) for o, cells in places
        ]
        for done in executor.stream(fired, model, swept, advance):  # as they come: all of them together are large
            o, cells = places[done.place]
            activations[operators[o], cells] = done.result
        of_layer = {int(i): np.flatnonzero(layer == i) for i in np.unique(layer)}
        lenses = executor.map(promoted, model, [(i, neuron[rows]) for i, rows in of_layer.items()], advance)
        for rows, found in zip(of_layer.values(), lenses, strict=True):
            logits[rows] = found
        some = [
            (o, b, rows.start)
            for o, rows in operators.items()
            for b in split_evenly(rows.stop - rows.start, NEURONS_IN_UNIT)
        ]
        looked = [(o, max_operand, *(x[first:][b] for x in (activations, logits))) for o, b, first in some]
        described = executor.map(told, model, looked, advance)
    columns = {name: np.concatenate([part[name] for part in described]) for name in described[0]}
    direct = (columns["result"] > np.maximum(columns["op1"], columns["op2"])) & (columns["alignment"] > 0)
    tokens = np.argsort(-logits, axis=1, kind="stable")[:, :TOP_TOKENS]
    table = neurons.assign(**columns, direct=direct, tokens=list(tokens))[
        ["operator", "layer", "neuron", "rank", "effect", "op1", "op2", "result", "alignment", "direct", "tokens"]
    ]
    return ActivationMaps(table, activations.reshape(-1, max_operand + 1, max_operand + 1), logits)


def fired(
    model: Model, prompts: Prompts, layers: NDArray[Any], neurons: NDArray[Any], *, advance: Advance
) -> NDArray[np.float16]:
    """A unit: activations of some neurons, each given by its layer and its number, at the last position, [neurons, prompts]."""
    found = np.empty((len(neurons), len(prompts)), dtype=np.float16)
    of_layer = {int(layer): np.flatnonzero(layers == layer) for layer in np.unique(layers)}
    chosen = {layer: torch.from_numpy(neurons[rows]).long() for layer, rows in of_layer.items()}
    for some, seen in sweep_neurons(model, prompts, chosen, advance, keep=_stored):
        for layer, rows in of_layer.items():
            _put(found, rows, some, seen[layer].numpy())
    return found


def _stored(activations: Tensor) -> Tensor:
    """[prompts, neurons] as they are kept: the other way round, in float16."""
    return activations.float().clamp(-LARGEST, LARGEST).half().T.contiguous().cpu()


def _put(found: NDArray[Any], rows: NDArray[np.int64], columns: NDArray[np.int64], values: NDArray[Any]) -> None:
    """found[rows, columns] = values, ten times as fast if both are runs of consecutive numbers, as they nearly always are."""
    if all(x[-1] - x[0] + 1 == len(x) for x in (rows, columns)) and (np.diff(columns) == 1).all():
        found[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = values
    else:
        found[np.ix_(rows, columns)] = values


def activation_map(model: Model, operator: str, layer: int, neuron: int, max_operand: int) -> NDArray[np.float16]:
    """The pattern of any one neuron: [op1, op2]."""
    where = np.array([layer]), np.array([neuron])
    found = fired(model, operand_grid(operator, max_operand), *where, advance=lambda n: None)
    return found.reshape(max_operand + 1, max_operand + 1)


@torch.no_grad()
def promoted(model: Model, layer: int, neurons: NDArray[Any], *, advance: Advance) -> NDArray[np.float32]:
    """A unit: the logits of the numbers that the value vectors of some neurons of a layer have, [neurons, numbers]."""
    tokens, vectors, found = model.encoder.answer_tokens, model.value_vectors(layer), []
    with fetched(model.unembedding):
        for some in np.array_split(neurons, -(-len(neurons) // rows_within(ROWS, 1))):
            lens = model.logit_lens(vectors[torch.from_numpy(some).to(vectors.device, torch.long)])
            found.append(lens[:, tokens.to(lens.device)].cpu().numpy())
    return np.concatenate(found)


def told(
    model: Model,
    operator: str,
    max_operand: int,
    activations: NDArray[np.float16],
    logits: NDArray[np.float32],
    *,
    advance: Advance,
) -> dict[str, NDArray[np.float64]]:
    """A unit: of some neurons the columns op1, op2, result and alignment."""
    prompts = legal_prompts(operator, max_operand, model.limit)
    cells = torch.from_numpy(prompts.op1 * (max_operand + 1) + prompts.op2).to(model.device)
    numbers = {"op1": prompts.op1, "op2": prompts.op2, "result": prompts.answer}
    codes = {name: torch.from_numpy(x).to(model.device) for name, x in numbers.items()}

    def look(rows: NDArray[np.int64]) -> list[Tensor]:
        active, written = (torch.from_numpy(x[rows]).to(model.device) for x in (activations, logits))
        spread = Spread(taken(active, cells))
        found = [*(spread.variance_explained(x) for x in codes.values()), spread.correlation(codes["result"], written)]
        return [x.cpu() for x in found]

    pieces = np.array_split(np.arange(len(activations)), -(-len(activations) // rows_within(ROWS, 1)))
    with workers() as pool:
        each = map if model.device.type == "cuda" else pool.map
        found = zip((*codes, "alignment"), zip(*each(look, pieces), strict=True), strict=True)
        return {name: torch.cat(parts).numpy() for name, parts in found}

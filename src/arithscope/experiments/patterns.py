"""What makes each top neuron fire, and what it writes: its activation for all pairs of operands, its value vector's logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.result import Result, of_neuron
from arithscope.experiments.topk import TopK
from arithscope.heuristics.matching import taken
from arithscope.heuristics.variance import Spread
from arithscope.progress import Progress
from arithscope.prompts import Prompts, legal_prompts, square
from arithscope.subject.subject import Subject
from arithscope.subject.sweep import sweep_neurons
from arithscope.threads import workers

TOP_TOKENS = 10
LARGEST = float(np.finfo(np.float16).max)
ROWS = 16  # patterns that are looked at together; many more are slower, as memory for them is fetched anew each time


@dataclass(frozen=True, repr=False)
class Patterns(Result):
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
        prompts = square(str(self.neurons.operator.iloc[place]), self.max_operand)
        legal = prompts.legal(self.limit)
        on_answer = np.full(len(prompts), np.nan, dtype=np.float32)
        on_answer[legal] = self.logits[place][prompts.answer[legal]]
        return self.activations[place].astype(np.float32) * on_answer.reshape(self.activations.shape[1:])

    def summary(self) -> dict[str, Any]:
        return {
            operator: {"neurons": len(rows), "share_direct": float(rows.direct.mean())}
            for operator, rows in ((o, self.neurons.iloc[self.rows(o)]) for o in self.operators)
        }


def patterns(subject: Subject, topk: TopK, max_operand: int, progress: Progress) -> Patterns:
    """One sweep over the operand square of each operator."""
    neurons = topk.top.rename(columns={"value": "effect"}).reset_index(drop=True)
    activations = np.empty((len(neurons), (max_operand + 1) ** 2), dtype=np.float16)
    operators = [str(o) for o in neurons.operator.unique()]
    with progress.task("patterns", len(operators) * (max_operand + 1) ** 2) as advance:
        for operator in operators:
            of_operator = neurons[neurons.operator == operator]
            fill_activations(subject, operator, of_operator, max_operand, activations, advance)
    logits = _lens(subject, neurons)
    described = [
        _described(subject, o, neurons[neurons.operator == o], activations, logits, max_operand) for o in operators
    ]
    table = pd.concat(described)[
        ["operator", "layer", "neuron", "rank", "effect", "op1", "op2", "result", "alignment", "direct", "tokens"]
    ]
    return Patterns(table, activations.reshape(-1, max_operand + 1, max_operand + 1), logits)


def fill_activations(
    subject: Subject,
    operator: str,
    neurons: pd.DataFrame,
    max_operand: int,
    activations: NDArray[np.float16],
    advance: Callable[[int], None] = lambda n: None,
) -> None:
    """Sweep over an operator's square and write the patterns of some neurons (columns layer, neuron) into those rows of
    `activations` [rows, op1 × op2] that are their labels in the table."""
    layers = {
        int(str(layer)): (rows.index.to_numpy(), torch.tensor(rows.neuron.to_numpy()).long())
        for layer, rows in neurons.groupby("layer")
    }
    chosen = {layer: which for layer, (_, which) in layers.items()}
    for prompts, seen in sweep_neurons(subject, square(operator, max_operand), chosen, advance):
        for layer, (rows, _) in layers.items():
            values = seen[layer].float().clamp(-LARGEST, LARGEST)
            activations[np.ix_(rows, prompts)] = values.T.half().cpu().numpy()


def pattern_of(subject: Subject, operator: str, layer: int, neuron: int, max_operand: int) -> NDArray[np.float16]:
    """The pattern of any one neuron: [op1, op2]."""
    found = np.empty((1, (max_operand + 1) ** 2), dtype=np.float16)
    fill_activations(subject, operator, pd.DataFrame({"layer": [layer], "neuron": [neuron]}), max_operand, found)
    return found.reshape(max_operand + 1, max_operand + 1)


@torch.no_grad()
def _lens(subject: Subject, neurons: pd.DataFrame) -> NDArray[np.float32]:
    """[rows, numbers]"""
    tokens = subject.encoder.answer_tokens
    out = np.empty((len(neurons), len(tokens)), dtype=np.float32)
    for layer, rows in neurons.groupby("layer"):
        vectors = subject.value_vectors(int(str(layer)))
        for some in np.array_split(rows.index.to_numpy(), -(-len(rows) // ROWS)):
            chosen = torch.tensor(neurons.neuron.to_numpy()[some]).to(vectors.device, torch.long)
            lens = subject.logit_lens(vectors[chosen])
            out[some] = lens[:, tokens.to(lens.device)].cpu().numpy()
    return out


def _described(
    subject: Subject,
    operator: str,
    neurons: pd.DataFrame,
    activations: NDArray[np.float16],
    logits: NDArray[np.float32],
    max_operand: int,
) -> pd.DataFrame:
    prompts = legal_prompts(operator, max_operand, subject.limit)
    cells = torch.from_numpy(prompts.op1 * (max_operand + 1) + prompts.op2).to(subject.device)
    numbers = {"op1": prompts.op1, "op2": prompts.op2, "result": prompts.answer}
    codes = {name: torch.from_numpy(x).to(subject.device) for name, x in numbers.items()}

    def told(rows: NDArray[np.int64]) -> list[Tensor]:
        fired, written = (torch.from_numpy(x[rows]).to(subject.device) for x in (activations, logits))
        spread = Spread(taken(fired, cells))
        found = [*(spread.told_by(x) for x in codes.values()), spread.correlation(codes["result"], written)]
        return [x.cpu() for x in found]

    pieces = np.array_split(neurons.index.to_numpy(), -(-len(neurons) // ROWS))
    with workers() as pool:
        each = map if subject.device.type == "cuda" else pool.map
        found = zip((*codes, "alignment"), zip(*each(told, pieces), strict=True), strict=True)
        columns = {name: torch.cat(parts).numpy() for name, parts in found}
    direct = (columns["result"] > np.maximum(columns["op1"], columns["op2"])) & (columns["alignment"] > 0)
    tokens = np.argsort(-logits[neurons.index], axis=1, kind="stable")[:, :TOP_TOKENS]
    return neurons.assign(**columns, direct=direct, tokens=list(tokens))

"""One sweep over the whole operand square: mean activations, which a component is set to when it is left out of a circuit, and
the model's answer to every prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from arithscope.experiments.common.answers import Answers
from arithscope.experiments.common.result import Result
from arithscope.models.engine.sweep import Means, mean_activations
from arithscope.models.model import Model
from arithscope.prompts import Prompts, operand_grid
from arithscope.utils.executor import LOCAL, Executor, split_evenly
from arithscope.utils.progress import Advance, Progress

OP1_IN_UNIT = 100


@dataclass(frozen=True, repr=False)
class MeanActivations(Result):
    """Over all prompts of all operators that the tokenizer can write, legal or not, so that operators weigh the same.

    predicted and p_answer: of each prompt, in the order of `square`, the number that the model answers (−1 if it is none), and
    the right answer's probability (NaN if that is no single token)."""

    heads: NDArray[np.float32]  # layers, positions, heads, head dim
    neurons: NDArray[np.float32]  # layers, positions, neurons
    predicted: NDArray[np.int32]  # prompts
    p_answer: NDArray[np.float32]  # prompts
    operators: list[str]
    max_operand: int

    def summary(self) -> dict[str, Any]:
        return {}

    def on(self, device: torch.device) -> Means:
        return Means(torch.from_numpy(self.heads).to(device), torch.from_numpy(self.neurons).to(device))


def means(model: Model, max_operand: int, progress: Progress, executor: Executor = LOCAL) -> MeanActivations:
    """One sweep over the square of every operator that the subject's tokenizer can write, studied or not."""
    operators = model.encoder.operators
    prompts = operand_grid(operators, max_operand)
    units = [(prompts[rows],) for rows in units_of_grid(len(operators), max_operand)]
    with progress.task("means", len(prompts)) as advance:
        found = executor.map(means_of, model, units, advance)
    heads, neurons, predicted, p_answer = zip(*found, strict=True)
    shares = [len(some) / len(prompts) for (some,) in units]
    return MeanActivations(
        _weighted(heads, shares),
        _weighted(neurons, shares),
        np.concatenate(predicted),
        np.concatenate(p_answer),
        list(operators),
        max_operand,
    )


def _weighted(parts: Sequence[NDArray[np.float32]], shares: Sequence[float]) -> NDArray[np.float32]:
    total = np.zeros(parts[0].shape)
    for part, share in zip(parts, shares, strict=True):
        total += share * part.astype(np.float64)
    return total.astype(np.float32)


def units_of_grid(operators: int, max_operand: int) -> list[slice]:
    """Rows of the square of so many operators, for a unit each; prompts that begin with the same operator and op1 together."""
    side = max_operand + 1
    return [
        slice((o * side + block.start) * side, (o * side + block.stop) * side)
        for o in range(operators)
        for block in split_evenly(side, OP1_IN_UNIT)
    ]


def means_of(model: Model, prompts: Prompts, *, advance: Advance) -> tuple[NDArray[Any], ...]:
    """A unit: mean activations of heads and neurons, and what the model answers: number and probability of the right one."""
    answers = Answers(model, prompts)
    found = mean_activations(model, prompts, advance, see=answers.see)
    heads, neurons = (x.cpu().numpy() for x in (found.heads, found.neurons))
    return heads, neurons, answers.predicted, answers.p_answer

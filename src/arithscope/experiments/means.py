"""One sweep over the whole operand square: mean activations, which a component is set to when it is left out of a circuit, and
the model's answer to every prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from arithscope.experiments.answers import Answers
from arithscope.experiments.result import Result
from arithscope.progress import Progress
from arithscope.prompts import square
from arithscope.subject.subject import Subject
from arithscope.subject.sweep import Means, mean_activations


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


def means(subject: Subject, max_operand: int, progress: Progress) -> MeanActivations:
    """One sweep over the square of every operator that the subject's tokenizer can write, studied or not."""
    operators = subject.encoder.operators
    prompts = square(operators, max_operand)
    answers = Answers(subject, prompts)
    with progress.task("means", len(prompts)) as advance:
        found = mean_activations(subject, prompts, advance, see=answers.see)
    heads, neurons = (x.cpu().numpy() for x in (found.heads, found.neurons))
    return MeanActivations(heads, neurons, answers.predicted, answers.p_answer, list(operators), max_operand)

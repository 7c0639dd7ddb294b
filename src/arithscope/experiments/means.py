"""Mean activations over the whole operand square: what a component is set to when it is left out of a circuit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from arithscope.progress import Progress
from arithscope.prompts import square
from arithscope.subject.subject import Subject
from arithscope.subject.sweep import Means, mean_activations


@dataclass(frozen=True)
class MeanActivations:
    """Over all prompts of all operators, legal or not, so that operators weigh the same."""

    heads: NDArray[np.float32]  # layers, positions, heads, head dim
    neurons: NDArray[np.float32]  # layers, positions, neurons
    prompts: int

    def summary(self) -> dict[str, Any]:
        return {}

    def on(self, device: torch.device) -> Means:
        return Means(torch.from_numpy(self.heads).to(device), torch.from_numpy(self.neurons).to(device))


def means(subject: Subject, max_operand: int, progress: Progress) -> MeanActivations:
    """One sweep over the square of every operator that the subject's tokenizer can write, studied or not."""
    prompts = square(subject.encoder.operators, max_operand)
    with progress.task("means", len(prompts)) as advance:
        found = mean_activations(subject, prompts, advance)
    return MeanActivations(found.heads.cpu().numpy(), found.neurons.cpu().numpy(), len(prompts))

"""The model's answers to many prompts, collected batch by batch during a sweep."""

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from arithscope.models.model import Model
from arithscope.prompts import Prompts
from arithscope.stats.effects import log_probability


class Answers:
    """Answers to some prompts."""

    predicted: NDArray[np.int32]  # number whose token is the most probable; −1 if that token is no number
    p_answer: NDArray[np.float32]  # probability of the right answer; NaN for prompts that are not legal

    def __init__(self, model: Model, prompts: Prompts):
        self._legal = torch.from_numpy(prompts.legal(model.limit))
        self._answer = model.encoder.answer_tokens[torch.from_numpy(np.where(self._legal, prompts.answer, 0))]
        self._numbers = model.token_numbers
        self.predicted = np.full(len(prompts), -1, dtype=np.int32)
        self.p_answer = np.full(len(prompts), np.nan, dtype=np.float32)

    def observe(self, rows: NDArray[np.int64], logits: Float[Tensor, "rows vocabulary"]) -> None:
        """Take in the logits of some of the prompts."""
        self.predicted[rows] = self._numbers[logits.argmax(-1).cpu()].numpy()
        p = log_probability(logits, self._answer[rows].to(logits.device)).exp().float().cpu()
        self.p_answer[rows] = torch.where(self._legal[rows], p, torch.nan).numpy()

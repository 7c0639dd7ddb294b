"""What the model says to very many prompts, gathered block by block while something sweeps over them."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from arithscope.models.model import Model
from arithscope.prompts import Prompts
from arithscope.stats.measures import log_probability


class Answers:
    """predicted: the number that the model's most probable token is, −1 if it is none. p_answer: the right answer's
    probability, NaN for prompts without an answer that is a single token."""

    predicted: NDArray[np.int32]
    p_answer: NDArray[np.float32]

    def __init__(self, model: Model, prompts: Prompts):
        self._legal = torch.from_numpy(prompts.legal(model.limit))
        self._wanted = model.encoder.answer_tokens[torch.from_numpy(np.where(self._legal, prompts.answer, 0))]
        self._numbers = model.number_of_token
        self.predicted = np.full(len(prompts), -1, dtype=np.int32)
        self.p_answer = np.full(len(prompts), np.nan, dtype=np.float32)

    def see(self, rows: NDArray[np.int64], logits: Float[Tensor, "rows vocabulary"]) -> None:
        """The logits behind some of the prompts."""
        self.predicted[rows] = self._numbers[logits.argmax(-1).cpu()].numpy()
        p = log_probability(logits, self._wanted[rows].to(logits.device)).exp().float().cpu()
        self.p_answer[rows] = torch.where(self._legal[rows], p, torch.nan).numpy()

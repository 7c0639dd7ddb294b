"""Mean activations over the operand grid, for mean ablation, and the model's answers (Section 2.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common import schema
from arithscope.experiments.common.result import Result
from arithscope.experiments.common.stage import Context, stage, sweep_memory
from arithscope.models.engine.sweep import Means
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, Stratum, stratum_from_json
from arithscope.stats.effects import log_probability
from arithscope.utils.executor import Unit, split_evenly
from arithscope.utils.progress import Advance

OP1_IN_UNIT = 100
Singles = NDArray[np.float32]


@dataclass(frozen=True, repr=False)
class MeanActivations(Result):
    """Means over all prompts that the tokenizer can write, legal or not; where numbers take several tokens, over the layout's
    legal prompts. Operators have the same weight."""

    heads: Singles = schema.array("mean activation of each head", "float32", "layers, positions, heads, head dim")
    neurons: Singles = schema.array("mean activation of each neuron", "float32", "layers, positions, neurons")
    predicted: NDArray[np.int32] = schema.array("the model's answer; −1 if not a number", "int32", "prompts")
    p_answer: Singles = schema.array("probability of the right answer; NaN if not a single token", "float32", "prompts")
    whole: NDArray[np.bool_] = schema.array(
        "whether the model's answer is right, at every answer step", "bool", "prompts"
    )
    operators: list[str] = schema.value("operators whose prompts were averaged: all that the tokenizer can write")
    studied: dict[str, Any] = schema.value(schema.STUDIED)

    @property
    def stratum(self) -> Stratum:
        return stratum_from_json(self.studied)

    @property
    def prompts(self) -> Prompts:
        """The prompts that were run, in the order of `predicted`."""
        return self.stratum.run(self.operators)

    def summary(self) -> dict[str, Any]:
        return {}

    def on(self, device: torch.device) -> Means:
        return Means(torch.from_numpy(self.heads).to(device), torch.from_numpy(self.neurons).to(device))


@stage(reads=("max_operand",), memory=sweep_memory, paper="2.1")
def means(ctx: Context) -> MeanActivations:
    """Mean activation of every head and neuron, and the model's answer to every prompt, in one sweep over the operand grid."""
    operators, stratum = ctx.model.encoder.operators, ctx.stratum
    prompts = stratum.run(operators)
    units = [(prompts[rows],) for rows in prompt_units(prompts)]
    with ctx.progress.task("means", len(prompts)) as advance:
        parts = ctx.map(means_of, units, advance)
    heads, neurons, predicted, p_answer = zip(*parts, strict=True)
    answers = np.concatenate(predicted), np.concatenate(p_answer)
    right = stratum.legal(prompts) & (answers[0] == prompts.result)
    mean_heads, mean_neurons = (mean_of_operators(x, prompts, units) for x in (heads, neurons))
    return MeanActivations(mean_heads, mean_neurons, *answers, right, list(operators), stratum.as_json())


def mean_of_operators(parts: Sequence[Singles], prompts: Prompts, units: Sequence[Unit]) -> Singles:
    """The mean in which operators weigh the same, from the means of units, each with some prompts of one operator."""
    sizes = np.bincount(prompts.operator, minlength=len(OPERATORS))
    shares = [len(some) / (np.count_nonzero(sizes) * sizes[some.operator[0]]) for (some,) in units]
    total = sum(share * part.astype(np.float64) for part, share in zip(parts, shares, strict=True))
    return np.asarray(total, dtype=np.float32)


def prompt_units(prompts: Prompts) -> list[slice]:
    """Split prompts, ordered by operator and op1, into units of work; those with the same operator and op1 stay together."""
    units = []
    for operator in np.unique(prompts.operator):
        rows = np.flatnonzero(prompts.operator == operator)
        _, first = np.unique(prompts.op1[rows], return_index=True)
        edges = rows[0] + np.append(first, len(rows))
        units += [slice(int(edges[c.start]), int(edges[c.stop])) for c in split_evenly(len(first), OP1_IN_UNIT)]
    return units


def means_of(model: Model, prompts: Prompts, *, advance: Advance) -> tuple[NDArray[Any], ...]:
    """Unit of work: mean activations of heads and neurons, predicted numbers, and probabilities of the right answer."""
    answers = Answers(model, prompts)
    means = model.engine.mean_activations(
        model, prompts, advance, observe=lambda rows, x: answers.observe(rows, x[:, 0])
    )
    return means.heads.cpu().numpy(), means.neurons.cpu().numpy(), answers.predicted, answers.p_answer


class Answers:
    """The model's answers to some prompts, collected batch by batch during a sweep."""

    tokens: NDArray[np.int64]  # the most probable token
    predicted: NDArray[np.int32]  # its number; −1 if it is not one
    p_answer: NDArray[np.float32]  # probability of the right answer; NaN for prompts that are not legal
    log_p: NDArray[np.float32]  # its logarithm

    def __init__(self, model: Model, prompts: Prompts):
        self._legal = torch.from_numpy(model.encoder.legal(prompts))
        some = int(model.encoder.answer_tokens.argmax())  # any number that has a token
        self._answer = model.encoder.answer_tokens[torch.from_numpy(np.where(self._legal, prompts.result, some))]
        self._numbers = model.token_numbers
        self.tokens, self.predicted = np.full(len(prompts), -1), np.full(len(prompts), -1, dtype=np.int32)
        self.p_answer, self.log_p = (np.full(len(prompts), np.nan, dtype=np.float32) for _ in range(2))

    def observe(self, rows: NDArray[np.int64], logits: Float[Tensor, "rows vocabulary"]) -> None:
        tokens = logits.argmax(-1).cpu()
        self.tokens[rows], self.predicted[rows] = tokens.numpy(), self._numbers[tokens].numpy()
        log_p = log_probability(logits, self._answer[rows].to(logits.device))
        for kept, x in ((self.p_answer, log_p.exp()), (self.log_p, log_p)):
            kept[rows] = torch.where(self._legal[rows], x.float().cpu(), torch.nan).numpy()

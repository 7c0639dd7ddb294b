"""Explains one prompt: the answer, the heuristics that hold, the direct logit attribution of their neurons, and the answer
without them."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.classify import Classification
from arithscope.experiments.common.association import Association, association, matched_random_neurons
from arithscope.experiments.common.result import Described
from arithscope.heuristics.kinds import Bools
from arithscope.models.hooks import editing, zero_ablation_edits
from arithscope.models.logit_attribution import direct_logit_attribution
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, random_source

HEURISTIC_NEURONS = "associated neurons"
MOST_PROBABLE = 5  # tokens listed with an answer


@dataclass(frozen=True)
class Answer:
    """The model's answer to one prompt.

    Attributes:
        token: The most probable token, as text.
        number: The number it stands for; None if it is no number.
        probability: Its probability.
        p_answer: Probability of the right answer.
        most_probable: The most probable tokens with their probabilities.
    """

    token: str
    number: int | None
    probability: float
    p_answer: float
    most_probable: list[tuple[str, float]]


@dataclass(frozen=True)
class AblatedAnswer:
    """The answer with neurons zero-ablated, and with as many of each layer that are not associated with the prompt (None if
    there are fewer)."""

    neurons: int
    answer: Answer
    control: Answer | None


@dataclass(frozen=True, repr=False)
class Explanation(Described):
    """The explanation of a prompt. Its *associated* neurons are the top neurons that match a heuristic which holds for it.

    Attributes:
        right: The right answer.
        criterion: Whether raw or calibrated matches were used.
        answer: The model's answer.
        logit: Logit of the right answer, before soft-capping: the sum of `parts`.
        scale: Scale of the final norm.
        parts: Direct logit attribution: associated neurons, other top neurons, all other neurons, attention, embeddings,
            biases, and the remainder (rounding; in some families norms after MLPs and attention).
        heuristics: Heuristics that hold, with the number of neurons that match each and their contribution; a neuron may
            match several. Columns: heuristic, kind, on, direct, neurons, contribution.
        neurons: The associated neurons by the size of their contribution, activation × value_logit (of the right answer,
            through the logit lens) ÷ scale, each with its best-scoring heuristic that holds. Columns: layer, neuron,
            activation, value_logit, contribution, heuristic, kind, on, score.
        kinds: Contribution by kind of that heuristic, each neuron once, and the running sum.
        ablated: The answer without the associated neurons.
    """

    prompt: str
    operator: str
    op1: int
    op2: int
    right: int
    criterion: str
    answer: Answer
    logit: float
    scale: float
    parts: dict[str, float]
    heuristics: pd.DataFrame
    neurons: pd.DataFrame
    kinds: pd.DataFrame
    ablated: AblatedAnswer

    def __repr__(self) -> str:
        answer = self.answer.token if self.answer.number is None else self.answer.number
        verdict = "right" if self.answer.number == self.right else f"wrong: it is {self.right}"
        return (
            f"Explanation({self.prompt!r} → {answer} ({verdict}), P = {self.answer.probability:.3f}, {len(self.heuristics)} "
            f"heuristics with {len(self.neurons)} neurons hold ({self.criterion}))"
        )

    def _repr_html_(self) -> str:
        parts = pd.DataFrame({"part": list(self.parts), "adds to the logit": list(self.parts.values())})
        tables = (parts, self.kinds, self.heuristics.head(10))
        return f"<b>{html.escape(repr(self))}</b>" + "".join(table.to_html(index=False) for table in tables)


@torch.no_grad()
def explain_prompt(
    model: Model, classification: Classification, prompt: Prompts, criterion: str, seed: int
) -> Explanation:
    """Explain one prompt with the heuristics of a classification, by raw or calibrated matches."""
    operator = OPERATORS[int(prompt.operator[0])]
    bag = association(classification, operator, criterion)
    ids, token = model.encode(prompt), model.answers(prompt)
    parts = direct_logit_attribution(model, ids, token)
    score = bag.best_scores(prompt)[:, 0]
    associated = score > 0
    contribution, activation, value_logit = (
        x[0].cpu().double().numpy()[bag.layers, bag.neurons]
        for x in (parts.neurons, parts.activations, parts.value_logits)
    )
    all_neurons = float(parts.neurons.sum())
    best = _best_heuristics(bag, prompt, score)
    rows = np.flatnonzero(associated)
    rows = rows[np.argsort(-np.abs(contribution[rows]), kind="stable")]
    neurons = pd.DataFrame(
        {
            "layer": bag.layers[rows],
            "neuron": bag.neurons[rows],
            "activation": activation[rows],
            "value_logit": value_logit[rows],
            "contribution": contribution[rows],
            "heuristic": [str(bag.heuristics[i]) for i in best[rows]],
            "kind": [bag.heuristics[i].kind for i in best[rows]],
            "on": [bag.heuristics[i].on for i in best[rows]],
            "score": score[rows],
        }
    )
    return Explanation(
        prompt=prompt.text(model.encoder.template)[0].removeprefix(model.encoder.template.prefix),
        operator=operator,
        op1=int(prompt.op1[0]),
        op2=int(prompt.op2[0]),
        right=int(prompt.answer[0]),
        criterion=criterion,
        answer=answer_without(model, prompt, ()),
        logit=float(parts.logit),
        scale=float(parts.scale),
        parts={
            HEURISTIC_NEURONS: float(contribution[associated].sum()),
            "other top neurons": float(contribution[~associated].sum()),
            "all other neurons": all_neurons - float(contribution.sum()),
            "attention": float(parts.attention.sum()),
            "embeddings": float(parts.embeddings),
            "biases": float(parts.biases),
            "remainder": float(parts.unexplained),
        },
        heuristics=_heuristics(bag, prompt, contribution),
        neurons=neurons,
        kinds=_kinds(neurons),
        ablated=_ablated(model, bag, associated, prompt, random_source(seed, "explain", operator)),
    )


@torch.no_grad()
def answer_without(model: Model, prompt: Prompts, neurons: Iterable[tuple[int, int]]) -> Answer:
    """The answer to one prompt with these neurons, (layer, index), zero-ablated at the last position."""
    with editing(model, zero_ablation_edits(model, neurons), 1):
        return _answer(model, model.logits(model.encode(prompt))[0], int(model.answers(prompt)[0]))


def _best_heuristics(bag: Association, prompt: Prompts, score: NDArray[np.float64]) -> NDArray[np.int64]:
    """Best-scoring heuristic that holds for each associated neuron, the first of equal ones; −1 for other neurons."""
    best = np.full(len(bag), -1)
    best_match = bag.holds(prompt)[bag.heuristic, 0] & (bag.score == score[bag.row])
    best[bag.row[best_match][::-1]] = bag.heuristic[best_match][::-1]  # the last one written stays
    return best


def _heuristics(bag: Association, prompt: Prompts, contribution: NDArray[np.float64]) -> pd.DataFrame:
    rows = []
    for i in np.flatnonzero(bag.holds(prompt)[:, 0]):
        h, members = bag.heuristics[i], bag.members(int(i))
        columns = {"heuristic": str(h), "kind": h.kind, "on": h.on, "direct": h.direct}
        rows.append({**columns, "neurons": int(members.sum()), "contribution": float(contribution[members].sum())})
    table = pd.DataFrame(rows, columns=["heuristic", "kind", "on", "direct", "neurons", "contribution"])
    return table.sort_values("contribution", ascending=False, kind="stable", ignore_index=True)


def _kinds(neurons: pd.DataFrame) -> pd.DataFrame:
    """Contribution by kind of the best heuristic, each neuron once, the largest first, with the running sum."""
    grouped = neurons.groupby(["kind", "on"], sort=False).contribution.agg(["size", "sum"]).reset_index()
    table = grouped.rename(columns={"size": "neurons", "sum": "contribution"})
    table = table.sort_values("contribution", ascending=False, kind="stable", ignore_index=True)
    return table.assign(running=table.contribution.cumsum())


def _ablated(
    model: Model, bag: Association, associated: Bools, prompt: Prompts, random: np.random.Generator
) -> AblatedAnswer:
    control = matched_random_neurons(bag, associated, ~associated, random)

    def without(chosen: Bools) -> Answer:
        return answer_without(model, prompt, zip(bag.layers[chosen], bag.neurons[chosen], strict=True))

    enough = control.sum() == associated.sum()
    return AblatedAnswer(int(associated.sum()), without(associated), without(control) if enough else None)


def _answer(model: Model, logits: torch.Tensor, right: int) -> Answer:
    p = logits.double().softmax(-1)
    token = int(logits.argmax())
    number = int(model.token_numbers[token])
    best = p.topk(min(MOST_PROBABLE, len(p)))
    shown = [(str(model.tokenizer.decode([int(i)])), float(x)) for x, i in zip(best.values, best.indices, strict=True)]
    text = str(model.tokenizer.decode([token]))
    return Answer(text, number if number >= 0 else None, float(p[token]), float(p[right]), shown)

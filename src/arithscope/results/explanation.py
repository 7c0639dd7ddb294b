"""One prompt: what the model answers, which heuristics hold for it, what their neurons add to the answer, and what it answers
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
from arithscope.experiments.common.association import Association, as_many, association
from arithscope.experiments.common.result import Shown
from arithscope.heuristics.kinds import Bools
from arithscope.models.hooks import editing, zero_ablation
from arithscope.models.logit_attribution import direct_logit_attribution
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, random_source

HEURISTIC_NEURONS = "associated neurons"
MOST_PROBABLE = 5  # tokens that are told of an answer


@dataclass(frozen=True)
class Answer:
    """What the model says: the token as text, the number it is (None if it is none), and probabilities."""

    token: str
    number: int | None
    probability: float
    p_answer: float  # of the right answer
    most_probable: list[tuple[str, float]]  # tokens, the first of them the one above


@dataclass(frozen=True)
class Silenced:
    """What the model says without some neurons; `control` loses as many of each layer that are not associated with the prompt
    (None if there are not as many)."""

    neurons: int
    answer: Answer
    control: Answer | None


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """A prompt's *associated* neurons are the top neurons that match a heuristic which holds for it.

    logit: of the right answer, before soft-capping, as the sum of `parts`: associated neurons, other top neurons, all other
    neurons, attention, embeddings, biases, and what is left over (rounding; in some families norms behind MLPs and attention).
    heuristics: those that hold for the prompt, with how many neurons match each and what these add; a neuron may match several.
    neurons: the associated ones, by the size of what they add: activation × value_logit (of the right answer, through the logit
    lens) ÷ scale. Of each its best-scoring heuristic among those that hold.
    kinds: what neurons add by the kind of that heuristic, each neuron once, and the sum so far."""

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
    heuristics: pd.DataFrame  # heuristic, kind, on, direct, neurons, contribution
    neurons: pd.DataFrame  # layer, neuron, activation, value_logit, contribution, heuristic, kind, on, score
    kinds: pd.DataFrame  # kind, on, neurons, contribution, running
    ablated: Silenced

    def __repr__(self) -> str:
        given = self.answer.token if self.answer.number is None else self.answer.number
        verdict = "right" if self.answer.number == self.right else f"wrong: it is {self.right}"
        return (
            f"Explanation({self.prompt!r} → {given} ({verdict}), P = {self.answer.probability:.3f}, {len(self.heuristics)} "
            f"heuristics with {len(self.neurons)} neurons hold ({self.criterion}))"
        )

    def _repr_html_(self) -> str:
        parts = pd.DataFrame({"part": list(self.parts), "adds to the logit": list(self.parts.values())})
        tables = (parts, self.kinds, self.heuristics.head(10))
        return f"<b>{html.escape(repr(self))}</b>" + "".join(table.to_html(index=False) for table in tables)


@torch.no_grad()
def explain(model: Model, classify: Classification, prompt: Prompts, criterion: str, seed: int) -> Explanation:
    """Explain one prompt with the heuristics that a run found, by raw or calibrated matches."""
    operator = OPERATORS[int(prompt.operator[0])]
    of = association(classify, operator, criterion)
    ids, token = model.encode(prompt), model.answers(prompt)
    parts = direct_logit_attribution(model, ids, token)
    score = of.best_scores(prompt)[:, 0]
    associated = score > 0
    adds, fires, lens = (
        x[0].cpu().double().numpy()[of.layers, of.neurons]
        for x in (parts.neurons, parts.activations, parts.value_logits)
    )
    everything = float(parts.neurons.sum())
    best = _best_heuristics(of, prompt, score)
    rows = np.flatnonzero(associated)
    rows = rows[np.argsort(-np.abs(adds[rows]), kind="stable")]
    neurons = pd.DataFrame(
        {
            "layer": of.layers[rows],
            "neuron": of.neurons[rows],
            "activation": fires[rows],
            "value_logit": lens[rows],
            "contribution": adds[rows],
            "heuristic": [str(of.heuristics[i]) for i in best[rows]],
            "kind": [of.heuristics[i].kind for i in best[rows]],
            "on": [of.heuristics[i].on for i in best[rows]],
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
            HEURISTIC_NEURONS: float(adds[associated].sum()),
            "other top neurons": float(adds[~associated].sum()),
            "all other neurons": everything - float(adds.sum()),
            "attention": float(parts.attention.sum()),
            "embeddings": float(parts.embeddings),
            "biases": float(parts.biases),
            "left over": float(parts.left_over),
        },
        heuristics=_heuristics(of, prompt, adds),
        neurons=neurons,
        kinds=_kinds(neurons),
        ablated=_silenced(model, of, associated, prompt, random_source(seed, "explain", operator)),
    )


@torch.no_grad()
def answer_without(model: Model, prompt: Prompts, neurons: Iterable[tuple[int, int]]) -> Answer:
    """What the model says to one prompt while these neurons, (layer, index), are set to zero at the last position."""
    with editing(model, zero_ablation(model, neurons), 1):
        return _answer(model, model.logits(model.encode(prompt))[0], int(model.answers(prompt)[0]))


def _best_heuristics(of: Association, prompt: Prompts, score: NDArray[np.float64]) -> NDArray[np.int64]:
    """Of each associated neuron the heuristic that holds with the best score, the first of equal ones; −1 for the others."""
    best = np.full(len(of), -1)
    wanted = of.holds(prompt)[of.heuristic, 0] & (of.score == score[of.row])
    best[of.row[wanted][::-1]] = of.heuristic[wanted][::-1]  # of several, the last that is written stays
    return best


def _heuristics(of: Association, prompt: Prompts, adds: NDArray[np.float64]) -> pd.DataFrame:
    rows = []
    for i in np.flatnonzero(of.holds(prompt)[:, 0]):
        h, members = of.heuristics[i], of.members(int(i))
        named = {"heuristic": str(h), "kind": h.kind, "on": h.on, "direct": h.direct}
        rows.append({**named, "neurons": int(members.sum()), "contribution": float(adds[members].sum())})
    table = pd.DataFrame(rows, columns=["heuristic", "kind", "on", "direct", "neurons", "contribution"])
    return table.sort_values("contribution", ascending=False, kind="stable", ignore_index=True)


def _kinds(neurons: pd.DataFrame) -> pd.DataFrame:
    """Each neuron once, by the kind of its best heuristic; the largest contribution first, then the sum so far."""
    grouped = neurons.groupby(["kind", "on"], sort=False).contribution.agg(["size", "sum"]).reset_index()
    table = grouped.rename(columns={"size": "neurons", "sum": "contribution"})
    table = table.sort_values("contribution", ascending=False, kind="stable", ignore_index=True)
    return table.assign(running=table.contribution.cumsum())


def _silenced(
    model: Model, of: Association, associated: Bools, prompt: Prompts, random: np.random.Generator
) -> Silenced:
    control = as_many(of, associated, ~associated, random)

    def without(chosen: Bools) -> Answer:
        return answer_without(model, prompt, zip(of.layers[chosen], of.neurons[chosen], strict=True))

    enough = control.sum() == associated.sum()
    return Silenced(int(associated.sum()), without(associated), without(control) if enough else None)


def _answer(model: Model, logits: torch.Tensor, right: int) -> Answer:
    p = logits.double().softmax(-1)
    said = int(logits.argmax())
    number = int(model.number_of_token[said])
    best = p.topk(min(MOST_PROBABLE, len(p)))
    shown = [(str(model.tokenizer.decode([int(i)])), float(x)) for x, i in zip(best.values, best.indices, strict=True)]
    text = str(model.tokenizer.decode([said]))
    return Answer(text, number if number >= 0 else None, float(p[said]), float(p[right]), shown)

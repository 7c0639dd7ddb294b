"""The explanation of one prompt: the heuristics that hold, the direct logit attribution of their neurons, and the answer with
these neurons ablated."""

import html
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from arithscope.experiments.common.association import Association, matched_random_neurons
from arithscope.experiments.common.result import Described
from arithscope.heuristics.kinds import Bools
from arithscope.models.hooks import editing, zero_ablation_edits
from arithscope.models.logit_attribution import direct_logit_attribution
from arithscope.models.model import Model
from arithscope.prompts import Prompts, random_source
from arithscope.stats.intervals import Floats

HEURISTIC_NEURONS = "associated neurons"
MOST_PROBABLE = 5  # tokens listed with an answer


@dataclass(frozen=True)
class Answer:
    """The model's answer to one prompt."""

    token: str  # the most probable next token, as text
    number: int | None  # the number it stands for, if any
    probability: float  # of the token
    p_answer: float  # probability of the right answer
    most_probable: list[tuple[str, float]]  # tokens with their probabilities


@dataclass(frozen=True)
class AblatedAnswer:
    """The answer with the associated neurons zero-ablated, and the control: as many other top neurons per layer (None if there
    are too few)."""

    neurons: int  # number of associated neurons
    answer: Answer
    control: Answer | None


@dataclass(frozen=True, repr=False)
class Explanation(Described):
    """The explanation of a prompt. Its *associated* neurons are the top neurons that match a heuristic that holds for it.

    Attributes:
        parts: Direct logit attribution: associated neurons, other top neurons, all other neurons, attention, embeddings,
            biases, and the remainder (rounding; in some families also the norms after attention and MLPs).
        heuristics: Heuristics that hold, with the number of neurons that match each and their contribution; a neuron may
            match several. Columns: heuristic, kind, on, direct, neurons, contribution.
        neurons: The associated neurons, largest contribution first, each with its best-scoring heuristic that holds. The
            contribution is activation × value_logit (of the right answer, by the logit lens) ÷ scale. Columns: layer,
            neuron, activation, value_logit, contribution, heuristic, kind, on, score.
    """

    prompt: str
    operator: str
    op1: int
    op2: int
    right: int  # the right answer, or value of the token that is asked for
    criterion: str  # `raw` or `calibrated` matches
    answer: Answer  # the model's
    logit: float  # of the right answer, before soft-capping: the sum of `parts`
    scale: float  # of the final norm
    parts: dict[str, float]
    heuristics: pd.DataFrame
    neurons: pd.DataFrame
    kinds: pd.DataFrame  # contribution by kind of that heuristic, each neuron once, and the running sum
    ablated: AblatedAnswer  # without the associated neurons

    def __repr__(self) -> str:
        answer = self.answer.token if self.answer.number is None else self.answer.number
        verdict = "right" if self.answer.number == self.right else f"wrong: the answer is {self.right}"
        return (
            f"Explanation({self.prompt!r} → {answer} ({verdict}), P = {self.answer.probability:.3f}, {len(self.heuristics)} "
            f"heuristics with {len(self.neurons)} neurons hold ({self.criterion}))"
        )

    def _repr_html_(self) -> str:
        parts = pd.DataFrame({"part": list(self.parts), "adds to the logit": list(self.parts.values())})
        tables = (parts, self.kinds, self.heuristics.head(10))
        return f"<b>{html.escape(repr(self))}</b>" + "".join(table.to_html(index=False) for table in tables)


@torch.no_grad()
def explain(model: Model, bag: Association, prompt: Prompts, criterion: str, seed: int) -> Explanation:
    """Explain one prompt with the heuristics of its operator; `criterion` says which matches they are from."""
    parts = direct_logit_attribution(model, model.encode(prompt), model.answers(prompt))
    score = bag.best_scores(prompt)[:, 0]
    associated = score > 0
    measured = {"activation": parts.activations, "value_logit": parts.value_logits, "contribution": parts.neurons}
    columns = {name: x[0].cpu().double().numpy()[bag.layers, bag.neurons] for name, x in measured.items()}
    contribution = columns["contribution"]
    neurons = _associated_neurons(bag, prompt, score, columns)
    return Explanation(
        prompt=model.encoder.shown(prompt)[0],
        operator=bag.operator,
        op1=int(prompt.op1[0]),
        op2=int(prompt.op2[0]),
        right=int(prompt.result[0]),
        criterion=criterion,
        answer=answer_without(model, prompt, ()),
        logit=float(parts.logit),
        scale=float(parts.scale),
        parts={
            HEURISTIC_NEURONS: float(contribution[associated].sum()),
            "other top neurons": float(contribution[~associated].sum()),
            "all other neurons": float(parts.neurons.sum()) - float(contribution.sum()),
            "attention": float(parts.attention.sum()),
            "embeddings": float(parts.embeddings),
            "biases": float(parts.biases),
            "remainder": float(parts.unexplained),
        },
        heuristics=_heuristics(bag, prompt, contribution),
        neurons=neurons,
        kinds=_kinds(neurons),
        ablated=_ablated(model, bag, associated, prompt, random_source(seed, "explain", bag.operator)),
    )


@torch.no_grad()
def answer_without(model: Model, prompt: Prompts, neurons: Iterable[tuple[int, int]]) -> Answer:
    """The answer to one prompt with these neurons, (layer, index), zero-ablated at the last position."""
    with editing(model, zero_ablation_edits(model, neurons), 1):
        logits = model.logits(model.encode(prompt))[0]
    p = logits.double().softmax(-1)
    token = int(logits.argmax())
    number = int(model.token_numbers[token])
    p_answer = float(p[int(model.answers(prompt)[0])])
    best = p.topk(min(MOST_PROBABLE, len(p)))
    shown = [(str(model.tokenizer.decode([int(i)])), float(x)) for x, i in zip(best.values, best.indices, strict=True)]
    text = str(model.tokenizer.decode([token]))
    return Answer(text, number if number >= 0 else None, float(p[token]), p_answer, shown)


def _associated_neurons(bag: Association, prompt: Prompts, score: Floats, columns: dict[str, Floats]) -> pd.DataFrame:
    """The associated neurons, each with its best heuristic that holds, largest contribution first."""
    is_best = bag.holds(prompt)[bag.heuristic, 0] & (bag.score == score[bag.row])
    rows, first = np.unique(bag.row[is_best], return_index=True)  # among equal scores, the first match
    best = [bag.heuristics[i] for i in bag.heuristic[is_best][first]]
    table = pd.DataFrame({"layer": bag.layers, "neuron": bag.neurons, **columns}).iloc[rows]
    names = {"heuristic": [str(h) for h in best], "kind": [h.kind for h in best], "on": [h.on for h in best]}
    table = table.assign(**names, score=score[rows])
    return table.sort_values("contribution", key=lambda x: -x.abs(), kind="stable", ignore_index=True)


def _heuristics(bag: Association, prompt: Prompts, contribution: Floats) -> pd.DataFrame:
    rows = []
    for i in np.flatnonzero(bag.holds(prompt)[:, 0]):
        h, members = bag.heuristics[i], bag.members(int(i))
        rows.append((str(h), h.kind, h.on, h.direct, int(members.sum()), float(contribution[members].sum())))
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

"""Asks a model prompts, and explains one: the answer, the heuristics that hold, the direct logit attribution of their neurons,
and the answer without them."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.experiments.classify import Classification
from arithscope.experiments.common.association import Association, association, matched_random_neurons
from arithscope.experiments.common.result import Described
from arithscope.experiments.common.samples import batches
from arithscope.experiments.means import Answers
from arithscope.heuristics.kinds import Bools
from arithscope.models.hooks import editing, zero_ablation_edits
from arithscope.models.logit_attribution import direct_logit_attribution
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, concatenate_prompts, parse_prompt, random_source

HEURISTIC_NEURONS = "associated neurons"
MOST_PROBABLE = 5  # tokens listed with an answer


@dataclass(frozen=True)
class Answer:
    """The model's answer to one prompt."""

    token: str  # the most probable one, as text
    number: int | None  # that the token stands for
    probability: float  # of the token
    p_answer: float  # probability of the right answer
    most_probable: list[tuple[str, float]]  # tokens with their probabilities


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
        parts: Direct logit attribution: associated neurons, other top neurons, all other neurons, attention, embeddings,
            biases, and the remainder (rounding; in some families norms after MLPs and attention).
        heuristics: Heuristics that hold, with the number of neurons that match each and their contribution; a neuron may
            match several. Columns: heuristic, kind, on, direct, neurons, contribution.
        neurons: The associated neurons by the size of their contribution, activation × value_logit (of the right answer,
            through the logit lens) ÷ scale, each with its best-scoring heuristic that holds. Columns: layer, neuron,
            activation, value_logit, contribution, heuristic, kind, on, score.
    """

    prompt: str
    operator: str
    op1: int
    op2: int
    right: int  # the right answer
    criterion: str  # whether raw or calibrated matches were used
    answer: Answer  # of the model
    logit: float  # of the right answer, before soft-capping: the sum of `parts`
    scale: float  # of the final norm
    parts: dict[str, float]
    heuristics: pd.DataFrame
    neurons: pd.DataFrame
    kinds: pd.DataFrame  # contribution by kind of that heuristic, each neuron once, and the running sum
    ablated: AblatedAnswer  # without the associated neurons

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
def ask(
    model: Model, prompts: str | Sequence[str] | Prompts, without: Iterable[tuple[int, int]] | pd.DataFrame = ()
) -> pd.DataFrame:
    """Ask a model some prompts.

    Args:
        model: The model.
        prompts: Texts such as `226-68=`, or prompts.
        without: Neurons to zero-ablate at the last position: pairs (layer, neuron), or a table with these columns.

    Returns:
        One row per prompt: prompt, answer (the right one), predicted (−1 if the model's token is no number), correct, and
        p_answer (probability of the right answer).

    Raises:
        UserError: If a text is no prompt, or there is none.

    Example:
        >>> arithscope.ask(arithscope.load("tiny-llama"), ["226-68=", "23+14="])
    """
    if not isinstance(prompts, Prompts):
        operators, limit = model.encoder.operators, model.limit
        texts = [prompts] if isinstance(prompts, str) else prompts
        if not (parsed := [parse_prompt(text, operators, limit - 1, limit) for text in texts]):
            raise UserError("There is no prompt to ask; write one as in 226-68=.")
        prompts = concatenate_prompts(parsed)
    ablated = zip(without.layer, without.neuron, strict=True) if isinstance(without, pd.DataFrame) else without
    edits, answers = zero_ablation_edits(model, ablated), Answers(model, prompts)
    for rows, batch in batches(model, prompts, 0):
        with editing(model, edits, len(batch)):
            answers.observe(rows, model.logits(model.encode(batch)))
    return pd.DataFrame(
        {
            "prompt": prompts.text(replace(model.encoder.template, prefix="")),
            "answer": prompts.answer,
            "predicted": answers.predicted,
            "correct": answers.predicted == prompts.answer,
            "p_answer": answers.p_answer,
        }
    )


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
    measured = {"activation": parts.activations, "value_logit": parts.value_logits, "contribution": parts.neurons}
    columns = {name: x[0].cpu().double().numpy()[bag.layers, bag.neurons] for name, x in measured.items()}
    contribution = columns["contribution"]
    best_match = bag.holds(prompt)[bag.heuristic, 0] & (bag.score == score[bag.row])
    best = dict(zip(bag.row[best_match][::-1], bag.heuristic[best_match][::-1], strict=True))  # the first of equal ones
    rows = np.flatnonzero(associated)
    rows = rows[np.argsort(-np.abs(contribution[rows]), kind="stable")]
    own = [bag.heuristics[best[row]] for row in rows]
    neurons = pd.DataFrame({"layer": bag.layers, "neuron": bag.neurons, **columns}).iloc[rows].reset_index(drop=True)
    names, kinds, on = [str(h) for h in own], [h.kind for h in own], [h.on for h in own]
    neurons = neurons.assign(heuristic=names, kind=kinds, on=on, score=score[rows])
    return Explanation(
        prompt=prompt.text(replace(model.encoder.template, prefix=""))[0],
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
            "all other neurons": float(parts.neurons.sum()) - float(contribution.sum()),
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
        logits = model.logits(model.encode(prompt))[0]
    p, token = logits.double().softmax(-1), int(logits.argmax())
    number, best = int(model.token_numbers[token]), p.topk(min(MOST_PROBABLE, len(p)))
    shown = [(str(model.tokenizer.decode([int(i)])), float(x)) for x, i in zip(best.values, best.indices, strict=True)]
    text, p_answer = str(model.tokenizer.decode([token])), float(p[int(model.answers(prompt)[0])])
    return Answer(text, number if number >= 0 else None, float(p[token]), p_answer, shown)


def _heuristics(bag: Association, prompt: Prompts, contribution: NDArray[np.float64]) -> pd.DataFrame:
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

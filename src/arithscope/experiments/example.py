"""One prompt, answered by its bag of heuristics: what each heuristic neuron adds to the logits of all numbers (Figure 1).

1. Choose a prompt: 226-68=, the paper's example, if it is among the study's correct prompts. Otherwise a typical one of the
   first operator of - + * /: among at most 100 held-out prompts, that with the median number of associated neurons (by
   calibrated matches; the lower one of two in the middle).
2. Explain it by calibrated matches, or by raw ones if no neuron with a calibrated match is associated with it.
3. Each associated neuron adds activation × value vector's logits ÷ the final norm's scale to the logits of the numbers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.classify import CALIBRATED, RAW, Classification
from arithscope.experiments.common import schema
from arithscope.experiments.common.association import Association, association
from arithscope.experiments.common.explanation import Answer, explain
from arithscope.experiments.common.result import Result
from arithscope.experiments.common.samples import splits
from arithscope.experiments.common.stage import Context, stage
from arithscope.experiments.means import Singles
from arithscope.experiments.patterns import ActivationMaps
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, random_source, sample
from arithscope.settings import Settings
from arithscope.utils.progress import Advance

PAPERS = (226, "-", 68)  # the paper's running example
ORDER = ("-", "+", "*", "/")  # operators, that of the paper's example first
CANDIDATES = 100  # held-out prompts among which a typical one is chosen
SHOWN = 8  # neurons whose logits of all numbers are stored
NEURONS_AT_ONCE = 4096  # whose logits are summed, so that they fit in memory
NONE, OWN, CONTROL = ("none", "associated", "control")  # neurons ablated
_CONTRIBUTION = schema.number("contribution", "what it adds to the logit of the right answer")


@dataclass(frozen=True, repr=False)
class Example(Result):
    """How one prompt is answered. Its associated neurons are the top neurons that match a heuristic that holds for it."""

    operator: str = schema.value("operator of the prompt")
    op1: int = schema.value("first operand")
    op2: int = schema.value("second operand")
    answer: int = schema.value("the right answer")
    criterion: str = schema.value("matches that are used: `calibrated`, or `raw` if there are none for this prompt")
    top_neurons: int = schema.value("number of top neurons of the operator")
    answers: pd.DataFrame = schema.table(
        "The model's answer, also without some neurons; `control` is missing if a layer has too few other top neurons.",
        schema.text(
            "ablated", "neurons ablated: `none`, `associated`, or as many others per layer (`control`)", key=True
        ),
        schema.number("neurons", "number of neurons ablated"),
        schema.number("predicted", "the model's answer; −1 if its token is not a number"),
        schema.number("probability", "probability of that token"),
        schema.number("p_answer", "probability of the right answer"),
    )
    parts: pd.DataFrame = schema.table(
        "Direct logit attribution of the right answer: the parts add up to its logit (before soft-capping).",
        schema.text("part", "what adds to the logit", key=True),
        _CONTRIBUTION,
    )
    heuristics: pd.DataFrame = schema.table(
        "The heuristics that hold, largest contribution of their neurons first; a neuron may match several.",
        schema.text("heuristic", "the heuristic", key=True),
        schema.text("kind", "its kind"),
        schema.text("on", "what it is about"),
        schema.boolean("direct", "whether it is about the result"),
        schema.number("neurons", "number of neurons that match it"),
        _CONTRIBUTION,
    )
    neurons: pd.DataFrame = schema.table(
        "The associated neurons, largest absolute contribution first, each with its best-scoring heuristic that holds.",
        schema.LAYER,
        schema.NEURON,
        schema.number("activation", "activation at the last position"),
        schema.number(
            "factor", "activation ÷ the final norm's scale, by which the value vector's logits are multiplied"
        ),
        schema.number("value_logit", "value vector's logit of the right answer (logit lens)"),
        _CONTRIBUTION,
        schema.text("heuristic", "the heuristic"),
        schema.text("kind", "its kind"),
        schema.text("on", "what it is about"),
        schema.number("score", "score of the match"),
    )
    logits: Singles = schema.array(
        f"what each of the first {SHOWN} associated neurons adds to the logit of each number",
        "float32",
        "neurons, numbers",
    )
    total: Singles = schema.array(
        "what all associated neurons together add to the logit of each number", "float32", "numbers"
    )
    probabilities: Singles = schema.array("the model's probability of each number", "float32", "numbers")

    def summary(self) -> dict[str, Any]:
        return {}  # one prompt is an illustration, not a measure


def _memory(model: Model, settings: Settings) -> int:
    """The value vectors of a layer in float64."""
    return 2 * 8 * model.sizes.neurons * model.sizes.width


@stage(needs=(Accuracy, ActivationMaps, Classification), reads=("sizes", "seed"), memory=_memory, paper="1")
def example(ctx: Context) -> Example:
    """One prompt: the heuristics that hold for it, and what their neurons add to the logits of all numbers."""
    prompt, classification = choose_prompt(ctx), ctx.results[Classification]
    operator = OPERATORS[int(prompt.operator[0])]
    bag, criterion = association(classification, operator, CALIBRATED), CALIBRATED
    if not bag.best_scores(prompt).any():
        bag, criterion = association(classification, operator, RAW), RAW
    with ctx.progress.task("example", 1) as advance:
        [(found, probabilities)] = ctx.map(explained, [(bag, prompt, criterion, ctx.settings.seed)], advance)
    tables = {name: pd.DataFrame(columns)[Example.columns(name)] for name, columns in found.items()}
    second = found["answers"]["second"]  # a close call may change the answer, but little else
    answers = ctx.confirmed("answers", tables["answers"], second=second)
    parts, heuristics = (ctx.confirmed(name, tables[name]) for name in ("parts", "heuristics"))
    neurons = ctx.confirmed("neurons", tables["neurons"])
    logits, total = promoted(ctx.results[ActivationMaps], operator, neurons)
    return Example(
        operator=operator,
        op1=int(prompt.op1[0]),
        op2=int(prompt.op2[0]),
        answer=int(prompt.result[0]),
        criterion=criterion,
        top_neurons=len(bag),
        answers=answers,
        parts=parts,
        heuristics=heuristics,
        neurons=neurons,
        logits=ctx.confirmed("logits", logits),
        total=ctx.confirmed("total", total),
        probabilities=ctx.confirmed("probabilities", probabilities),
    )


def choose_prompt(ctx: Context) -> Prompts:
    """The paper's prompt if the study has it and the model answers it correctly; otherwise a typical one, see above."""
    classification, (op1, operator, op2) = ctx.results[Classification], PAPERS
    correct = ctx.results[Accuracy].correct(operator)
    papers = correct[(correct.op1 == op1) & (correct.op2 == op2)]
    if len(papers) and operator in classification.operators:
        return papers
    known = splits(ctx)
    operator = next(o for o in ORDER if o in known and o in classification.operators)
    # With very few correct prompts none is held out; evaluation prompts are not used to choose neurons either.
    pool = known[operator].held_out if len(known[operator].held_out) else known[operator].evaluation
    candidates = sample(pool, CANDIDATES, random_source(ctx.settings.seed, "example", operator))
    counts = (association(classification, operator, CALIBRATED).best_scores(candidates) > 0).sum(0)
    middle = np.argsort(counts, kind="stable")[(len(counts) - 1) // 2]
    return candidates[[int(middle)]]


@torch.no_grad()
def explained(
    model: Model, bag: Association, prompt: Prompts, criterion: str, seed: int, *, advance: Advance
) -> tuple[dict[str, dict[Any, Any]], Singles]:
    """Unit of work: the explanation of a prompt as columns of tables, and the probabilities of all numbers."""
    e = explain(model, bag, prompt, criterion, seed)
    tokens = model.encoder.answer_tokens
    probabilities = model.logits(model.encode(prompt))[0].double().softmax(-1)[tokens]
    probabilities[tokens < 0] = 0  # numbers that have no token
    answers = {NONE: (0, e.answer), OWN: (e.ablated.neurons, e.ablated.answer)}
    if e.ablated.control is not None:
        answers[CONTROL] = e.ablated.neurons, e.ablated.control
    rows = [{"ablated": name, "neurons": n, **_answer(answer)} for name, (n, answer) in answers.items()]
    tables = {
        "answers": pd.DataFrame(rows),
        "parts": pd.DataFrame({"part": list(e.parts), "contribution": list(e.parts.values())}),
        "heuristics": e.heuristics,
        "neurons": e.neurons.assign(factor=e.neurons.activation / e.scale),
    }
    advance(1)
    return {name: table.to_dict("list") for name, table in tables.items()}, probabilities.float().cpu().numpy()


def _answer(answer: Answer) -> dict[str, Any]:
    predicted = -1 if answer.number is None else answer.number
    second = answer.most_probable[1][1]
    return {"predicted": predicted, "probability": answer.probability, "p_answer": answer.p_answer, "second": second}


def promoted(maps: ActivationMaps, operator: str, neurons: pd.DataFrame) -> tuple[Singles, Singles]:
    """What associated neurons add to the logit of each number: the first SHOWN one by one, and all of them together."""
    rows = maps.rows(operator)
    own = maps.neurons.iloc[rows]
    place_of = {neuron: rows.start + i for i, neuron in enumerate(zip(own.layer, own.neuron, strict=True))}
    wanted = zip(neurons.layer, neurons.neuron, strict=True)
    places = np.array([place_of[neuron] for neuron in wanted], dtype=np.int64)
    factors = neurons.factor.to_numpy(dtype=np.float64)
    total = np.zeros(maps.limit)
    for start in range(0, len(places), NEURONS_AT_ONCE):
        some = slice(start, start + NEURONS_AT_ONCE)
        total += factors[some] @ maps.logits[places[some]].astype(np.float64)
    shown = factors[:SHOWN, None] * maps.logits[places[:SHOWN]]
    return shown.astype(np.float32), total.astype(np.float32)

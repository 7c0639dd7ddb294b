"""Why the bag of heuristics fails on some prompts: too few heuristics, or too weak a push for the right answer?

Prompts that the model gets right and prompts that it gets wrong are compared in (i) how many heuristic neurons are
associated with them and (ii) how much heuristic neurons add to the right answer's logit: activation × the value vector's
logit of the answer, summed. (Logits are those of the lens, up to the final norm's scale.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy, as_prompts
from arithscope.experiments.classify import CALIBRATED, CRITERIA, Classification
from arithscope.experiments.common.association import association
from arithscope.experiments.common.result import MEAN, Result, by_operator, with_average
from arithscope.experiments.common.samples import SampleSizes, splits
from arithscope.experiments.patterns import ActivationMaps
from arithscope.prompts import random_source, sample
from arithscope.stats.measures import bootstrap_mean, difference, logistic
from arithscope.utils.progress import Progress

HYPOTHESES = ("associated_neurons", "contribution")
FEATURES = (*HYPOTHESES, "associated_contribution")
AUC = "auc"
WORST = 10  # prompts that are looked at one by one
PUSHERS = 5  # heuristics that are named for each of them


@dataclass(frozen=True, repr=False)
class Failures(Result):
    """prompts: the sample, with the model's answer, and by each criterion the number of associated heuristic neurons, the
    contribution of all heuristic neurons to the right answer's logit, and that of the associated ones alone.
    differences: correct minus incorrect prompts, of each of these.
    model: a logistic model of correctness on the first two: log-odds per standard deviation, and the area under its curve.
    worst: of all prompts that the model answers with a wrong number, those with the lowest probability of the right one.
    `pushed` is by how much all calibrated heuristic neurons together push the given answer above the right one, and
    `heuristics` are those whose neurons do most of it (`pushes`). A neuron counts for the heuristic it matches furthest beyond
    expectation."""

    prompts: pd.DataFrame  # operator, op1, op2, answer, predicted, correct, p_answer, {criterion}_{feature}, …
    differences: pd.DataFrame  # operator, criterion, feature, correct, incorrect, value, low, high, n
    model: pd.DataFrame  # operator, criterion, term, value, low, high, n
    worst: pd.DataFrame  # operator, op1, op2, answer, predicted, p_answer, pushed, heuristics, pushes
    table: pd.DataFrame  # operator, measure, value, low, high, n

    def summary(self) -> dict[str, Any]:
        return by_operator(self.table)


def failures(
    accuracy: Accuracy,
    patterns: ActivationMaps,
    classify: Classification,
    sizes: SampleSizes,
    seed: int,
    progress: Progress,
) -> Failures:
    """Compare correct with incorrect prompts of each operator that has both."""
    known = accuracy.prompts
    samples, worst = [], []
    differences: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    with progress.task("failures", len(classify.operators)) as advance:
        for operator, split in splits(accuracy, sizes, seed).items():
            wrong = known[(known.operator == operator) & ~known.correct]
            if operator in classify.operators and len(wrong) and len(split.held_out):
                pools = {"right": split.held_out, "wrong": as_prompts(wrong)}
                both = [sample(p, sizes.failures, random_source(seed, name, operator)) for name, p in pools.items()]
                rows = pd.concat([accuracy.rows(prompts) for prompts in both], ignore_index=True)
                samples.append(rows.assign(**features_of(rows, operator, patterns, classify)))
                for found, told in ((differences, compared), (models, modelled)):
                    found += [{"operator": operator, **row} for row in told(samples[-1], seed)]
                worst.append(worst_prompts(wrong, operator, patterns, classify))
            elif operator in classify.operators:
                progress.note(
                    f"failures: {operator} is left out, as there are not both right and wrong prompts to compare"
                )
            advance(1)
    empty = pd.DataFrame(columns=[*known.columns, *(f"{c}_{f}" for c in CRITERIA for f in FEATURES)])
    gaps = pd.DataFrame(differences, columns=["operator", "criterion", "feature", "correct", "incorrect", *MEAN])
    model = pd.DataFrame(models, columns=["operator", "criterion", "term", *MEAN])
    return Failures(
        pd.concat(samples, ignore_index=True) if samples else empty,
        gaps,
        model,
        pd.DataFrame([row for rows in worst for row in rows], columns=_WORST),
        _table(gaps, model),
    )


def features_of(
    rows: pd.DataFrame, operator: str, patterns: ActivationMaps, classify: Classification
) -> dict[str, NDArray[np.float64]]:
    """What the bag of heuristics has for each prompt, by both criteria."""
    prompts = as_prompts(rows)
    pushes = patterns.pushes(operator, prompts, prompts.answer)
    found: dict[str, NDArray[np.float64]] = {}
    for criterion in CRITERIA:
        of = association(classify, operator, criterion)
        associated = of.best_scores(prompts) > 0
        values = (associated.sum(0), pushes[of.classified].sum(0), np.where(associated, pushes, 0.0).sum(0))
        found |= {f"{criterion}_{name}": x.astype(np.float64) for name, x in zip(FEATURES, values, strict=True)}
    return found


def compared(rows: pd.DataFrame, seed: int) -> Iterator[dict[str, Any]]:
    """Of each feature its mean over correct and over incorrect prompts, and the difference."""
    for criterion in CRITERIA:
        for feature in FEATURES:
            values, operator = rows[f"{criterion}_{feature}"], str(rows.operator.iloc[0])
            random = random_source(seed, "failures", operator, criterion, feature)
            right, wrong = (bootstrap_mean(values[which], random) for which in (rows.correct, ~rows.correct))
            named = {"criterion": criterion, "feature": feature, "correct": right.value, "incorrect": wrong.value}
            yield {**named, **asdict(difference(right, wrong))}


def modelled(rows: pd.DataFrame, seed: int) -> Iterator[dict[str, Any]]:
    """What both hypotheses together tell of correctness."""
    for criterion in CRITERIA:
        random = random_source(seed, "failures model", str(rows.operator.iloc[0]), criterion)
        features = rows[[f"{criterion}_{name}" for name in HYPOTHESES]].to_numpy(dtype=np.float64)
        fitted = logistic(features, rows.correct.to_numpy(dtype=np.bool_), random)
        terms = {
            "intercept": fitted.intercept,
            **dict(zip(HYPOTHESES, fitted.coefficients, strict=True)),
            AUC: fitted.auc,
        }
        yield from ({"criterion": criterion, "term": term, **asdict(mean)} for term, mean in terms.items())


def worst_prompts(
    wrong: pd.DataFrame, operator: str, patterns: ActivationMaps, classify: Classification
) -> Iterator[dict[str, Any]]:
    """Prompts with the least probable right answer, and which heuristics pushed the one that was given."""
    rows = wrong[wrong.predicted >= 0].nsmallest(WORST, "p_answer", keep="first")
    prompts = as_prompts(rows)
    given, right = (patterns.pushes(operator, prompts, n) for n in (rows.predicted.to_numpy(), prompts.answer))
    main = _main_heuristics(classify, operator)
    pushes = pd.DataFrame((given - right)[main.index]).groupby(main.to_numpy()).sum()
    for i, row in enumerate(rows.to_dict("records")):
        most = pushes[i].sort_values(ascending=False, kind="stable").head(PUSHERS)
        most = most[most > 0]
        named = {name: row[name] for name in _WORST[:6]}
        yield {**named, "pushed": float(pushes[i].sum()), "heuristics": list(most.index), "pushes": most.tolist()}


def _main_heuristics(classify: Classification, operator: str) -> pd.Series[Any]:
    """Of each calibrated neuron, by its row among the operator's top neurons, the heuristic furthest beyond expectation."""
    top = classify.neurons[classify.neurons.operator == operator].reset_index()
    best = (
        classify.matched(operator, CALIBRATED)
        .sort_values("neg_log10_p", ascending=False, kind="stable")
        .drop_duplicates(["layer", "neuron"])
    )
    found = top[["layer", "neuron"]].merge(best[["layer", "neuron", "heuristic"]], how="left", on=["layer", "neuron"])
    return found.heuristic.dropna()


def _table(differences: pd.DataFrame, model: pd.DataFrame) -> pd.DataFrame:
    """The differences, and the models' areas under the curve."""
    areas = model[model.term == AUC].rename(columns={"term": "feature"})
    rows = pd.concat([differences, areas])
    return with_average(rows.assign(measure=rows.criterion + "_" + rows.feature))


_WORST = ["operator", "op1", "op2", "answer", "predicted", "p_answer", "pushed", "heuristics", "pushes"]

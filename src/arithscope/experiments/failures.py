"""Why the bag of heuristics fails on some prompts: too few heuristics, or too small a contribution? (Section 4.3)

1. Draw held-out correct prompts and as many incorrect ones.
2. Count the heuristic neurons associated with each prompt (i), and sum the direct logit attribution of heuristic neurons to the
   right answer: activation × value vector's logit of the answer (ii).
3. Compare correct with incorrect prompts in both, fit a logistic regression of correctness on both, and measure how well such a
   regression tells correct from incorrect prompts that it was not fitted to.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy, as_prompts
from arithscope.experiments.classify import CALIBRATED, CRITERIA, Classification
from arithscope.experiments.common import schema
from arithscope.experiments.common.association import association
from arithscope.experiments.common.result import Result, by_operator, with_average
from arithscope.experiments.common.samples import splits
from arithscope.experiments.common.stage import Context, stage
from arithscope.experiments.patterns import ActivationMaps
from arithscope.prompts import random_source, sample
from arithscope.stats.classifiers import cross_validated_auc, logistic
from arithscope.stats.intervals import difference, t_mean

HYPOTHESES = ("associated_neurons", "contribution")
FEATURES = (*HYPOTHESES, "associated_contribution")
AUC = "auc"
WORST = 10  # prompts that are listed one by one
LISTED_HEURISTICS = 5  # for each of them
_FEATURES = {f"{criterion}_{feature}": (criterion, feature) for criterion in CRITERIA for feature in FEATURES}
_PROMPT = (
    *schema.PROMPT_KEY,
    schema.number("answer", "the right answer"),
    schema.number("predicted", "the model's answer"),
)
_P_ANSWER = schema.number("p_answer", "probability of the right answer")


@dataclass(frozen=True, repr=False)
class Failures(Result):
    """What the bag of heuristics has for correct and for incorrect prompts.

    Features: `associated_neurons`, the number of heuristic neurons associated with a prompt; `contribution`, the direct logit
    attribution of all heuristic neurons to the right answer; `associated_contribution`, that of associated neurons alone.
    """

    prompts: pd.DataFrame = schema.table(
        "The sampled prompts with their features.",
        *_PROMPT,
        schema.boolean("correct", "whether the model answers correctly"),
        _P_ANSWER,
        *(schema.number(name, f"{feature}, by {by} matches") for name, (by, feature) in _FEATURES.items()),
    )
    differences: pd.DataFrame = schema.table(
        "Mean of each feature over correct minus over incorrect prompts.",
        *schema.CRITERION_KEY,
        schema.text("feature", "the feature", key=True),
        schema.number("correct", "mean over correct prompts"),
        schema.number("incorrect", "mean over incorrect prompts"),
        *schema.MEAN_COLUMNS,
    )
    regression: pd.DataFrame = schema.table(
        "Logistic regression of correctness on `associated_neurons` and `contribution`.",
        *schema.CRITERION_KEY,
        schema.text(
            "term", "`intercept`, a feature (log-odds per standard deviation), or `auc`, cross-validated", key=True
        ),
        *schema.MEAN_COLUMNS,
        schema.number("p", "of `auc`: share of shuffled outcomes with an AUC as large; NaN for other terms"),
    )
    worst: pd.DataFrame = schema.table(
        "Incorrect prompts whose right answer is least probable, and the heuristics behind the wrong answer.",
        *_PROMPT,
        _P_ANSWER,
        schema.number("logit_difference", "attribution of calibrated neurons to the model's minus the right answer"),
        schema.listing("heuristics", "heuristics whose neurons contribute most to it"),
        schema.listing("logit_differences", "their contributions"),
    )
    table: pd.DataFrame = schema.table("The differences, and the area under each regression's curve, cross-validated.")

    def auc_p(self, criterion: str) -> dict[str, float]:
        """By operator, the p of the hypothesis that the features have nothing to do with correctness."""
        rows = self.regression[(self.regression.criterion == criterion) & (self.regression.term == AUC)]
        return dict(zip(rows.operator, rows.p, strict=True))

    def summary(self) -> dict[str, Any]:
        out = by_operator(self.table)
        for criterion in CRITERIA:
            for operator, p in self.auc_p(criterion).items():
                out[operator][f"{criterion}_{AUC}_p"] = p
        return out


@stage(needs=(Accuracy, ActivationMaps, Classification), reads=("sizes", "seed"), paper="4.3")
def failures(ctx: Context) -> Failures:
    """Heuristic neurons on correct and on incorrect prompts: how many are associated, and how much they contribute."""
    known, classification, seed = ctx.results[Accuracy].prompts, ctx.results[Classification], ctx.settings.seed
    samples: dict[str, pd.DataFrame] = {}
    with ctx.progress.task("failures", len(classification.operators)) as advance:
        for operator, split in splits(ctx).items():
            incorrect = known[(known.operator == operator) & ~known.correct]
            if operator in classification.operators and len(incorrect) and len(split.held_out):
                pools = {"right": split.held_out, "wrong": as_prompts(incorrect, ctx.results[Accuracy].stratum.asked)}
                sources = {name: random_source(seed, name, operator) for name in pools}
                drawn = [sample(pools[name], ctx.settings.sizes.failures, random) for name, random in sources.items()]
                rows = pd.concat([ctx.results[Accuracy].rows(prompts) for prompts in drawn], ignore_index=True)
                samples[operator] = rows.assign(**_features(ctx, rows, operator))
            elif operator in classification.operators:
                ctx.progress.note(f"failures: {operator} is left out: no correct or no incorrect prompts to compare")
            advance(1)
    prompts = pd.concat([*samples.values()] or [Failures.frame("prompts", [])], ignore_index=True)
    gaps = Failures.frame("differences", (row for o, own in samples.items() for row in _differences(own, o)))
    regression = Failures.frame("regression", (row for o, own in samples.items() for row in _regression(own, o, seed)))
    worst = Failures.frame("worst", (row for operator in samples for row in _worst_prompts(ctx, operator)))
    reported = pd.concat([gaps, regression[regression.term == AUC].rename(columns={"term": "feature"})])
    table = with_average(reported.assign(measure=reported.criterion + "_" + reported.feature))
    return Failures(prompts, gaps, regression, worst, table)


def _features(ctx: Context, rows: pd.DataFrame, operator: str) -> dict[str, NDArray[np.float64]]:
    prompts = as_prompts(rows, ctx.results[Accuracy].stratum.asked)
    attribution = ctx.results[ActivationMaps].direct_logit_attribution(operator, prompts, prompts.result)
    features: dict[str, NDArray[np.float64]] = {}
    for criterion in CRITERIA:
        bag = association(ctx.results[Classification], operator, criterion)
        associated = bag.best_scores(prompts) > 0
        values = (associated.sum(0), attribution[bag.classified].sum(0), np.where(associated, attribution, 0.0).sum(0))
        features |= {f"{criterion}_{name}": x.astype(np.float64) for name, x in zip(FEATURES, values, strict=True)}
    return features


def _differences(rows: pd.DataFrame, operator: str) -> Iterator[dict[str, Any]]:
    for name, (criterion, feature) in _FEATURES.items():
        right, wrong = (t_mean(rows[name][which]) for which in (rows.correct, ~rows.correct))
        key = {"operator": operator, "criterion": criterion, "feature": feature}
        yield {**key, "correct": right.value, "incorrect": wrong.value, **asdict(difference(right, wrong))}


def _regression(rows: pd.DataFrame, operator: str, seed: int) -> Iterator[dict[str, Any]]:
    for criterion in CRITERIA:
        random = random_source(seed, "failures model", operator, criterion)
        features = rows[[f"{criterion}_{name}" for name in HYPOTHESES]].to_numpy(dtype=np.float64)
        correct = rows.correct.to_numpy(dtype=np.bool_)
        area, key = cross_validated_auc(features, correct, random), {"operator": operator, "criterion": criterion}
        for term, mean in zip(("intercept", *HYPOTHESES), logistic(features, correct), strict=True):
            yield {**key, "term": term, **asdict(mean), "p": np.nan}
        yield {**key, "term": AUC, **asdict(area.auc), "p": area.p}


def _worst_prompts(ctx: Context, operator: str) -> Iterator[dict[Any, Any]]:
    """Prompts with the least probable right answer, and the heuristics that contribute to the model's answer."""
    known = ctx.results[Accuracy].prompts
    incorrect = known[(known.operator == operator) & ~known.correct & (known.predicted >= 0)]
    rows = incorrect.nsmallest(WORST, "p_answer", keep="first")
    prompts = as_prompts(rows, ctx.results[Accuracy].stratum.asked)
    attribution = ctx.results[ActivationMaps].direct_logit_attribution
    given, right = (attribution(operator, prompts, x) for x in (rows.predicted.to_numpy(), prompts.result))
    # For each calibrated neuron, by its row among the operator's top neurons, the heuristic with the largest neg_log10_p.
    classification, neuron = ctx.results[Classification], ["layer", "neuron"]
    top = classification.neurons[classification.neurons.operator == operator].reset_index()
    matches = classification.matched(operator, CALIBRATED)
    best = matches.sort_values("neg_log10_p", ascending=False, kind="stable").drop_duplicates(neuron)
    main = top[neuron].merge(best[[*neuron, "heuristic"]], how="left", on=neuron).heuristic.dropna()
    by_heuristic = pd.DataFrame((given - right)[main.index]).groupby(main.to_numpy()).sum()
    for i, row in enumerate(rows.to_dict("records")):
        largest = by_heuristic[i].sort_values(ascending=False, kind="stable").head(LISTED_HEURISTICS)
        largest = largest[largest > 0]
        listed = {"heuristics": list(largest.index), "logit_differences": largest.tolist()}
        yield {**row, "logit_difference": float(by_heuristic[i].sum()), **listed}

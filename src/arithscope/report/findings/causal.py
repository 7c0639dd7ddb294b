"""Findings on ablations of heuristic neurons, and on failures."""

from typing import Any

import numpy as np

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.bag import NONE, RANDOM, TOP, Bag
from arithscope.experiments.classify import CALIBRATED, CRITERIA
from arithscope.experiments.common.result import with_average
from arithscope.experiments.failures import AUC, Failures
from arithscope.experiments.knockout import Knockout
from arithscope.experiments.prompt_knockout import REPORTED, PromptKnockout
from arithscope.figures.words import shown_prompt
from arithscope.report.findings.finding import Finding, Numbers, finding, per_operator, worded
from arithscope.report.formatting import comparisons_in, means_of, operators_of, p_value
from arithscope.stats.intervals import holm


@finding("knockout-by-heuristic", Knockout)
def knockout_by_heuristic(result: Knockout) -> Finding:
    if result.table.empty:
        return Finding("No heuristic has enough neurons to be tested.")
    measures = ("associated", "not_associated", "difference", "vs_unmatched")
    criteria = {c: {m: means_of(result.table, f"{c}_{m}") for m in measures} for c in reversed(CRITERIA)}
    numbers = dict[str, Any]()
    for criterion, means in criteria.items():
        if means["associated"]:
            signs = result.signs[(result.signs.criterion == criterion) & (result.signs.difference == "prompts")]
            tests = per_operator(
                signs, lambda r: f"{r.above.item()} of {(r.above + r.below).item()}, {p_value(r.p.item())}"
            )
            numbers |= {
                f"{criterion}: accuracy left, prompts that satisfy it": means["associated"],
                f"{criterion}: accuracy left, prompts that do not": means["not_associated"],
                f"{criterion}: difference": means["difference"],
                f"{criterion}: heuristics whose prompts lose more, sign test": tests,
                f"{criterion}: accuracy left, other neurons ablated minus own": means["vs_unmatched"],
            }
    comparisons = comparisons_in(*(means[m] for means in criteria.values() for m in ("difference", "vs_unmatched")))
    return worded("knockout_by_heuristic", numbers, criteria=criteria, comparisons=comparisons)


@finding("prompt-knockout", PromptKnockout)
def prompt_knockout(result: PromptKnockout) -> Finding:
    n, measures = REPORTED[-1], ("associated", "vs_other_heuristics", "vs_random", "vs_unassociated")
    criteria = {c: {m: means_of(result.table, f"{c}_{m}_{n}") for m in measures} for c in reversed(CRITERIA)}
    numbers = dict[str, Any]()
    for criterion, means in criteria.items():
        if means["associated"]:
            numbers |= {
                f"{criterion}: accuracy left": means["associated"],
                f"{criterion}: neurons of other heuristics minus associated": means["vs_other_heuristics"],
                f"{criterion}: random neurons minus associated": means["vs_random"],
                f"{criterion}: neurons not associated minus associated": means["vs_unassociated"],
            }
    comparisons = comparisons_in(*(means[m] for means in criteria.values() for m in measures[1:]))
    return worded("prompt_knockout", numbers, criteria=criteria, n=n, comparisons=comparisons)


@finding("bag-alone", Bag)
def bag_alone(result: Bag) -> Finding:
    rows = result.curve[result.curve.measure == "faithfulness"]
    if rows.empty:
        return Finding("There are no operators to compare.")
    accuracy_rows = result.curve[(result.curve.measure == "accuracy") & (result.curve.neurons == CALIBRATED)]
    accuracy = means_of(with_average(accuracy_rows), "accuracy")
    top, calibrated, random, floor = (
        means_of(with_average(rows[rows.neurons == name]), "faithfulness") for name in (TOP, CALIBRATED, RANDOM, NONE)
    )
    kept = per_operator(
        rows, lambda r: f"{r.kept[r.neurons == CALIBRATED].sum():,} of {r.kept[r.neurons == TOP].sum():,}"
    )
    summary = with_average(result.above_floor.assign(measure=result.above_floor.neurons))
    above = means_of(summary, CALIBRATED)
    numbers: Numbers = {
        "heuristic neurons, of top neurons": kept,
        "faithfulness": calibrated,
        "accuracy": accuracy,
        "faithfulness, all top neurons": top,
        "faithfulness, as many random ones": random,
        "faithfulness, no neuron (the floor)": floor,
        "share of what top neurons add to the floor": above,
    }
    words = {
        "top": top,
        "calibrated": calibrated,
        "random": random,
        "floor": floor,
        "above": above,
        "accuracy": accuracy,
    }
    return worded("bag_alone", numbers, **words)


@finding("failure-contributions", Failures)
def failure_contributions(result: Failures) -> Finding:
    if result.table.empty:
        return Finding("No operator has both correct and incorrect prompts to compare.")
    neurons, contribution, auc = (
        means_of(result.table, f"{CALIBRATED}_{name}") for name in ("associated_neurons", "contribution", AUC)
    )
    p = result.auc_p(CALIBRATED)
    comparisons = comparisons_in(neurons, contribution) + len(p)
    passed = dict(zip(p, holm(np.array([*p.values()]), comparisons).tolist(), strict=True))
    predicts = {o: int(passed[o] and auc[o].value > 0.5) for o in operators_of(auc)}
    numbers: dict[str, Any] = {
        "associated neurons, correct minus incorrect": neurons,
        "contribution, correct minus incorrect": contribution,
        "AUC of both, cross-validated (chance: .5)": auc,
        "AUC as large with shuffled outcomes": {o: p_value(p[o]) for o in predicts},
    }
    words = {"neurons": neurons, "contribution": contribution, "predicts": predicts, "comparisons": comparisons}
    return worded("failure_contributions", numbers, **words)


@finding("worst-prompts", Failures, Accuracy)
def worst_prompts(result: Failures, accuracy: Accuracy) -> Finding:
    worst, stratum = result.worst, accuracy.stratum
    if worst.empty:
        return Finding("There are no incorrect prompts.")
    least: Any = worst.iloc[int(worst.p_answer.argmin())]
    prompt, right = shown_prompt(stratum, least.op1, least.operator, least.op2), stratum.asked.of(least.answer)
    return worded("worst_prompts", worst=worst, prompt=prompt, right=right, predicted=least.predicted)

"""Findings on ablations of heuristic neurons, failures, and training checkpoints."""

from typing import Any

import pandas as pd

from arithscope.experiments.bag import RANDOM, TOP, Bag
from arithscope.experiments.classify import CALIBRATED, CRITERIA
from arithscope.experiments.common.result import with_average
from arithscope.experiments.failures import AUC, Failures
from arithscope.experiments.knockout import Knockout
from arithscope.experiments.prompt_knockout import REPORTED, PromptKnockout
from arithscope.experiments.training import Training
from arithscope.figures.style import SIGNS
from arithscope.report.findings.finding import Finding, finding, per_operator
from arithscope.report.formatting import NOTHING, as_mean, differences, means_of, overall, p_value, verdict
from arithscope.stats.intervals import Mean


@finding("knockout-by-heuristic", Knockout)
def knockout_by_heuristic(result: Knockout) -> Finding:
    if result.table.empty:
        return Finding("No heuristic has enough neurons to be tested.")
    sentences, numbers = [], dict[str, Any]()
    for criterion in reversed(CRITERIA):
        associated, others, gap, control = (
            means_of(result.table, f"{criterion}_{measure}")
            for measure in ("associated", "not_associated", "difference", "vs_unmatched")
        )
        if not associated:
            sentences.append(f"By {criterion} matches, no heuristic has enough neurons to be tested.")
            continue
        sentences.append(
            f"By {criterion} matches, accuracy is left at {overall(associated)} on prompts that satisfy the heuristic and at "
            f"{overall(others)} on prompts that do not; n counts heuristics."
            + verdict(gap, "prompts that satisfy it clearly lose more", "prompts that satisfy it clearly lose less")
            + verdict(
                control,
                "ablating as many other top neurons clearly costs them less",
                "ablating as many other top neurons clearly costs them more",
                "ablating as many other top neurons costs them neither clearly more nor clearly less",
            )
        )
        numbers |= {
            f"{criterion}: accuracy left, prompts that satisfy it": associated,
            f"{criterion}: accuracy left, prompts that do not": others,
            f"{criterion}: difference": gap,
            f"{criterion}: heuristics whose prompts lose more, sign test": _sign_tests(result.signs, criterion),
            f"{criterion}: accuracy left, other neurons ablated minus own": control,
        }
    return Finding(" ".join(sentences), numbers)


def _sign_tests(signs: pd.DataFrame, criterion: str) -> dict[str, str]:
    rows = signs[(signs.criterion == criterion) & (signs.difference == "prompts")].to_dict("records")
    return {str(r["operator"]): f"{r['above']} of {r['above'] + r['below']}, {p_value(r['p'])}" for r in rows}


@finding("prompt-knockout", PromptKnockout)
def prompt_knockout(result: PromptKnockout) -> Finding:
    n = REPORTED[-1]
    sentences, numbers = [], dict[str, Any]()
    for criterion in reversed(CRITERIA):
        left, random, others = (
            means_of(result.table, f"{criterion}_{m}_{n}") for m in ("associated", "vs_random", "vs_unassociated")
        )
        if not left:
            sentences.append(f"By {criterion} matches, there are no neurons to ablate.")
            continue
        sentences.append(
            f"By {criterion} matches, zero-ablating {n} of a prompt's associated neurons per layer leaves an accuracy of "
            f"{overall(left)}; with as many random top neurons it is "
            + (f"higher by {overall(random)}." if random else "unknown, as there are not as many.")
            + verdict(random, "associated neurons clearly matter more", "random neurons clearly matter more")
        )
        numbers |= {
            f"{criterion}: accuracy left": left,
            f"{criterion}: random neurons minus associated": random,
            f"{criterion}: neurons not associated minus associated": others,
        }
    return Finding(" ".join(sentences), numbers)


@finding("bag-alone", Bag)
def bag_alone(result: Bag) -> Finding:
    rows = result.curve[result.curve.measure == "faithfulness"]
    if rows.empty:
        return Finding("There are no operators to compare.")
    right = result.curve[(result.curve.measure == "accuracy") & (result.curve.neurons == CALIBRATED)]
    accuracy = means_of(with_average(right), "accuracy")
    top, calibrated, random = (
        means_of(with_average(rows[rows.neurons == name]), "faithfulness") for name in (TOP, CALIBRATED, RANDOM)
    )
    kept = per_operator(
        rows, lambda r: f"{r.kept[r.neurons == CALIBRATED].sum():,} of {r.kept[r.neurons == TOP].sum():,}"
    )
    return Finding(
        f"With only the neurons that have a calibrated heuristic, faithfulness is {overall(calibrated)} and accuracy "
        f"{overall(accuracy)}; with all top neurons faithfulness is {overall(top)}, with as many random top neurons "
        f"{overall(random)}."
        + verdict(
            differences(calibrated, random),
            "heuristic neurons are clearly better than random ones",
            "heuristic neurons are clearly worse than random ones",
        ),
        {
            "heuristic neurons, of top neurons": kept,
            "faithfulness": calibrated,
            "accuracy": accuracy,
            "faithfulness, all top neurons": top,
            "faithfulness, as many random ones": random,
        },
    )


@finding("failure-contributions", Failures)
def failure_contributions(result: Failures) -> Finding:
    if result.table.empty:
        return Finding("No operator has both correct and incorrect prompts to compare.")
    neurons, contribution, auc = (
        means_of(result.table, f"{CALIBRATED}_{name}") for name in ("associated_neurons", "contribution", AUC)
    )
    above_chance = {o: Mean(m.value - 0.5, m.low - 0.5, m.high - 0.5, m.n) for o, m in auc.items()}
    return Finding(
        f"Correct minus incorrect prompts: number of associated heuristic neurons {overall(neurons)}, contribution to the "
        f"correct answer's logit {overall(contribution)}; n is the size of the smaller group."
        + verdict(
            neurons,
            "correct prompts clearly have more associated neurons",
            "correct prompts clearly have fewer associated neurons",
            "there is no clear difference in their number",
        )
        + verdict(
            contribution,
            "the contribution is clearly higher on correct prompts",
            "the contribution is clearly lower on correct prompts",
            "there is no clear difference in the contribution",
        )
        + verdict(
            above_chance,
            "both together clearly predict correctness",
            "both together are clearly worse than chance",
            "both together do not clearly predict correctness",
        ),
        {
            "associated neurons, correct minus incorrect": neurons,
            "contribution, correct minus incorrect": contribution,
            "AUC of both (chance: .5)": auc,
        },
    )


@finding("worst-prompts", Failures)
def worst_prompts(result: Failures) -> Finding:
    worst = result.worst
    if worst.empty:
        return Finding("There are no incorrect prompts.")
    row: Any = worst.iloc[int(worst.p_answer.argmin())]
    return Finding(
        f"In {int((worst.logit_difference > 0).sum())} of {len(worst)} errors (at most ten per operator) heuristic neurons "
        "push the predicted answer above the correct one. The least probable correct answer is that of "
        f"{row.op1}{SIGNS[row.operator]}{row.op2}=: {row.answer}, where {row.predicted} was predicted."
    )


@finding("training", Training)
def training_curves(result: Training) -> Finding:
    ends = result.checkpoints[0], result.checkpoints[-1]
    numbers: dict[str, Any] = {f"accuracy at {name}": _at(result.accuracy, name) for name in ends}
    sentences = [f"Earlier checkpoints compared: {len(result.checkpoints) - 1}."]
    summary = result.summary()
    for criterion in CRITERIA:
        present = result.present[result.present.criterion == criterion]
        if present.empty:
            sentences.append(f"No earlier checkpoint has {criterion} matches to compare.")
            continue
        start, share = str(present.checkpoint.iloc[0]), means_of(result.mutual_share, f"{criterion}_mutual_share")
        sentences.append(
            f"Neurons that share a pair with the final checkpoint carry {overall(share)} of the faithfulness that a "
            f"checkpoint's {criterion} heuristic neurons carry; n counts checkpoints."
        )
        half = f"{criterion}_half_present_at"
        numbers |= {
            f"{criterion}: final pairs present at {start}": _at(present, start),
            f"{criterion}: half of them first present at": {
                str(o): summary.get(str(o), {}).get(half, NOTHING) for o in present.operator.unique()
            },
            f"{criterion}: share carried by mutual neurons": share,
        }
    return Finding(" ".join(sentences), numbers)


def _at(table: pd.DataFrame, checkpoint: str) -> dict[str, Mean]:
    return {str(row["operator"]): as_mean(row) for row in table[table.checkpoint == checkpoint].to_dict("records")}

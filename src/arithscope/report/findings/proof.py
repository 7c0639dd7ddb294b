"""What silencing neurons shows, why prompts fail, and how the bag of heuristics grows over training."""

from __future__ import annotations

from typing import Any

import pandas as pd

from arithscope.experiments.bag import RANDOM, TOP, Bag
from arithscope.experiments.classify import CALIBRATED, CRITERIA, RAW
from arithscope.experiments.failures import AUC, Failures
from arithscope.experiments.knockout import Knockout
from arithscope.experiments.prompt_knockout import REPORTED, PromptKnockout
from arithscope.experiments.result import AVERAGE, with_average
from arithscope.experiments.training import Training
from arithscope.figures.style import SIGNS
from arithscope.measures import Mean
from arithscope.report.words import NOTHING, by_sign, gaps, means_of, number, p_value, told, verdict


def knockout_by_heuristic(result: Knockout) -> str:
    if result.table.empty:
        return "No heuristic has enough neurons to be tested."
    parts = []
    for criterion in reversed(CRITERIA):
        associated, others, gap, control = (
            means_of(result.table, f"{criterion}_{name}")
            for name in ("associated", "not_associated", "difference", "beyond_unmatched")
        )
        if not associated:
            parts.append(f"By {criterion} matches no heuristic has enough neurons to be tested.")
            continue
        parts.append(
            f"By {criterion} matches, accuracy left on prompts that satisfy the heuristic is {told(associated)}, and on others "
            f"{told(others)}; n counts heuristics. The difference is {told(gap)}."
            + verdict(
                gap, "prompts that satisfy the heuristic clearly lose more", "prompts that satisfy it clearly lose less"
            )
            + _signs(result.signs, criterion)
            + (f" Against as many other top neurons the own ones take away {told(control)} more." if control else "")
        )
    return " ".join(parts)


def _signs(signs: pd.DataFrame, criterion: str) -> str:
    rows = signs[(signs.criterion == criterion) & (signs.difference == "prompts")].to_dict("records")
    told_of = {
        str(row["operator"]): f"{row['above']} of {row['above'] + row['below']} ({p_value(row['p'])})" for row in rows
    }
    return f" Heuristics whose prompts lose more, of those with a difference (sign test): {by_sign(told_of)}."


def prompt_knockout(result: PromptKnockout) -> str:
    n = REPORTED[-1]
    parts = []
    for criterion in reversed(CRITERIA):
        left, random = (means_of(result.table, f"{criterion}_{what}_{n}") for what in ("associated", "beyond_random"))
        if not left:
            parts.append(f"By {criterion} matches there is nothing to silence.")
            continue
        parts.append(
            f"By {criterion} matches, without {n} of its own neurons of each layer accuracy is {told(left)}; with as many random top "
            f"neurons silenced instead, it is higher by {told(random)}."
            + verdict(random, "the prompts' own neurons clearly matter more", "random neurons clearly matter more")
        )
    return " ".join(parts)


def bag_alone(result: Bag) -> str:
    rows = result.curve[result.curve.measure == "faithfulness"]
    if rows.empty:
        return "There is no operator to tell of."
    faithful = {
        name: means_of(with_average(mine), "faithfulness") for name, mine in rows.groupby("neurons", sort=False)
    }
    right = result.curve[(result.curve.measure == "accuracy") & (result.curve.neurons == CALIBRATED)]
    kept = by_sign(
        {
            str(o): f"{mine.kept[mine.neurons == CALIBRATED].sum():,} of {mine.kept[mine.neurons == TOP].sum():,}"
            for o, mine in rows.groupby("operator", sort=False)
        }
    )
    ours = faithful.get(CALIBRATED, {})
    return (
        f"Neurons with a calibrated heuristic, of all top neurons: {kept}. Faithfulness with them alone: {told(ours)}, and accuracy "
        f"{told(means_of(with_average(right), 'accuracy'))}. With all top neurons faithfulness is {told(faithful.get(TOP, {}))}; with "
        f"as many random ones of them {told(faithful.get(RANDOM, {}))}."
        + verdict(
            gaps(ours, faithful.get(RANDOM, {})),
            "heuristic neurons are clearly better than random ones",
            "heuristic neurons are clearly worse than random ones",
        )
    )


def failure_contributions(result: Failures) -> str:
    if result.table.empty:
        return "No operator has both right and wrong prompts to compare."
    neurons, push, area = (
        means_of(result.table, f"{CALIBRATED}_{name}") for name in ("associated_neurons", "contribution", AUC)
    )
    beyond = {o: Mean(m.value - 0.5, m.low - 0.5, m.high - 0.5, m.n) for o, m in area.items()}
    return (
        f"Right minus wrong prompts, number of associated heuristic neurons: {told(neurons)}."
        + verdict(neurons, "right prompts clearly have more", "right prompts clearly have fewer")
        + f" Contribution to the right answer's logit: {told(push)}."
        + verdict(push, "it is clearly higher for right prompts", "it is clearly lower for right prompts")
        + f" Area under the curve of both together (.5 is chance): {told(area)}."
        + verdict(beyond, "they clearly tell right from wrong", "they are clearly worse than chance")
    )


def worst_prompts(result: Failures) -> str:
    worst = result.worst
    if worst.empty:
        return "There is no wrongly answered prompt to look at."
    row: Any = worst.iloc[int(worst.p_answer.argmin())]
    return (
        f"In {int((worst.pushed > 0).sum())} of these {len(worst)} mistakes (ten of each operator at the most) heuristic neurons push "
        f"the given answer above the right one. The right answer was least probable for {row.op1}{SIGNS[row.operator]}{row.op2}=: "
        f"it is {row.answer}, and {row.predicted} was given."
    )


def training_curves(result: Training) -> str:
    first, final = result.checkpoints[0], result.checkpoints[-1]
    right = {name: _values(result.accuracy, name) for name in (first, final)}
    parts = [f"Accuracy goes from {by_sign(right[first])} at {first} to {by_sign(right[final])} at {final}."]
    for criterion in CRITERIA:
        share = means_of(result.mutual_share, f"{criterion}_mutual_share")
        there = result.present[result.present.criterion == criterion]
        if there.empty:
            continue
        start = str(there.checkpoint.iloc[0])
        half = {o: entry.get(f"{criterion}_half_present_at", NOTHING) for o, entry in result.summary().items()}
        half.pop(AVERAGE, None)
        kind = "raw" if criterion == RAW else "calibrated"
        parts.append(
            f"Of the final {kind} pairs of neuron and heuristic this share is there at {start}: {by_sign(_values(there, start))}; half of "
            f"them are first there at: {by_sign(half)}. Of the faithfulness that a checkpoint's {kind} heuristic neurons carry, those that "
            f"share a pair with the final ones carry {told(share)}; n counts checkpoints."
        )
    return " ".join(parts)


def _values(table: pd.DataFrame, checkpoint: str) -> dict[str, str]:
    rows = table[table.checkpoint == checkpoint]
    return {str(o): number(float(v)) for o, v in zip(rows.operator, rows.value, strict=True)}

"""What silencing neurons shows, why prompts fail, and how the bag of heuristics grows over training."""

from __future__ import annotations

from collections.abc import Mapping
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
from arithscope.report.findings.finding import Cell, Finding
from arithscope.report.formatting import NOTHING, as_mean, gaps, means_of, overall, p_value, verdict
from arithscope.stats.intervals import Mean


def knockout_by_heuristic(result: Knockout) -> Finding:
    if result.table.empty:
        return Finding("No heuristic has enough neurons to be tested.")
    says: list[str] = []
    numbers: dict[str, Mapping[str, Cell]] = {}
    for criterion in reversed(CRITERIA):
        associated, others, gap, control = (
            means_of(result.table, f"{criterion}_{name}")
            for name in ("associated", "not_associated", "difference", "vs_unmatched")
        )
        if not associated:
            says.append(f"By {criterion} matches no heuristic has enough neurons to be tested.")
            continue
        says.append(
            f"By {criterion} matches, accuracy is left at {overall(associated)} on prompts that satisfy the heuristic, "
            f"and at {overall(others)} on others; n counts heuristics."
            + verdict(gap, "prompts that satisfy it clearly lose more", "prompts that satisfy it clearly lose less")
            + verdict(
                control,
                "as many other top neurons clearly matter less to these prompts",
                "as many other top neurons clearly matter more to these prompts",
                "as many other top neurons matter neither clearly more nor clearly less to these prompts",
            )
        )
        numbers |= {
            f"{criterion}: left on its prompts": associated,
            f"{criterion}: left on others": others,
            f"{criterion}: difference": gap,
            f"{criterion}: heuristics whose prompts lose more, sign test": _signs(result.signs, criterion),
            f"{criterion}: left on its prompts, other neurons silenced minus own": control,
        }
    return Finding(" ".join(says), numbers)


def _signs(signs: pd.DataFrame, criterion: str) -> dict[str, str]:
    rows = signs[(signs.criterion == criterion) & (signs.difference == "prompts")].to_dict("records")
    return {
        str(row["operator"]): f"{row['above']} of {row['above'] + row['below']}, {p_value(row['p'])}" for row in rows
    }


def prompt_knockout(result: PromptKnockout) -> Finding:
    n = REPORTED[-1]
    says: list[str] = []
    numbers: dict[str, Mapping[str, Cell]] = {}
    for criterion in reversed(CRITERIA):
        left, random, others = (
            means_of(result.table, f"{criterion}_{what}_{n}") for what in ("associated", "vs_random", "vs_unassociated")
        )
        if not left:
            says.append(f"By {criterion} matches there is nothing to silence.")
            continue
        says.append(
            f"By {criterion} matches, with {n} of its own neurons of each layer silenced accuracy is left at "
            f"{overall(left)}; with as many random top neurons it is higher by {overall(random)}."
            + verdict(random, "a prompt's own neurons clearly matter more", "random neurons clearly matter more")
        )
        numbers |= {
            f"{criterion}: accuracy left": left,
            f"{criterion}: random neurons minus own": random,
            f"{criterion}: neurons of no heuristic that holds minus own": others,
        }
    return Finding(" ".join(says), numbers)


def bag_alone(result: Bag) -> Finding:
    rows = result.curve[result.curve.measure == "faithfulness"]
    if rows.empty:
        return Finding("There is no operator to tell of.")
    right = result.curve[(result.curve.measure == "accuracy") & (result.curve.neurons == CALIBRATED)]
    accuracy = means_of(with_average(right), "accuracy")
    top, ours, random = (
        means_of(with_average(rows[rows.neurons == name]), "faithfulness") for name in (TOP, CALIBRATED, RANDOM)
    )
    kept = {
        str(o): f"{mine.kept[mine.neurons == CALIBRATED].sum():,} of {mine.kept[mine.neurons == TOP].sum():,}"
        for o, mine in rows.groupby("operator", sort=False)
    }
    return Finding(
        f"With neurons that have a calibrated heuristic alone, faithfulness is {overall(ours)} and accuracy "
        f"{overall(accuracy)}; with all top neurons faithfulness is {overall(top)}, with as many random ones of them "
        f"{overall(random)}."
        + verdict(
            gaps(ours, random),
            "heuristic neurons are clearly better than random ones",
            "heuristic neurons are clearly worse than random ones",
        ),
        {
            "heuristic neurons, of top neurons": kept,
            "faithfulness": ours,
            "accuracy": accuracy,
            "faithfulness, all top neurons": top,
            "faithfulness, as many at random": random,
        },
    )


def failure_contributions(result: Failures) -> Finding:
    if result.table.empty:
        return Finding("No operator has both right and wrong prompts to compare.")
    neurons, push, area = (
        means_of(result.table, f"{CALIBRATED}_{name}") for name in ("associated_neurons", "contribution", AUC)
    )
    beyond = {o: Mean(m.value - 0.5, m.low - 0.5, m.high - 0.5, m.n) for o, m in area.items()}
    return Finding(
        f"Right prompts minus wrong ones: associated heuristic neurons {overall(neurons)}, contribution to the right answer's "
        f"logit {overall(push)}; n is that of the smaller group."
        + verdict(
            neurons,
            "right prompts clearly have more associated neurons",
            "right prompts clearly have fewer associated neurons",
            "there is no clear difference in their number",
        )
        + verdict(
            push,
            "the contribution is clearly higher for right prompts",
            "the contribution is clearly lower for right prompts",
            "there is no clear difference in the contribution",
        )
        + verdict(
            beyond,
            "both together clearly tell right from wrong",
            "both together are clearly worse than chance",
            "both together do not clearly tell right from wrong",
        ),
        {
            "associated neurons, right minus wrong": neurons,
            "contribution, right minus wrong": push,
            "area under the curve of both (.5 is chance)": area,
        },
    )


def worst_prompts(result: Failures) -> Finding:
    worst = result.worst
    if worst.empty:
        return Finding("There is no wrongly answered prompt to look at.")
    row: Any = worst.iloc[int(worst.p_answer.argmin())]
    return Finding(
        f"In {int((worst.logit_difference > 0).sum())} of {len(worst)} mistakes (ten of each operator at the most) heuristic "
        "neurons push the given answer above the right one. The right answer was least probable for "
        f"{row.op1}{SIGNS[row.operator]}{row.op2}=: it is {row.answer}, and {row.predicted} was given."
    )


def training_curves(result: Training) -> Finding:
    first, final = result.checkpoints[0], result.checkpoints[-1]
    numbers: dict[str, Mapping[str, Cell]] = {
        f"accuracy at {name}": _at(result.accuracy, name) for name in (first, final)
    }
    says = [f"Earlier checkpoints that the subject is compared with: {len(result.checkpoints) - 1}."]
    halves = result.summary()
    for criterion in CRITERIA:
        there = result.present[result.present.criterion == criterion]
        if there.empty:
            says.append(f"No earlier checkpoint has {criterion} matches to compare.")
            continue
        start, share = str(there.checkpoint.iloc[0]), means_of(result.mutual_share, f"{criterion}_mutual_share")
        says.append(
            f"Of the faithfulness that {criterion} heuristic neurons of a checkpoint carry, those that share a pair "
            f"with the final ones carry {overall(share)}; n counts checkpoints."
        )
        numbers |= {
            f"{criterion}: final pairs there at {start}": _at(there, start),
            f"{criterion}: half of them first there at": {
                str(o): halves.get(str(o), {}).get(f"{criterion}_half_present_at", NOTHING)
                for o in there.operator.unique()
            },
            f"{criterion}: share that mutual neurons carry": share,
        }
    return Finding(" ".join(says), numbers)


def _at(table: pd.DataFrame, checkpoint: str) -> dict[str, Mean]:
    return {str(row["operator"]): as_mean(row) for row in table[table.checkpoint == checkpoint].to_dict("records")}

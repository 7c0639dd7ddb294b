"""Knock-outs: some heuristics, and some sizes, are silenced again in passes of their own through the whole model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.classify import CRITERIA
from arithscope.experiments.common.ablation import Judging
from arithscope.experiments.common.association import Association, association, zero_ablation
from arithscope.experiments.knockout import (
    ABLATED,
    HEURISTIC,
    Knockout,
    KnockoutTest,
    accuracies_left,
    differences_of,
    tabulated,
    tests_of,
)
from arithscope.experiments.prompt_knockout import ABLATED as WAYS
from arithscope.experiments.prompt_knockout import (
    DRAWS,
    OWN,
    AblationScores,
    PromptKnockout,
    counts,
    curve_rows,
    gap_rows,
    neurons_lost,
    reported_table,
)
from arithscope.prompts import Prompts, random_source, sample
from arithscope.verify.compare import EXACT, Tally
from arithscope.verify.inputs import Inputs, some_of
from arithscope.verify.passes import Scored, scores

TESTS = 3  # heuristics of each operator and criterion
SIZES = 3  # numbers of silenced neurons


def check_knockout(inputs: Inputs, stored: Knockout, tally: Tally) -> None:
    s, classify = inputs.settings, inputs["classify"]
    tested, planned = 0, []
    for operator in (o for o in classify.operators if o in inputs.splits):
        for criterion in CRITERIA:
            of = association(classify, operator, criterion)
            tests = list(tests_of(of, inputs.splits[operator].held_out, s.sizes.knockout, s.seed))
            planned += [(operator, criterion, str(test.heuristic)) for test in tests]
            for i in some_of(inputs.chooser("knockout", operator, criterion), len(tests), TESTS):
                _check_test(inputs, stored, tally, of, criterion, tests[i])
                tested += 1
    own = stored.accuracy[HEURISTIC[:3]].drop_duplicates()
    tally.same("heuristics that are tested", [tuple(row) for row in own.to_numpy().tolist()], planned)
    again = tabulated(stored.accuracy, stored.differences, s.seed)
    tally.table("table", stored.table, again.table)
    tally.table("signs", stored.signs, again.signs)
    tally.did(f"{tested} of {len(planned)} heuristics, in whole passes")


def _check_test(
    inputs: Inputs, stored: Knockout, tally: Tally, of: Association, criterion: str, test: KnockoutTest
) -> None:
    s, h = inputs.settings, test.heuristic
    found = _silenced(inputs, tally, of, test.prompts, np.repeat(test.ablated[:, None], len(test.prompts), axis=1))
    values = (of.operator, criterion, str(h), h.kind, h.on, int(test.ablated[0].sum()))
    named = dict(zip(HEURISTIC, values, strict=True))
    random = random_source(s.seed, "knockout intervals", of.operator, str(h))
    right, more = found.values[..., 1], 4 * found.unsure.mean(1)
    left = accuracies_left(test, right, random)
    unsure = dict(zip(ABLATED, more, strict=True))
    # One close call changes a mean over a group of prompts by more than one over all of them.
    smaller = len(test.prompts) / min(test.associated, len(test.prompts) - test.associated)
    accuracies = [
        {**named, "group": group, "ablated": ablated, **asdict(mean), "allowed": unsure[ablated] * smaller}
        for (ablated, group), mean in left.items()
    ]
    differences = [
        {**named, "difference": name, **asdict(mean), "allowed": 2 * max(more) * smaller}
        for name, mean in differences_of(test, right, left, random).items()
    ]
    tally.rows("accuracy", stored.accuracy, pd.DataFrame(accuracies), [*HEURISTIC, "group", "ablated"], EXACT)
    tally.rows("differences", stored.differences, pd.DataFrame(differences), [*HEURISTIC, "difference"], EXACT)


def _silenced(
    inputs: Inputs, tally: Tally, of: Association, prompts: Prompts, chosen: np.ndarray[Any, np.dtype[np.bool_]]
) -> Scored:
    """Scores with top neurons silenced, [variants, prompts, rows]."""
    edits = zero_ablation(inputs.model, of, chosen, inputs.settings.knockout_at)
    return scores(inputs.model, prompts, edits, len(chosen), Judging(), tally.noise.tie)


def check_prompt_knockout(inputs: Inputs, stored: PromptKnockout, tally: Tally) -> None:
    """Of each operator one criterion and one control, at some sizes, beside the prompts' own neurons."""
    s, classify = inputs.settings, inputs["classify"]
    sizes_tried = 0
    for operator, split in inputs.splits.items():
        if operator not in classify.operators or not len(split.held_out):
            continue
        prompts = sample(split.held_out, s.sizes.prompt_knockout, random_source(s.seed, "prompt knockout", operator))
        choose = inputs.chooser("prompt_knockout", operator)
        criterion, control = str(choose.choice(CRITERIA)), str(choose.choice(WAYS[1:]))
        of = association(classify, operator, criterion)
        places = some_of(choose, len(counts(of)), SIZES)
        sizes = [counts(of)[i] for i in places]
        found, unsure = {}, 0.0
        for way in WAYS:
            draws = (1 if way == OWN else DRAWS) if way in (OWN, control) else 0
            found[way] = [AblationScores(*(np.zeros((len(sizes), len(prompts))) for _ in range(3)))] * int(draws == 0)
            for draw in range(draws):
                chosen = neurons_lost(of, prompts, way, draw, s.seed)[places]
                scored = _silenced(inputs, tally, of, prompts, chosen)
                unsure = max(unsure, float(scored.unsure.mean()))
                removed = chosen.sum(-1).astype(np.float64)
                found[way].append(AblationScores(removed, scored.values[..., 1], scored.values[..., 2]))
        random = random_source(s.seed, "prompt knockout intervals", operator, criterion)
        named = {"operator": operator, "criterion": criterion}
        curve = pd.DataFrame([{**named, **row} for row in curve_rows(found, sizes, random)])
        curve = curve[curve.ablated.isin([OWN, control])]
        on = ["operator", "criterion", "ablated", "size", "measure"]
        for measure, noise in (("accuracy", EXACT), ("p_answer", tally.noise)):
            rows = curve[curve.measure == measure].reset_index(drop=True)
            tally.rows(measure, stored.curve, rows.assign(allowed=4 * unsure), on, noise)
        # Which resamples their intervals rest on depends on the sizes before them.
        gaps = pd.DataFrame([{**named, **row} for row in gap_rows(found, sizes, random)]).drop(columns=["low", "high"])
        gaps = gaps[gaps.control == control].reset_index(drop=True)
        tally.rows(
            "differences", stored.differences, gaps.assign(allowed=4 * unsure), [*on[:2], "control", "size"], EXACT
        )
        sizes_tried += len(sizes)
    tally.table("table", stored.table, reported_table(stored.curve, stored.differences))
    tally.did(f"{sizes_tried} numbers of silenced neurons and a control each, in whole passes")

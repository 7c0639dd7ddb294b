"""Knockout by heuristic: do a heuristic's neurons matter for the prompts it holds for? (Section 4.2)

1. For each heuristic with enough neurons, draw held-out correct prompts for which it holds, and as many for which it does not.
2. Zero-ablate its neurons at the last position and measure the accuracy that remains on each group.
3. Controls on the same prompts: as many top neurons of each layer that do not match the heuristic, and as many random ones.
   A control for which a layer has too few neurons is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.classify import CRITERIA, Classification
from arithscope.experiments.common import schema
from arithscope.experiments.common.ablation import ablated_scores
from arithscope.experiments.common.association import Association, association, matched_random_neurons
from arithscope.experiments.common.result import Result, by_operator, summary_table
from arithscope.experiments.common.samples import splits
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.heuristics.kinds import Bools, Rule
from arithscope.models.model import Model
from arithscope.prompts import Prompts, concatenate_prompts, random_source
from arithscope.settings import Settings
from arithscope.stats.intervals import (
    NOTHING,
    Floats,
    Mean,
    difference,
    paired_difference,
    share_of,
    sign_test,
    unit_mean,
)
from arithscope.utils.progress import Advance

FEWEST_NEURONS = 10  # of a heuristic that is tested
FEWEST_PROMPTS = 10  # of each group
OWN, UNMATCHED, RANDOM = ABLATED = ("own", "unmatched", "random")
ASSOCIATED, OTHERS = GROUPS = ("associated", "not_associated")
MASK_BYTES = 2**27  # for the masks of one pass
TESTS_IN_UNIT = 64
VERIFIED_TESTS = 3  # heuristics of each operator and criterion that `verify` knocks out again

_HEURISTIC = (
    *schema.CRITERION_KEY,
    schema.text("heuristic", "the heuristic that is knocked out", key=True),
    schema.text("kind", "its kind"),
    schema.text("on", "what it is about"),
    schema.number("neurons", "number of its neurons"),
)
_DIFFERENCE = schema.text(
    "difference",
    "`prompts`: accuracy on other minus associated prompts, own neurons ablated; `unmatched`, `random`: accuracy on "
    "associated prompts with the control ablated minus with own neurons ablated",
    key=True,
)


@dataclass(frozen=True, repr=False)
class Knockout(Result):
    """Accuracy without a heuristic's neurons. Before ablation it is 1: all prompts are correct."""

    accuracy: pd.DataFrame = schema.table(
        "Accuracy on each group of prompts, with the heuristic's own neurons or a control ablated; NaN where there are "
        "not enough neurons for the control. Both groups have n prompts.",
        *_HEURISTIC,
        schema.text("group", "`associated`: prompts for which the heuristic holds; `not_associated`: others", key=True),
        schema.text("ablated", "neurons ablated: `own`, or as many `unmatched` or `random` top neurons", key=True),
        *schema.MEAN_COLUMNS,
    )
    differences: pd.DataFrame = schema.table(
        "Differences of these accuracies; NaN where there are not enough neurons for the control.",
        *_HEURISTIC,
        _DIFFERENCE,
        *schema.MEAN_COLUMNS,
    )
    table: pd.DataFrame = schema.table("Means over heuristics. These overlap, so intervals are if anything too narrow.")
    signs: pd.DataFrame = schema.table(
        "Two-sided sign tests of the differences.",
        *schema.CRITERION_KEY,
        _DIFFERENCE,
        schema.number("above", "heuristics with a positive difference"),
        schema.number("below", "heuristics with a negative difference"),
        schema.number("p", "p of the sign test"),
    )

    def summary(self) -> dict[str, Any]:
        out = by_operator(self.table)
        for row in self.signs[self.signs.difference == "prompts"].to_dict("records"):
            entries, tested = out[str(row["operator"])], row["above"] + row["below"]
            entries[f"{row['criterion']}_heuristics_hurt_more"] = f"{row['above']} of {tested}"
            entries[f"{row['criterion']}_sign_test_p"] = row["p"]
        return out


@dataclass(frozen=True, eq=False)
class KnockoutTest:
    """A heuristic to test: the top neurons that each variant ablates, and prompts: associated ones, then as many others."""

    heuristic: Rule
    ablated: Bools  # variants, top neurons
    prompts: Prompts


def _memory(model: Model, settings: Settings) -> int:
    """A replay, and the masks of ablated neurons."""
    return replay_memory(model, settings) + 2 * MASK_BYTES


@stage(needs=(Accuracy, Classification), reads=("sizes", "seed"), memory=_memory, paper="4.2")
def knockout(ctx: Context) -> Knockout:
    """Accuracy on a heuristic's prompts and on others when the heuristic's neurons are ablated."""
    classification, samples, seed = ctx.results[Classification], splits(ctx), ctx.settings.seed
    planned: list[tuple[str, Association, list[KnockoutTest]]] = []
    for operator in [o for o in classification.operators if o in samples]:
        for criterion in CRITERIA:
            bag = association(classification, operator, criterion)
            tests = list(plan_tests(bag, samples[operator].held_out, ctx.settings.sizes.knockout, seed))
            chosen = ctx.sample(len(tests), VERIFIED_TESTS, "knockout", operator, criterion)
            planned.append((criterion, bag, [tests[i] for i in chosen]))
    with ctx.progress.task("knockout", sum(len(tests) for _, _, tests in planned)) as advance:
        correct = iter(_run(ctx, [(bag, tests) for _, bag, tests in planned], advance))
    accuracies, differences = [], []
    for criterion, bag, tests in planned:
        for test in tests:
            h, values = test.heuristic, next(correct)
            named = {"operator": bag.operator, "criterion": criterion, "heuristic": str(h), "kind": h.kind, "on": h.on}
            named["neurons"] = test.ablated[0].sum()
            means, between = compare(test, values)
            accuracies += [{**named, "group": g, "ablated": a, **asdict(mean)} for (a, g), mean in means.items()]
            differences += [{**named, "difference": name, **asdict(mean)} for name, mean in between.items()]
    accuracy = ctx.confirmed("accuracy", Knockout.frame("accuracy", accuracies))
    return _tabulate(accuracy, ctx.confirmed("differences", Knockout.frame("differences", differences)))


def plan_tests(bag: Association, pool: Prompts, size: int, seed: int) -> Iterator[KnockoutTest]:
    """Tests of the heuristics with enough neurons, and enough prompts of both groups in the pool."""
    neurons = np.bincount(bag.heuristic, minlength=len(bag.heuristics))
    for i in np.flatnonzero(neurons >= FEWEST_NEURONS):
        h = bag.heuristics[i]
        holds = h.holds(pool)
        random = random_source(seed, "knockout prompts", bag.operator, str(h))  # the same for both criteria
        groups = [random.permutation(np.flatnonzero(which)) for which in (holds, ~holds)]
        each = min(size, *map(len, groups))
        if each >= FEWEST_PROMPTS:
            members = bag.members(int(i))
            random = random_source(seed, "knockout controls", bag.operator, str(h))
            controls = [matched_random_neurons(bag, members, c, random) for c in (~members, np.ones_like(members))]
            yield KnockoutTest(h, np.stack([members, *controls]), pool[np.concatenate([g[:each] for g in groups])])


def _run(ctx: Context, planned: Sequence[tuple[Association, list[KnockoutTest]]], advance: Advance) -> list[Floats]:
    """Whether the prompts of each test are still answered correctly, [variants, prompts].

    A unit has as many tests as fit into one pass with their masks.
    """
    units = []
    for bag, tests in planned:
        most_prompts = MASK_BYTES // (len(ABLATED) * ctx.model.sizes.neurons * len(np.unique(bag.layers)))
        while tests:
            ends = np.cumsum([len(test.prompts) for test in tests[:TESTS_IN_UNIT]])
            size = max(1, int(np.searchsorted(ends, most_prompts, side="right")))
            some, tests = tests[:size], tests[size:]
            units.append((bag, np.stack([test.ablated for test in some]), tuple(test.prompts for test in some)))
    return [correct for unit in ctx.map(still_correct, units, advance) for correct in unit]


def still_correct(
    model: Model, bag: Association, ablated: Bools, prompts: Sequence[Prompts], *, advance: Advance
) -> list[Floats]:
    """Unit of work: some tests in one pass, given their ablated neurons [tests, variants, top neurons] and prompts."""
    sizes = [len(p) for p in prompts]
    chosen = np.repeat(ablated.swapaxes(0, 1), sizes, axis=1)
    scores = ablated_scores(model, concatenate_prompts(prompts), bag.zero_ablation(model, chosen))
    advance(len(sizes))
    return np.split(scores[..., 1], np.cumsum(sizes)[:-1], axis=1)


def compare(test: KnockoutTest, correct: Floats) -> tuple[dict[tuple[str, str], Mean], dict[str, Mean]]:
    """Accuracies by ablated neurons and group, and their differences, from the correctness [variants, prompts]."""
    groups = dict(zip(GROUPS, np.split(correct, 2, axis=1), strict=True))
    counts = test.ablated.sum(1)
    enough = counts == counts[0]  # neurons of each variant
    means = {
        (ablated, group): share_of(values[i]) if enough[i] else NOTHING
        for i, ablated in enumerate(ABLATED)
        for group, values in groups.items()
    }
    between = {"prompts": difference(means[OWN, OTHERS], means[OWN, ASSOCIATED])}
    own, *controls = groups[ASSOCIATED]
    for name, control, is_enough in zip(ABLATED[1:], controls, enough[1:], strict=True):
        between[name] = paired_difference(control, own) if is_enough else NOTHING
    return means, between


def _tabulate(accuracy: pd.DataFrame, differences: pd.DataFrame) -> Knockout:
    """Add means over heuristics, and sign tests."""
    measured: dict[str, dict[str, Mean]] = {}
    for (operator, criterion), rows in accuracy.groupby(["operator", "criterion"], sort=False):
        left = rows.pivot(index="heuristic", columns=["group", "ablated"], values="value")
        own, others = left[ASSOCIATED, OWN], left[OTHERS, OWN]
        means = {ASSOCIATED: unit_mean(own), OTHERS: unit_mean(others), "difference": paired_difference(others, own)}
        for control in ABLATED[1:]:
            tested = left[ASSOCIATED, control].notna()
            means[f"vs_{control}"] = paired_difference(left[ASSOCIATED, control][tested], own[tested])
        measured.setdefault(str(operator), {}).update({f"{criterion}_{name}": mean for name, mean in means.items()})
    keys = ["operator", "criterion", "difference"]
    by_difference = differences.groupby(keys, sort=False)
    signs = [{**dict(zip(keys, key, strict=True)), **asdict(sign_test(rows.value))} for key, rows in by_difference]
    return Knockout(accuracy, differences, summary_table(measured), Knockout.frame("signs", signs))

"""Whether a heuristic's neurons matter for the prompts it holds for: they are silenced, and prompts asked again.

Each heuristic with enough neurons is tested on held-out correct prompts, some that satisfy it and as many that do not. Two
controls are silenced on the same prompts: as many top neurons of each layer that do not match the heuristic, and as many
drawn from all top neurons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.classify import CRITERIA, Classification
from arithscope.experiments.common.ablation import Judging, ablated_scores
from arithscope.experiments.common.association import Association, as_many, association, zero_ablation
from arithscope.experiments.common.result import MEAN, Result, by_operator, summary_table
from arithscope.experiments.common.samples import SampleSizes, splits
from arithscope.heuristics.kinds import Bools, Heuristic
from arithscope.models.model import Model
from arithscope.prompts import Prompts, random_source, together
from arithscope.stats.measures import Mean, bootstrap_mean, difference, sign_test
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.progress import Advance, Progress

FEWEST_NEURONS = 10  # that a heuristic must have to be tested
FEWEST_PROMPTS = 10  # of either group
OWN, UNMATCHED, RANDOM = ABLATED = ("own", "unmatched", "random")
ASSOCIATED, OTHERS = GROUPS = ("associated", "not_associated")
MASK_BYTES = 2**27  # of the masks of one pass
TESTS_IN_UNIT = 64

HEURISTIC = ["operator", "criterion", "heuristic", "kind", "on", "neurons"]


@dataclass(frozen=True, repr=False)
class Knockout(Result):
    """accuracy: of each heuristic, on associated prompts and on others, with its own neurons silenced, or as many unmatched or
    random top neurons. Before, it is 1: all prompts are correct.
    differences: `prompts`, by how much more accuracy is left on others than on associated prompts, own neurons silenced;
    `unmatched` and `random`, by how much more is left on associated prompts when the control is silenced instead (paired; NaN
    where there are not as many neurons for it).
    table: means over heuristics, with intervals over heuristics; they overlap, so that intervals are narrow rather than wide.
    signs: of the three differences how many are above and below zero, and the two-sided p of a sign test."""

    accuracy: pd.DataFrame  # operator, criterion, heuristic, kind, on, neurons, group, silenced, value, low, high, n
    differences: pd.DataFrame  # operator, criterion, heuristic, kind, on, neurons, difference, value, low, high, n
    table: pd.DataFrame  # operator, measure, value, low, high, n
    signs: pd.DataFrame  # operator, criterion, difference, above, below, p

    def summary(self) -> dict[str, Any]:
        out = by_operator(self.table)
        for row in self.signs[self.signs.difference == "prompts"].to_dict("records"):
            operator, criterion = str(row["operator"]), str(row["criterion"])
            out[operator] |= {
                f"{criterion}_heuristics_hurt_more": f"{row['above']} of {row['above'] + row['below']}",
                f"{criterion}_sign_test_p": row["p"],
            }
        return out


@dataclass(frozen=True, eq=False)
class KnockoutTest:
    """A heuristic to be tested: which top neurons each variant silences, and the prompts, associated ones first."""

    heuristic: Heuristic
    ablated: Bools  # variants, top neurons
    prompts: Prompts
    associated: int


def knockout(
    model: Model,
    accuracy: Accuracy,
    classify: Classification,
    sizes: SampleSizes,
    seed: int,
    positions: str,
    progress: Progress,
    executor: Executor = LOCAL,
) -> Knockout:
    """Test every heuristic of every operator, by raw and by calibrated matches."""
    samples = splits(accuracy, sizes, seed)
    planned = [
        (criterion, of, list(tests_of(of, samples[operator].held_out, sizes.knockout, seed)))
        for operator in classify.operators
        if operator in samples
        for criterion in CRITERIA
        for of in [association(classify, operator, criterion)]
    ]
    with progress.task("knockout", sum(len(tests) for _, _, tests in planned)) as advance:
        runs = _run(model, [(of, tests) for _, of, tests in planned], positions, advance, executor)
    accuracies: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []
    for (criterion, of, tests), found in zip(planned, runs, strict=True):
        for test, right in zip(tests, found, strict=True):
            h = test.heuristic
            named = dict(
                zip(HEURISTIC, (of.operator, criterion, str(h), h.kind, h.on, test.ablated[0].sum()), strict=True)
            )
            random = random_source(seed, "knockout intervals", of.operator, str(h))
            left = accuracies_left(test, right, random)
            accuracies += [
                {**named, "group": group, "ablated": ablated, **asdict(mean)} for (ablated, group), mean in left.items()
            ]
            differences += [
                {**named, "difference": name, **asdict(mean)}
                for name, mean in differences_of(test, right, left, random).items()
            ]
    return tabulated(
        pd.DataFrame(accuracies, columns=[*HEURISTIC, "group", "ablated", *MEAN]),
        pd.DataFrame(differences, columns=[*HEURISTIC, "difference", *MEAN]),
        seed,
    )


def tests_of(of: Association, pool: Prompts, size: int, seed: int) -> Iterator[KnockoutTest]:
    """Heuristics with enough neurons and enough held-out prompts of both groups."""
    sizes = np.bincount(of.heuristic, minlength=len(of.heuristics))
    for i in np.flatnonzero(sizes >= FEWEST_NEURONS):
        h = of.heuristics[i]
        holds = h.holds(pool)
        random = random_source(seed, "knockout prompts", of.operator, str(h))  # the same for both criteria
        groups = [random.permutation(np.flatnonzero(which))[:size] for which in (holds, ~holds)]
        if min(map(len, groups)) >= FEWEST_PROMPTS:
            members = of.members(int(i))
            random = random_source(seed, "knockout controls", of.operator, str(h))
            every = np.ones_like(members)
            ablated = np.stack([members, *(as_many(of, members, c, random) for c in (~members, every))])
            yield KnockoutTest(h, ablated, pool[np.concatenate(groups)], len(groups[0]))


def _run(
    model: Model,
    planned: Sequence[tuple[Association, Sequence[KnockoutTest]]],
    positions: str,
    advance: Advance,
    executor: Executor,
) -> list[list[NDArray[np.float64]]]:
    """Of each test whether its prompts are still right, [variants, prompts]; a unit has several tests."""
    units = [
        (of, np.stack([t.ablated for t in some]), tuple(t.prompts for t in some), positions)
        for of, tests in planned
        for some in _blocks(tests, len(ABLATED) * model.sizes.neurons * len(np.unique(of.layers)))
    ]
    found = (right for unit in executor.map(_still_right, model, units, advance) for right in unit)
    return [[next(found) for _ in tests] for _, tests in planned]


def _blocks(tests: Sequence[KnockoutTest], row: int) -> Iterator[Sequence[KnockoutTest]]:
    """As many tests as a pass can hold, if each prompt takes so many bytes, but no more than a unit should have."""
    start = 0
    while start < len(tests):
        ends = np.cumsum([len(t.prompts) for t in tests[start : start + TESTS_IN_UNIT]])
        end = start + max(1, int(np.searchsorted(ends, MASK_BYTES // row, side="right")))
        yield tests[start:end]
        start = end


def _still_right(
    model: Model, of: Association, ablated: Bools, prompts: Sequence[Prompts], positions: str, *, advance: Advance
) -> list[NDArray[np.float64]]:
    """A unit: some tests, the neurons that each silences [tests, variants, top neurons] and its prompts, in one pass."""
    sizes = [len(p) for p in prompts]
    chosen = np.repeat(ablated.swapaxes(0, 1), sizes, axis=1)
    scores = ablated_scores(model, together(prompts), zero_ablation(model, of, chosen, positions), Judging())
    advance(len(sizes))
    return np.split(scores[..., 1], np.cumsum(sizes)[:-1], axis=1)


def accuracies_left(
    test: KnockoutTest, right: NDArray[np.float64], random: np.random.Generator
) -> dict[tuple[str, str], Mean]:
    groups = dict(zip(GROUPS, np.split(right, [test.associated], axis=1), strict=True))
    return {
        (ablated, group): bootstrap_mean(values[i], random)
        for i, ablated in enumerate(ABLATED)
        for group, values in groups.items()
    }


def differences_of(
    test: KnockoutTest, right: NDArray[np.float64], left: dict[tuple[str, str], Mean], random: np.random.Generator
) -> dict[str, Mean]:
    """The controls' ones are NaN where there were not as many neurons for the control."""
    own, *controls = right[:, : test.associated]
    wanted, *taken = test.ablated.sum(1)
    found = {"prompts": difference(left[OWN, OTHERS], left[OWN, ASSOCIATED])}
    for name, control, size in zip(ABLATED[1:], controls, taken, strict=True):
        found[name] = bootstrap_mean(control - own if size == wanted else [], random)
    return found


def tabulated(left: pd.DataFrame, gaps: pd.DataFrame, seed: int) -> Knockout:
    """From accuracies and differences of all heuristics: with means over heuristics, and signs."""
    measured: dict[str, dict[str, Mean]] = {}
    own = left[left.ablated == OWN]
    tables = [
        *((f"{{}}_{group}", own[own.group == group]) for group in GROUPS),
        ("{}_difference", gaps[gaps.difference == "prompts"]),
        *((f"{{}}_vs_{name}", gaps[gaps.difference == name]) for name in ABLATED[1:]),
    ]
    for name, table in tables:
        for (operator, criterion), rows in table.groupby(["operator", "criterion"], sort=False):
            measure = name.format(criterion)
            random = random_source(seed, "knockout", str(operator), measure)
            measured.setdefault(str(operator), {})[measure] = bootstrap_mean(rows.value.dropna(), random)
    signs = [
        {"operator": operator, "criterion": criterion, "difference": name, **asdict(sign_test(rows.value))}
        for (operator, criterion, name), rows in gaps.groupby(["operator", "criterion", "difference"], sort=False)
    ]
    columns = ["operator", "criterion", "difference", "above", "below", "p"]
    return Knockout(left, gaps, summary_table(measured), pd.DataFrame(signs, columns=columns))

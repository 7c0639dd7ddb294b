"""Whether a prompt's own heuristics carry its answer: the neurons of the heuristics that hold for it are silenced.

Of each layer the n best-scoring neurons among those, for growing n, each prompt its own. Two controls lose as many neurons
of each layer: top neurons of which no heuristic holds for the prompt, and any top neurons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.classify import CRITERIA, Classification
from arithscope.experiments.common.ablation import Judging, ablated_scores
from arithscope.experiments.common.association import Association, association, zero_ablation
from arithscope.experiments.common.result import MEAN, Result, by_operator, with_average
from arithscope.experiments.common.samples import SampleSizes, splits
from arithscope.models.hooks import edit
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts, random_source, sample
from arithscope.stats.measures import bootstrap_means
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.progress import Advance, Progress

OWN, UNASSOCIATED, RANDOM = ABLATED = ("associated", "unassociated", "random")
COUNTS = (1, 2, 3, 5, 7, 10, 15, 25, 40, 60, 100, 150, 200, 300, 500)  # neurons of each layer, while there are as many
DRAWS = 3  # of each control
WAYS = ((OWN, 0), *((control, draw) for control in ABLATED[1:] for draw in range(DRAWS)))
REPORTED = (5, 10, 25)  # that training is compared at, the last of them in the summary too


@dataclass(frozen=True, repr=False)
class PromptKnockout(Result):
    """curve: accuracy (1 before) and mean probability of the answer with the n best-scoring neurons of each layer silenced
    that are associated with the prompt, or as many that are not (`unassociated`), or any (`random`: both the mean of some
    draws for each prompt). removed: how many neurons that is, of all layers together; a prompt may have fewer than n of them.
    differences: accuracy under a control minus that under `associated`, prompt by prompt, over those prompts that have as many
    neurons for the control; NaN where there is none."""

    curve: pd.DataFrame  # operator, criterion, silenced, size, measure, value, low, high, n, removed
    differences: pd.DataFrame  # operator, criterion, control, size, value, low, high, n
    table: pd.DataFrame  # operator, measure, value, low, high, n

    def summary(self) -> dict[str, Any]:
        return by_operator(self.table[self.table.measure.str.endswith(f"_{REPORTED[-1]}")])


@dataclass(frozen=True, eq=False)
class AblationScores:
    """Of one way of choosing neurons: how many it takes from each prompt, and the scores left, [sizes, prompts] each."""

    removed: NDArray[np.float64]
    right: NDArray[np.float64]
    p_answer: NDArray[np.float64]


def prompt_knockout(
    model: Model,
    accuracy: Accuracy,
    classify: Classification,
    sizes: SampleSizes,
    seed: int,
    positions: str,
    progress: Progress,
    executor: Executor = LOCAL,
) -> PromptKnockout:
    """For each operator, by raw and by calibrated matches: one replay of all prompts and sizes for each way of choosing."""
    prompts = {
        operator: sample(split.held_out, sizes.prompt_knockout, random_source(seed, "prompt knockout", operator))
        for operator, split in splits(accuracy, sizes, seed).items()
        if operator in classify.operators and len(split.held_out)
    }
    planned = [(criterion, association(classify, o, criterion)) for o in prompts for criterion in CRITERIA]
    units = [(of, prompts[of.operator], *way, seed, positions) for _, of in planned for way in WAYS]
    with progress.task("prompt_knockout", len(units)) as advance:
        parts = iter(executor.map(ablated_by_prompt, model, units, advance))
    curves, gaps = [], []
    for criterion, of in planned:
        found: dict[str, list[AblationScores]] = {name: [] for name in ABLATED}
        for name, _ in WAYS:
            found[name].append(AblationScores(*next(parts)))
        random = random_source(seed, "prompt knockout intervals", of.operator, criterion)
        named = {"operator": of.operator, "criterion": criterion}
        curves += [{**named, **row} for row in curve_rows(found, counts(of), random)]
        gaps += [{**named, **row} for row in gap_rows(found, counts(of), random)]
    columns = ["operator", "criterion", "ablated", "size", "measure", *MEAN, "removed"]
    curve = pd.DataFrame(curves, columns=columns)
    differences = pd.DataFrame(gaps, columns=["operator", "criterion", "control", "size", *MEAN])
    return PromptKnockout(curve, differences, reported_table(curve, differences))


def counts(of: Association) -> list[int]:
    """Sizes to try: none, those of COUNTS while a layer has so many top neurons, and REPORTED in any case."""
    most = int(np.bincount(of.layers).max(initial=0))
    return [0, *(n for n in COUNTS if n <= most or n in REPORTED)]


def ablated_by_prompt(
    model: Model,
    of: Association,
    prompts: Prompts,
    way: str,
    draw: int,
    seed: int,
    positions: str,
    *,
    advance: Advance,
) -> tuple[NDArray[np.float64], ...]:
    """A unit: what is left of each prompt with its associated neurons silenced, or in one draw of a control; the fields of
    `Silenced`."""
    chosen = neurons_lost(of, prompts, way, draw, seed)
    nothing = edit(model, Site.NEURONS, model.sizes.layers - 1, [], positions=model.positions.last)
    found = ablated_scores(model, prompts, zero_ablation(model, of, chosen, positions) or [nothing], Judging())
    left = np.broadcast_to(found, (len(chosen), *found.shape[1:]))
    advance(1)
    return chosen.sum(-1).astype(np.float64), left[..., 1], left[..., 2]


def neurons_lost(
    of: Association, prompts: Prompts, way: str, draw: int, seed: int
) -> Bool[NDArray[Any], "sizes prompts rows"]:
    """Which top neurons each prompt loses: its associated ones, or as many in one draw of a control."""
    scores = of.best_scores(prompts)
    own = ranks = of.ranks(np.where(scores > 0, scores, np.nan))
    if way != OWN:
        candidates = scores == 0 if way == UNASSOCIATED else np.ones_like(scores, dtype=np.bool_)
        random = random_source(seed, "prompt knockout", way, of.operator)
        *_, wish = (random.random(scores.shape) for _ in range(draw + 1))
        ranks = of.ranks(np.where(candidates, wish, np.nan))
    return chosen_first(of, ranks, own, counts(of))


def chosen_first(
    of: Association, ranks: NDArray[np.int64], own: NDArray[np.int64], sizes: Sequence[int]
) -> Bool[NDArray[Any], "sizes prompts rows"]:
    """For each size the first neurons of each layer and prompt by `ranks` [rows, prompts]: as many as there are first ones by
    the prompt's `own` ranks."""
    found = np.zeros((len(sizes), ranks.shape[1], len(ranks)), dtype=np.bool_)
    for _, rows in of.of_layers():
        for i, size in enumerate(sizes):
            found[i, :, rows] = ranks[rows] < (own[rows] < size).sum(0)
    return found


def curve_rows(
    found: dict[str, list[AblationScores]], sizes: Sequence[int], random: np.random.Generator
) -> list[dict[str, Any]]:
    rows = []
    for name, draws in found.items():
        removed = np.mean([draw.removed for draw in draws], axis=0).mean(1)
        for measure, field in (("accuracy", "right"), ("p_answer", "p_answer")):
            means = bootstrap_means(np.mean([getattr(draw, field) for draw in draws], axis=0), random)
            rows += [
                {"ablated": name, "size": size, "measure": measure, **asdict(mean), "removed": n}
                for size, mean, n in zip(sizes, means, removed, strict=True)
            ]
    return rows


def gap_rows(
    found: dict[str, list[AblationScores]], sizes: Sequence[int], random: np.random.Generator
) -> list[dict[str, Any]]:
    rows = []
    [own] = found[OWN]
    for control in ABLATED[1:]:
        left = np.mean([draw.right for draw in found[control]], axis=0) - own.right
        as_many = np.all([draw.removed == own.removed for draw in found[control]], axis=0)
        for size, gap, kept in zip(sizes, left, as_many, strict=True):
            [mean] = bootstrap_means(gap[None, kept], random)
            rows.append({"control": control, "size": size, **asdict(mean)})
    return rows


def reported_table(curve: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    rows = curve[(curve.measure == "accuracy") & curve["size"].isin(REPORTED)]
    named = rows.assign(name=rows.criterion + "_" + rows.ablated)
    controls = differences[differences["size"].isin(REPORTED)]
    named = pd.concat([named, controls.assign(name=controls.criterion + "_beyond_" + controls.control)])
    named = named.sort_values("size", kind="stable")
    return with_average(named.assign(measure=named.name + "_" + named["size"].astype(str)))

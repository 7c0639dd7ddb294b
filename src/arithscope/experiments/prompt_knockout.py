"""Knockout by prompt: do the heuristics that hold for a prompt carry its answer? (Section 4.2)

1. For each held-out prompt, zero-ablate at the last position the n best-scoring neurons of each layer that are associated with
   it, for growing n.
2. Controls, as many neurons of each layer: neurons of other heuristics, none of which is associated with the prompt (the
   paper's control); top neurons not associated with it, with or without a heuristic; any top neurons.
3. At each n, compare on the prompts that have as many neurons for every control: the same prompts for all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.classify import CRITERIA, Classification
from arithscope.experiments.common import schema
from arithscope.experiments.common.ablation import ablated_scores
from arithscope.experiments.common.association import Association, association
from arithscope.experiments.common.result import Result, by_operator, with_average
from arithscope.experiments.common.samples import splits
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.heuristics.kinds import Ints
from arithscope.models.hooks import edit
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts, random_source, sample
from arithscope.settings import Settings
from arithscope.stats.intervals import Floats, paired_difference, unit_mean
from arithscope.utils.progress import Advance

OWN, OTHER_HEURISTICS, UNASSOCIATED, RANDOM = ABLATED = ("associated", "other_heuristics", "unassociated", "random")
COUNTS = (1, 2, 3, 5, 7, 10, 15, 25, 40, 60, 100, 150, 200, 300, 500)  # neurons per layer
DRAWS = 3  # of each control
WAYS = ((OWN, 0), *((control, draw) for control in ABLATED[1:] for draw in range(DRAWS)))
REPORTED = (5, 10, 25)  # sizes at which checkpoints are compared; the summary has the last
VERIFIED_CRITERIA = 1  # of each operator, that `verify` knocks out again
_SIZE = schema.number("size", "number n of neurons per layer", key=True)
CURVE = (
    *schema.CRITERION_KEY,
    schema.text(
        "ablated",
        "neurons ablated: `associated` with the prompt; or as many of each layer that match heuristics but none associated "
        "with it (`other_heuristics`), top neurons not associated with it (`unassociated`), or any (`random`)",
        key=True,
    ),
    _SIZE,
    *schema.MEASURED,
    schema.number("removed", "mean number of neurons ablated in all layers; a prompt may have fewer than n per layer"),
)


@dataclass(frozen=True, repr=False)
class PromptKnockout(Result):
    """Accuracy (1 before ablation) and probability of the answer without the neurons associated with each prompt."""

    curve: pd.DataFrame = schema.table(
        "Accuracy and mean probability of the answer by number of ablated neurons; controls are averaged over draws. The rows "
        "of one size hold the same n prompts, those with enough neurons for every control; NaN if there are none.",
        *CURVE,
    )
    differences: pd.DataFrame = schema.table(
        "Accuracy with a control minus with `associated` neurons ablated, prompt by prompt, over the same prompts.",
        *schema.CRITERION_KEY,
        schema.text("control", "`other_heuristics`, `unassociated` or `random`", key=True),
        _SIZE,
        *schema.MEAN_COLUMNS,
    )
    table: pd.DataFrame = schema.table(
        "Accuracies and differences at some sizes: `{criterion}_{ablated}_{size}`, `{criterion}_vs_{control}_{size}`."
    )

    def summary(self) -> dict[str, Any]:
        return by_operator(self.table[self.table.measure.str.endswith(f"_{REPORTED[-1]}")])


class AblationScores(NamedTuple):
    """Number of ablated neurons, correctness and P(answer) of each prompt at each size: [draws, sizes, prompts] each."""

    removed: Floats
    correct: Floats
    p_answer: Floats


Scores = Mapping[str, AblationScores]  # by ablated neurons
Chosen = Bool[np.ndarray, "sizes prompts rows"]


def _memory(model: Model, settings: Settings) -> int:
    """A replay, and the masks of ablated neurons."""
    masks = len(COUNTS) * settings.sizes.prompt_knockout * model.sizes.layers * model.sizes.neurons
    return replay_memory(model, settings) + 2 * masks


@stage(needs=(Accuracy, Classification), reads=("sizes", "seed"), memory=_memory, paper="4.2")
def prompt_knockout(ctx: Context) -> PromptKnockout:
    """Accuracy with the neurons of each prompt's heuristics ablated, compared with three controls."""
    classification, sizes, seed = ctx.results[Classification], ctx.settings.sizes, ctx.settings.seed
    prompts = {
        operator: sample(split.held_out, sizes.prompt_knockout, random_source(seed, "prompt knockout", operator))
        for operator, split in splits(ctx).items()
        if operator in classification.operators and len(split.held_out)
    }
    planned = [
        (CRITERIA[i], association(classification, operator, CRITERIA[i]))
        for operator in prompts
        for i in ctx.sample(len(CRITERIA), VERIFIED_CRITERIA, "prompt_knockout", operator)
    ]
    groups = [[(bag, prompts[bag.operator], *way, seed) for way in WAYS] for _, bag in planned]
    curves, gaps = [], []
    with ctx.progress.task("prompt_knockout", len(planned) * len(WAYS)) as advance:
        parts = ctx.map_groups(ablated_by_prompt, groups, advance)
    for (criterion, bag), own in zip(planned, parts, strict=True):
        draws = {name: [x for x, way in zip(own, WAYS, strict=True) if way[0] == name] for name in ABLATED}
        scores = {name: AblationScores(*np.stack(some, axis=1)) for name, some in draws.items()}
        named = {"operator": bag.operator, "criterion": criterion}
        curves += [{**named, **row} for row in curve_rows(scores, sizes_to_try(bag))]
        gaps += [{**named, **row} for row in difference_rows(scores, sizes_to_try(bag))]
    sampled = {operator: len(some) for operator, some in prompts.items()}
    curve = ctx.confirmed("curve", PromptKnockout.frame("curve", curves), sampled=sampled)
    differences = ctx.confirmed("differences", PromptKnockout.frame("differences", gaps), sampled=sampled)
    rows = curve[curve.measure == "accuracy"]
    rows = rows.assign(measure=rows.criterion + "_" + rows.ablated)
    controls = differences.assign(measure=differences.criterion + "_vs_" + differences.control)
    reported = pd.concat([rows, controls]).sort_values("size", kind="stable")
    reported = reported[reported["size"].isin(REPORTED)]
    table = with_average(reported.assign(measure=reported.measure + "_" + reported["size"].astype(str)))
    return PromptKnockout(curve, differences, table)


def sizes_to_try(bag: Association) -> list[int]:
    """Sizes: 0, those of COUNTS that do not exceed the top neurons of a layer, and REPORTED in any case."""
    largest = int(np.bincount(bag.layers).max(initial=0))
    return [0, *(n for n in COUNTS if n <= largest or n in REPORTED)]


def ablated_by_prompt(
    model: Model, bag: Association, prompts: Prompts, way: str, draw: int, seed: int, *, advance: Advance
) -> tuple[Floats, ...]:
    """Unit of work: the fields of `AblationScores` with each prompt's associated neurons ablated, or one draw of a control."""
    chosen = choose_neurons(bag, prompts, way, draw, seed)
    nothing = edit(model, Site.NEURONS, model.sizes.layers - 1, [], positions=model.positions.final)
    scores = ablated_scores(model, prompts, bag.zero_ablation(model, chosen) or [nothing])
    scores = np.broadcast_to(scores, (len(chosen), *scores.shape[1:]))
    advance(1)
    return chosen.sum(-1).astype(np.float64), scores[..., 1], scores[..., 2]


def choose_neurons(bag: Association, prompts: Prompts, way: str, draw: int, seed: int) -> Chosen:
    """The top neurons ablated for each prompt: its associated ones, or as many in one draw of a control."""
    scores = bag.best_scores(prompts)
    own = bag.ranks(np.where(scores > 0, scores, np.nan))
    if way == OWN:
        return first_by_rank(bag, own, own, sizes_to_try(bag))
    candidates = np.ones_like(scores, dtype=np.bool_) if way == RANDOM else scores == 0
    if way == OTHER_HEURISTICS:
        candidates &= bag.classified[:, None]
    random = random_source(seed, "prompt knockout", way, bag.operator)
    for _ in range(draw + 1):  # draws follow each other in one random stream
        preference = random.random(scores.shape)
    ranks = bag.ranks(np.where(candidates, preference, np.nan))
    return first_by_rank(bag, ranks, own, sizes_to_try(bag))


def first_by_rank(bag: Association, ranks: Ints, own: Ints, sizes: Sequence[int]) -> Chosen:
    """For each size, the first neurons of each layer by `ranks` [rows, prompts], as many as are first by the `own` ranks."""
    chosen = np.zeros((len(sizes), ranks.shape[1], len(ranks)), dtype=np.bool_)
    for _, rows in bag.rows_by_layer():
        for i, size in enumerate(sizes):
            chosen[i, :, rows] = ranks[rows] < (own[rows] < size).sum(0)
    return chosen


def comparable(scores: Scores) -> Bool[np.ndarray, "sizes prompts"]:
    """Which prompts had, at each size, as many neurons for every draw of every control as are associated with them."""
    own = scores[OWN].removed
    return np.all([(scores[control].removed == own).all(0) for control in ABLATED[1:]], axis=0)


def curve_rows(scores: Scores, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Rows of `curve`, without operator and criterion."""
    kept = comparable(scores)
    for name, (removed, correct, p_answer) in scores.items():
        for measure, values in {"accuracy": correct, "p_answer": p_answer}.items():
            for i, size in enumerate(sizes):
                mean = unit_mean(values[:, i, kept[i]].mean(0))
                number = removed[:, i, kept[i]].mean() if mean.n else np.nan
                yield {"ablated": name, "size": size, "measure": measure, **asdict(mean), "removed": number}


def difference_rows(scores: Scores, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Rows of `differences`, without operator and criterion."""
    kept = comparable(scores)
    for control in ABLATED[1:]:
        for i, size in enumerate(sizes):
            other, own = (scores[name].correct[:, i, kept[i]].mean(0) for name in (control, OWN))
            yield {"control": control, "size": size, **asdict(paired_difference(other, own))}

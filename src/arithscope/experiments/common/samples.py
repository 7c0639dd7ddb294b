"""Which prompts each experiment uses. Discovery, selection, evaluation and held-out prompts are disjoint."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.stage import Context
from arithscope.models.memory import rows_that_fit
from arithscope.models.model import Model
from arithscope.prompts import (
    Ints,
    Prompts,
    concatenate_prompts,
    counterfactuals,
    disjoint_samples,
    random_source,
    sample,
)
from arithscope.settings import SampleSizes
from arithscope.utils.executor import split_evenly

TRAINING_SHARE = 0.8  # of the probes' prompts; the rest are test prompts
ADVICE = "try examples in a --prefix, another --template or another model"
Places = Sequence[tuple[str, Sequence[int]]]  # names of positions, with layers


@dataclass(frozen=True)
class Split:
    """The prompts of one operator.

    Attributes:
        discovery: Prompts on which components are patched and ranked.
        counterfactuals: One counterfactual for each discovery prompt.
        selection: Prompts on which circuits, numbers of neurons and answer layers are chosen.
        evaluation: Prompts on which what was chosen is measured.
        held_out: All other correct prompts, for testing what was found on the others.
    """

    discovery: Prompts
    counterfactuals: Prompts
    selection: Prompts
    evaluation: Prompts
    held_out: Prompts


def splits(ctx: Context) -> dict[str, Split]:
    """The samples of each operator of the study; see `split_prompts`."""
    return split_prompts(ctx.results[Accuracy], ctx.settings.sizes, ctx.settings.seed)


def evaluation_prompts(ctx: Context) -> dict[str, Prompts]:
    return {operator: split.evaluation for operator, split in splits(ctx).items()}


def selection_prompts(ctx: Context) -> dict[str, Prompts]:
    return {operator: split.selection for operator, split in splits(ctx).items()}


def split_prompts(accuracy: Accuracy, sizes: SampleSizes, seed: int) -> dict[str, Split]:
    """Draw disjoint samples for each operator.

    Discovery, selection and evaluation prompts of an answer step are prompts whose whole answer is right, if there are enough;
    then all steps have the same ones, and a counterfactual has another token at every step.

    Args:
        accuracy: The model's answers to the legal prompts.
        sizes: Sample sizes; `discovery`, `selection` and `evaluation` are used.
        seed: Seed of the draws.

    Returns:
        The samples by operator; an operator with fewer than three correct prompts is left out.

    Raises:
        TooFewCorrect: If no operator can be split.
    """
    samples, correct = {}, accuracy.correct()
    # An untrained model that always gives the same number is sometimes right by accident.
    if len(np.unique(correct.result)) < 2:
        raise TooFewCorrect
    drawn = sizes.discovery, sizes.evaluation, sizes.selection
    for operator in accuracy.operators:
        random = random_source(seed, "split", operator)
        whole, others = accuracy.whole(operator), accuracy.correct_in_part(operator)
        enough = len(whole) >= sum(drawn)
        known = whole if enough else accuracy.correct(operator)
        wanted = (*drawn, max(*drawn, len(known) - sum(drawn)))
        discovery, evaluation, selection, rest = disjoint_samples(known, wanted, random)
        if len(discovery) and len(evaluation) and len(selection):
            places = [each.asked for each in accuracy.stratum.every_step()] if enough else []
            pool = accuracy.whole() if enough else correct
            corrupted = counterfactuals(discovery, pool, random, places)
            held_out = concatenate_prompts([rest, others]) if enough else rest
            samples[operator] = Split(discovery, corrupted, selection, evaluation, held_out)
    if not samples:
        raise TooFewCorrect
    return samples


def probe_split(ctx: Context) -> tuple[Prompts, int]:
    """Correct prompts of all operators in random order, and the number of training prompts, which come first."""
    sizes, random = ctx.settings.sizes, random_source(ctx.settings.seed, "probe prompts")
    prompts = sample(ctx.results[Accuracy].correct(), sizes.probe, random)
    if (training := int(TRAINING_SHARE * len(prompts))) == 0:
        raise TooFewCorrect
    return prompts, training


def places_of_units(ctx: Context, layers_in_unit: int, verified: int, *names: str, at: Model | None = None) -> Places:
    """Split all positions and layers into units of work; under `verify`, choose `verified` single layers. `at` is the model at
    another answer step, if positions are to be those there."""
    positions, layers = list((at or ctx.model).positions.named()), ctx.model.sizes.layers
    chosen = ctx.sample(len(positions) * layers, verified, *names)
    if len(chosen) < len(positions) * layers:
        return [(positions[i // layers], [int(i % layers)]) for i in chosen]
    return [(p, range(layers)[chunk]) for p in positions for chunk in split_evenly(layers, layers_in_unit)]


class TooFewCorrect(UserError):
    """The model answers too few prompts correctly to be studied."""

    def __init__(self) -> None:
        super().__init__(f"The model answers almost no prompt correctly; {ADVICE}.")


def batches(model: Model, prompts: Prompts, first: int, extra_bytes: int = 0) -> Iterator[tuple[Ints, Prompts]]:
    """Row numbers and prompts in batches that fit in memory if run from position `first` with `extra_bytes` more per prompt."""
    length = model.encoder.length
    size = rows_that_fit(model, length - first, length, extra_bytes)
    for start in range(0, len(prompts), size):
        rows = np.arange(start, min(start + size, len(prompts)))
        yield rows, prompts[rows]

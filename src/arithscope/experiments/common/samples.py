"""Which prompts each experiment uses. Discovery, evaluation and held-out prompts are disjoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.stage import Context
from arithscope.models.memory import rows_that_fit
from arithscope.models.model import Model
from arithscope.prompts import Prompts, counterfactuals, disjoint_samples, random_source, sample
from arithscope.settings import SampleSizes

TRAINING_SHARE = 0.8  # of the probes' prompts; the rest are test prompts


@dataclass(frozen=True)
class Split:
    """The prompts of one operator.

    Attributes:
        discovery: Prompts on which components are patched and ranked.
        counterfactuals: One counterfactual for each discovery prompt.
        evaluation: Prompts on which circuits are evaluated.
        held_out: All other correct prompts, for tests of what was found on the former.
    """

    discovery: Prompts
    counterfactuals: Prompts
    evaluation: Prompts
    held_out: Prompts


def splits(ctx: Context) -> dict[str, Split]:
    """The samples of each operator of the study; see `split_prompts`."""
    return split_prompts(ctx.results[Accuracy], ctx.settings.sizes, ctx.settings.seed)


def split_prompts(accuracy: Accuracy, sizes: SampleSizes, seed: int) -> dict[str, Split]:
    """Draw disjoint samples for each operator.

    Where correct prompts are few, a share of them is held out all the same. An operator with fewer than two correct prompts
    is left out.

    Raises:
        TooFewCorrect: If no operator can be split.
    """
    samples, pool = {}, accuracy.correct()
    # An untrained model that answers every prompt with the same number is right now and then.
    if len(np.unique(pool.answer)) < 2:
        raise TooFewCorrect
    held_out = max(sizes.discovery, sizes.evaluation)
    for operator in accuracy.operators:
        correct, random = accuracy.correct(operator), random_source(seed, "split", operator)
        wanted = (sizes.discovery, sizes.evaluation, max(held_out, len(correct) - sizes.discovery - sizes.evaluation))
        discovery, evaluation, rest = disjoint_samples(correct, wanted, random)
        if len(discovery) and len(evaluation):
            samples[operator] = Split(discovery, counterfactuals(discovery, pool, random), evaluation, rest)
    if not samples:
        raise TooFewCorrect
    return samples


def probe_split(ctx: Context) -> tuple[Prompts, int]:
    """Correct prompts of all operators in random order, and how many of them, from the first on, are for training."""
    prompts = ctx.results[Accuracy].correct()
    prompts = sample(prompts, ctx.settings.sizes.probe, random_source(ctx.settings.seed, "probe prompts"))
    training = int(TRAINING_SHARE * len(prompts))
    if training == 0:
        raise TooFewCorrect
    return prompts, training


class TooFewCorrect(UserError):
    """The model is never right, so there is nothing to look for."""

    def __init__(self) -> None:
        super().__init__(
            "The model answers almost no prompt correctly, so there is nothing to look for; try examples in a --prefix, "
            "another --template, or another model."
        )


def batches(
    model: Model, prompts: Prompts, first: int, extra_bytes: int = 0
) -> Iterator[tuple[NDArray[np.int64], Prompts]]:
    """Split prompts into batches that fit in memory when run from position `first` on.

    Args:
        model: The model that will run them.
        prompts: The prompts.
        first: First position that is computed; earlier ones are cached.
        extra_bytes: Additional bytes that the pass keeps per prompt.

    Yields:
        Row numbers and prompts of each batch.
    """
    length = model.encoder.length
    size = rows_that_fit(model, length - first, length, extra_bytes)
    for start in range(0, len(prompts), size):
        rows = np.arange(start, min(start + size, len(prompts)))
        yield rows, prompts[rows]

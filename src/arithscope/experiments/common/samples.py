"""How many prompts each experiment uses, and which: discovery and evaluation never share one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy
from arithscope.models.memory import rows_that_fit
from arithscope.models.model import Model
from arithscope.prompts import Prompts, counterfactuals, disjoint_samples, random_source, sample

TRAINING_SHARE = 0.8  # of the probes' prompts; the rest tests them


@dataclass(frozen=True)
class SampleSizes:
    """Prompts are per operator, but for those of the probes."""

    discovery: int  # correct prompts on which components are patched and ranked
    evaluation: int  # correct prompts, none of them among the former, on which faithfulness is measured
    first_mlp: int  # of the discovery prompts, those on which single neurons of the first MLP are patched
    probe: int | None  # correct prompts of all operators together, for training and testing probes; None: all there are
    neurons: int = 50  # of the discovery prompts, those on which single neurons of later MLPs are patched
    draws: int = 10  # random circuits to compare with
    permutations: int = 32  # of each neuron's activations, for the calibration of heuristics
    knockout: int = 100  # held-out prompts that satisfy a heuristic, and as many that do not
    prompt_knockout: int = 50  # held-out prompts, each of which loses the neurons of its own heuristics
    failures: int = 50  # held-out prompts, and as many that the model gets wrong

    def halved(self) -> SampleSizes:
        """For samples from half of the prompts; random circuits and permutations stay as many."""
        prompts = (
            "discovery",
            "evaluation",
            "first_mlp",
            "probe",
            "neurons",
            "knockout",
            "prompt_knockout",
            "failures",
        )
        sizes = {name: getattr(self, name) for name in prompts}
        return replace(self, **{name: max(1, n // 2) for name, n in sizes.items() if n is not None})


PRESETS = {
    "quick": SampleSizes(discovery=32, evaluation=32, first_mlp=8, probe=4000, draws=4, permutations=8, knockout=25),
    "paper": SampleSizes(discovery=100, evaluation=100, first_mlp=16, probe=None),
}


@dataclass(frozen=True)
class Split:
    discovery: Prompts
    counterfactuals: Prompts  # counterfactuals of the discovery prompts, one each
    evaluation: Prompts
    held_out: Prompts  # all other correct prompts, for tests of what was found on the former


def splits(accuracy: Accuracy, sizes: SampleSizes, seed: int) -> dict[str, Split]:
    """The samples of each operator. An operator with fewer than two correct prompts cannot be split and is left out. Where
    there are few, a share of them is held out all the same."""
    found, pool = {}, accuracy.correct()
    # An untrained model that says the same number to everything is right now and then.
    if len(np.unique(pool.answer)) < 2:
        raise too_few()
    held_out = max(sizes.discovery, sizes.evaluation)
    for operator in accuracy.operators:
        correct, random = accuracy.correct(operator), random_source(seed, "split", operator)
        wanted = (sizes.discovery, sizes.evaluation, max(held_out, len(correct) - sizes.discovery - sizes.evaluation))
        discovery, evaluation, rest = disjoint_samples(correct, wanted, random)
        if len(discovery) and len(evaluation):
            found[operator] = Split(discovery, counterfactuals(discovery, pool, random), evaluation, rest)
    if not found:
        raise too_few()
    return found


def probe_split(accuracy: Accuracy, sizes: SampleSizes, seed: int) -> tuple[Prompts, int]:
    """Correct prompts of all operators in random order, and how many of them, from the first on, are for training."""
    prompts = accuracy.correct()
    wanted = len(prompts) if sizes.probe is None else sizes.probe
    prompts = sample(prompts, wanted, random_source(seed, "probe prompts"))
    training = int(TRAINING_SHARE * len(prompts))
    if training == 0:
        raise too_few()
    return prompts, training


class TooFewCorrect(UserError):
    """There is nothing to look for in a model that is never right."""


def too_few() -> TooFewCorrect:
    return TooFewCorrect(
        "The model answers next to no prompt correctly, so there is nothing to look for; "
        "try examples in a --prefix, another --template, or another model."
    )


def batches(
    model: Model, prompts: Prompts, first: int, per_row: int = 0
) -> Iterator[tuple[NDArray[np.int64], Prompts]]:
    """The prompts in pieces that can be run from position `first` on in one pass, each with its row numbers; `per_row` adds
    bytes for what the pass keeps of each prompt."""
    length = model.encoder.length
    size = rows_that_fit(model, length - first, length, per_row)
    for start in range(0, len(prompts), size):
        rows = np.arange(start, min(start + size, len(prompts)))
        yield rows, prompts[rows]

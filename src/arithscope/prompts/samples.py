"""Random samples of prompts, and counterfactuals."""

import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from arithscope.errors import UserError
from arithscope.prompts.table import Prompts


def random_source(seed: int, *names: str | int) -> np.random.Generator:
    """A random generator that depends only on the seed and on the names of its purpose.

    Different purposes never share a stream, so adding an experiment does not change the samples of another.
    """
    return np.random.default_rng([seed, *(zlib.crc32(str(n).encode()) for n in names)])


def sample(prompts: Prompts, size: int, random: np.random.Generator) -> Prompts:
    """Draw at most `size` different prompts, in random order."""
    return prompts[random.permutation(len(prompts))[:size]]


def disjoint_samples(prompts: Prompts, sizes: Sequence[int], random: np.random.Generator) -> list[Prompts]:
    """Draw samples that share no prompt, such as discovery and evaluation.

    If there are too few prompts, all samples shrink in proportion, but not below one prompt while there are any.
    """
    total = sum(sizes)
    if total > len(prompts):
        sizes = [min(size, max(1, size * len(prompts) // total)) for size in sizes]
    order = random.permutation(len(prompts))
    ends = np.cumsum([0, *sizes])
    return [prompts[order[a:b]] for a, b in pairwise(ends)]


def counterfactuals(prompts: Prompts, pool: Prompts, random: np.random.Generator) -> Prompts:
    """For each prompt, draw a prompt with a different result uniformly from the pool."""
    by_result = np.argsort(pool.result, kind="stable")
    results = pool.result[by_result]
    first, end = np.searchsorted(results, prompts.result, "left"), np.searchsorted(results, prompts.result, "right")
    candidates = len(pool) - (end - first)
    if len(prompts) and candidates.min(initial=1) == 0:
        raise UserError("All correct prompts have the same answer, so there is no counterfactual; use more operands.")
    draw = random.integers(0, candidates) if len(prompts) else np.empty(0, dtype=np.int64)
    # The prompts with the same result are one block of the sorted pool: skip it.
    return pool[by_result[np.where(draw < first, draw, draw + (end - first))]]

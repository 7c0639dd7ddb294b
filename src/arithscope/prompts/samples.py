"""Random samples of prompts, and counterfactuals."""

import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from arithscope.errors import UserError
from arithscope.prompts.table import Place, Prompts


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


def counterfactuals(
    prompts: Prompts, pool: Prompts, random: np.random.Generator, places: Sequence[Place] = ()
) -> Prompts:
    """For each prompt, draw a prompt with a different result uniformly from the pool.

    Args:
        prompts: The prompts.
        pool: What is drawn from.
        random: Draws them.
        places: Tokens of the answer that are to be different, too. Those that are the same in the whole pool cannot be, nor all
            of them where the pool has no such prompt.

    Raises:
        UserError: If the pool has no other result for some prompt.
    """
    pool = pool[np.argsort(pool.answer, kind="stable")]  # the same order at every answer step
    different = prompts.result[:, None] != pool.result
    if len(prompts) and not different.any(axis=1).all():
        raise UserError("All correct prompts have the same answer, so there is no counterfactual; use more operands.")
    everywhere = different.copy()
    for place in places:
        tokens = place.of(pool.answer)
        if len(np.unique(tokens)) > 1:
            everywhere &= place.of(prompts.answer)[:, None] != tokens
    allowed = np.where(everywhere.any(axis=1, keepdims=True), everywhere, different)
    draw = random.integers(0, allowed.sum(axis=1)) if len(prompts) else np.empty(0, dtype=np.int64)
    chosen = [np.flatnonzero(row)[i] for row, i in zip(allowed, draw, strict=True)]
    return pool[np.array(chosen, dtype=np.int64)]

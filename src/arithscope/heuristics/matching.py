"""How well activations match heuristics: a heuristic of k prompts scores the share of them among the k that fire most.

Nothing loops over pairs of neuron and heuristic. A neuron's prompts are sorted once; then a cumulative histogram says, for
each number of a variable and each size k that occurs, how many of the k foremost prompts have that number, and the overlap of
every heuristic is a sum of its entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from arithscope.heuristics.catalogue import Side, Variable

THRESHOLD = 0.6  # of a score, from which on a neuron is said to match


def order(activations: Float[Tensor, "rows prompts"]) -> Int[Tensor, "rows prompts"]:
    """Each row's prompts, highest activation first; of equal ones the earlier comes first.

    A float's bits, read as an integer, keep the order of floats (with a flip for negative ones). With the prompt's number
    below them, every key is different and holds the prompt itself, so keys can be sorted by any algorithm.
    """
    n = activations.shape[1]
    shift = max(n - 1, 1).bit_length()
    bits = (activations.float() + 0.0).view(torch.int32)  # + 0.0 makes −0 a 0
    descending = (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits).bitwise_not_()
    keys = descending.long().bitwise_left_shift_(shift).bitwise_or_(torch.arange(n, device=bits.device))
    return sorted_rows(keys).bitwise_and_((1 << shift) - 1)


def sorted_rows(keys: Int[Tensor, "rows keys"]) -> Int[Tensor, "rows keys"]:
    """Each row in ascending order; on a CPU in place."""
    if keys.is_cuda:
        return keys.sort(dim=1).values
    keys.numpy().sort(axis=1)  # several times as fast as torch's, which also returns indices
    return keys


def is_match(overlap: Any, size: Any) -> Any:
    """Whether the score overlap / size reaches the threshold; in integers, so that 3 of 5 always does."""
    return overlap * 10 >= size * round(THRESHOLD * 10)


def overlaps(ordered: Int[Tensor, "rows prompts"], side: Side) -> Int[Tensor, "rows heuristics"]:
    """For each heuristic of a class, of size k, how many of its prompts are among the k foremost."""
    return torch.cat([_counted(ordered, variable) for variable in side.variables], dim=1)


def _counted(ordered: Tensor, variable: Variable) -> Tensor:
    table = foremost(variable.values, ordered[:, : int(variable.cuts[-1])], variable.cuts, variable.size)
    sums = _cumulated(table.flatten(1)[:, variable.entries])[:, variable.ends - 1]
    return torch.diff(sums, dim=1, prepend=torch.zeros_like(sums[:, :1]))


def foremost(
    values: Int[Tensor, " prompts"], ordered: Int[Tensor, "rows first"], cuts: Int[Tensor, " cuts"], size: int
) -> Int[Tensor, "rows size cuts"]:
    """How often each value 0…size−1 occurs among the first k prompts of a row, for each k of `cuts` (ascending; the last is
    the row's length)."""
    rows, n = ordered.shape
    lengths = cuts.diff(prepend=cuts.new_zeros(1))
    piece = torch.arange(len(cuts), device=cuts.device).repeat_interleave(lengths, output_size=n)
    cells = (values * len(cuts))[ordered].add_(piece)
    table = torch.zeros(rows, size * len(cuts), dtype=torch.int32, device=cuts.device)
    table.scatter_add_(1, cells, table.new_ones(1, 1).expand(rows, n))
    return _cumulated(table.view(rows, size, len(cuts)))


def _cumulated(x: Tensor) -> Tensor:
    """The cumulative sum along the last dimension, in place."""
    if x.is_cuda:
        return x.cumsum_(-1)
    np.cumsum(x.numpy(), axis=-1, out=x.numpy())  # several times as fast as torch's
    return x

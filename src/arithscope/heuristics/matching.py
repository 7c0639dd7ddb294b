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


def order(activations: Float[Tensor, "rows prompts"], first: int | None = None) -> Int[Tensor, "rows prompts"]:
    """Each row's prompts, or the first so many of them, highest activation first; of equal ones the earlier comes first.

    A float's bits, read as an integer, keep the order of floats (with a flip for negative ones). With the prompt's number
    below them, every key is different and holds the prompt itself, so keys can be sorted by any algorithm.
    """
    n = activations.shape[1]
    shift = n.bit_length()
    bits = (activations.float() + 0.0).view(torch.int32)  # + 0.0 makes −0 a 0
    descending = (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits).bitwise_not_()
    keys = descending.long().bitwise_left_shift_(shift).bitwise_or_(torch.arange(n, device=bits.device))
    return sorted_rows(keys, first).bitwise_and_((1 << shift) - 1)


def sorted_rows(keys: Int[Tensor, "rows keys"], first: int | None = None) -> Int[Tensor, "rows keys"]:
    """Each row, or the smallest so many keys of it, in ascending order; on a CPU in place."""
    if keys.is_cuda:
        return keys.sort(dim=1).values[:, :first]
    if first is not None and first < keys.shape[1]:
        keys.numpy().partition(first, axis=1)
        keys = keys[:, :first]
    keys.numpy().sort(axis=1)  # several times as fast as torch's, which also returns indices
    return keys


def is_match(overlap: Any, size: Any) -> Any:
    """Whether the score overlap / size reaches the threshold; in integers, so that 3 of 5 always does."""
    return overlap * 10 >= size * round(THRESHOLD * 10)


def overlaps(ordered: Int[Tensor, "rows prompts"], side: Side) -> Int[Tensor, "rows heuristics"]:
    """For each heuristic of a class, of size k, how many of its prompts are among the k foremost. Where rows hold only the
    foremost prompts, so many or fewer, that is so for heuristics no larger than that; for others it means nothing."""
    return torch.cat([_counted(ordered, variable) for variable in side.variables], dim=1)


def _counted(ordered: Tensor, variable: Variable) -> Tensor:
    first = ordered[:, : variable.deepest]
    places = variable.values.index_select(0, first.flatten()).view(first.shape)
    places += variable.piece_starts[: first.shape[1]]
    cells = variable.cells.flatten().index_select(0, places.flatten()).view(first.shape)
    table = cumulated(histogram(cells, variable.cell_count))
    found = taken(table, variable.entries).sub_(taken(table, variable.before))
    sums = cumulated(found)[:, variable.ends - 1]
    return torch.diff(sums, dim=1, prepend=torch.zeros_like(sums[:, :1]))


def histogram(cells: Int[Tensor, "rows first"], count: int) -> Int[Tensor, "rows count"]:
    """How often each of so many cells occurs in a row."""
    table = torch.zeros(len(cells), count, dtype=torch.int32, device=cells.device)
    return table.scatter_add_(1, cells, table.new_ones(1, 1).expand(cells.shape))


def taken(x: Tensor, which: Int[Tensor, " columns"]) -> Tensor:
    """Some columns of every row: x[:, which], but on a CPU several times as fast."""
    return x.gather(1, which.expand(len(x), -1))


def cumulated(x: Tensor) -> Tensor:
    """The cumulative sum along the last dimension, in place."""
    if x.is_cuda:
        return x.cumsum_(-1)
    np.cumsum(x.numpy(), axis=-1, out=x.numpy())  # several times as fast as torch's
    return x

"""Overlaps between heuristics and the prompts on which a neuron fires most (paper App. F).

A heuristic of k prompts scores |H ∩ top-k| / k. There is no loop over pairs of neuron and heuristic:

1. Rank the neuron's prompts once, by activation (`top_prompts`).
2. For each variable of the catalogue, fill a histogram over (interval of ranks, value) and take its cumulative sum.
3. The overlap of every heuristic is a sum of differences between entries of that table (`count_overlaps`).
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from arithscope.heuristics.catalogue import Catalogue, HeuristicGroup, Variable
from arithscope.utils.out_of_memory import rows_within

THRESHOLD = 0.6  # smallest score of a match
THRESHOLDS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # for which the share of classified neurons is reported
CPU_ELEMENTS, GPU_ELEMENTS = 2**20, 2**25  # rankings in memory × elements of each


def rankings_at_a_time(catalogue: Catalogue) -> int:
    """Number of rankings of the prompts to hold in memory."""
    return rows_within(GPU_ELEMENTS if catalogue.results.is_cuda else CPU_ELEMENTS, catalogue.elements_per_ranking)


def top_prompts(activations: Float[Tensor, "rows prompts"], k: int | None = None) -> Int[Tensor, "rows k"]:
    """Indices of each row's top-k prompts (all by default), highest activation first; among equals, the earlier prompt first.

    A float's bits, read as an integer, keep the order of floats (with a flip for negative ones). With the prompt's index in
    the lowest bits every key is unique and contains the prompt, so any sorting algorithm gives the same ranking.
    """
    n = activations.shape[1]
    shift = n.bit_length()
    bits = (activations.float() + 0.0).view(torch.int32)  # + 0.0 turns −0 into 0
    descending = (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits).bitwise_not_()
    keys = descending.long().bitwise_left_shift_(shift).bitwise_or_(torch.arange(n, device=bits.device))
    return sorted_rows(keys, k).bitwise_and_((1 << shift) - 1)


def sorted_rows(keys: Int[Tensor, "rows keys"], k: int | None = None) -> Int[Tensor, "rows k"]:
    """The k smallest keys of each row (all by default) in ascending order; sorts in place on a CPU."""
    if keys.is_cuda:
        return keys.sort(dim=1).values[:, :k]
    if k is not None and k < keys.shape[1]:
        keys.numpy().partition(k, axis=1)
        keys = keys[:, :k]
    keys.numpy().sort(axis=1)  # several times as fast as torch's sort, which also returns indices
    return keys


def is_match(overlap: Any, size: Any, threshold: float = THRESHOLD) -> Any:
    """Whether the score overlap / size reaches the threshold, which is in tenths; integers avoid rounding."""
    return overlap * 10 >= size * round(threshold * 10)


def count_overlaps(ranked: Int[Tensor, "rows prompts"], group: HeuristicGroup) -> Int[Tensor, "rows heuristics"]:
    """Overlap of each heuristic of size k with the top k of each row; meaningless if the row holds fewer than k prompts."""
    return torch.cat([_count(ranked, variable) for variable in group.variables], dim=1)


def _count(ranked: Tensor, variable: Variable) -> Tensor:
    top = ranked[:, : variable.max_k]
    places = variable.values.index_select(0, top.flatten()).view(top.shape)
    places += variable.row_start[: top.shape[1]]
    bins = variable.bins.index_select(0, places.flatten()).view(top.shape)
    table = _cumsum_(histogram(bins, variable.bin_count))
    counts = take_columns(table, variable.upper).sub_(take_columns(table, variable.lower))
    sums = _cumsum_(counts)[:, variable.ends - 1]
    return torch.diff(sums, dim=1, prepend=torch.zeros_like(sums[:, :1]))


def histogram(bins: Int[Tensor, "rows prompts"], count: int) -> Int[Tensor, "rows count"]:
    """Number of occurrences of each bin 0…count−1 in each row."""
    table = torch.zeros(len(bins), count, dtype=torch.int32, device=bins.device)
    return table.scatter_add_(1, bins, table.new_ones(1, 1).expand(bins.shape))


def take_columns(x: Tensor, columns: Int[Tensor, " columns"]) -> Tensor:
    """x[:, columns], several times as fast on a CPU."""
    return x.gather(1, columns.expand(len(x), -1))


def _cumsum_(x: Tensor) -> Tensor:
    """Cumulative sum along the last dimension, in place."""
    if x.is_cuda:
        return x.cumsum_(-1)
    np.cumsum(x.numpy(), axis=-1, out=x.numpy())  # several times as fast as torch's
    return x

"""Multi-result heuristics of division: the two to four results that a neuron's top prompts have (paper App. E).

The paper takes the smallest set of results that accounts for at least 95 % of the neuron's top prompts, and leaves open how
many prompts those are. Here, for each ranking of the prompts:

1. For every T on a grid (2, 3, 4, 6, … N), find the smallest set that accounts for 95 % of the top T prompts: the most frequent
   results, as each prompt has one. Keep it if it has two to four results.
2. Treat each candidate as a heuristic of k prompts and count its overlap with the top k.
3. Choose among the candidates that match (score ≥ 0.6), or among all if none does, the one whose membership has the largest
   mutual information with being in the top k. Ties go to the smaller T.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import MultiResult
from arithscope.heuristics.overlaps import histogram, is_match, sorted_rows

MAX_RESULTS = 4
COVERED_PERCENT = 95
MATCH_BONUS = 1e9  # larger than N × mutual information can be
GROWTH = 1.5  # from one T of the grid to the next

Rankings = Int[Tensor, "rankings prompts"]


class ResultSets(NamedTuple):
    """The multi-result heuristic of each ranking. Where `exists` is False there is none and the rest is meaningless."""

    exists: Bool[Tensor, " rankings"]
    members: Int[Tensor, "rankings 4"]  # indices into the catalogue's results; the first `length` count
    length: Int[Tensor, " rankings"]
    size: Int[Tensor, " rankings"]  # k
    overlap: Int[Tensor, " rankings"]

    def heuristic(self, row: int, catalogue: Catalogue) -> MultiResult:
        return MultiResult(tuple(catalogue.results[self.members[row, : int(self.length[row])]].tolist()))


def top_sizes(total: int) -> list[int]:
    """Values of T that are tried."""
    sizes = [2]
    while sizes[-1] < total:
        sizes.append(min(total, int(sizes[-1] * GROWTH)))
    return sizes


def ranks_by_result(ranked: Rankings, catalogue: Catalogue) -> Rankings:
    """Ranks of the prompts, grouped by result and ascending in each group, as result index · N + rank."""
    total, device = ranked.shape[1], ranked.device
    dtype = torch.int32 if len(catalogue.results) * total < 2**31 else torch.int64  # int32 sorts faster
    offset = (catalogue.result_index * total).to(dtype).index_select(0, ranked.flatten())
    return sorted_rows(offset.view(ranked.shape).add_(torch.arange(total, dtype=dtype, device=device)))


def find_result_sets(ranked: Rankings, ranks: Rankings, catalogue: Catalogue) -> ResultSets:
    """Choose the multi-result heuristic of each ranking, given with its `ranks_by_result`."""
    (rankings, total), results, device = ranked.shape, len(catalogue.results), ranked.device
    most = min(MAX_RESULTS, results)
    cuts = torch.tensor(top_sizes(total), device=device)
    lengths = cuts.diff(prepend=cuts.new_zeros(1))
    starts = torch.arange(0, len(cuts) * results, results, device=device).repeat_interleave(lengths, output_size=total)
    bins = catalogue.result_index.index_select(0, ranked.flatten()).view(ranked.shape).add_(starts)
    counts = histogram(bins, len(cuts) * results).view(rankings, len(cuts), results).cumsum(1)  # among the top T
    # The most frequent results; the smaller result first among equals.
    backwards = torch.arange(results - 1, -1, -1, device=device)
    frequent = (counts * results + backwards).topk(most, dim=-1).indices  # [rankings, cuts, most]
    accounted = counts.gather(-1, frequent).cumsum(-1) * 100 >= COVERED_PERCENT * cuts[:, None]
    needed = accounted.int().argmax(-1) + 1  # also 1 where no set accounts for enough
    used = torch.arange(most, device=device) < needed[..., None]
    k = (catalogue.result_counts[frequent] * used).sum(-1)
    candidate = (needed >= 2) & (k < total)
    overlap = (_counts_in_top(ranks, frequent, k, catalogue) * used).sum(-1)
    score = _mutual_information(total, k, overlap) + MATCH_BONUS * is_match(overlap, k)
    chosen = torch.arange(rankings, device=device), score.masked_fill(~candidate, -torch.inf).argmax(-1)
    return ResultSets(*(x[chosen] for x in (candidate, frequent, needed, k, overlap)))


def set_overlaps(ranks: Tensor, sets: ResultSets, catalogue: Catalogue) -> Int[Tensor, "neurons rankings sets"]:
    """Overlap of each of a neuron's sets, of size k, with the top k of each of its rankings, given by `ranks_by_result`.

    `ranks` is [neurons, rankings, prompts]. `sets` holds the sets of all neurons, the same number for each.
    """
    neurons, rankings = ranks.shape[:2]
    used = torch.arange(sets.members.shape[1], device=ranks.device) < sets.length[:, None]
    by_neuron = [x.unflatten(0, (neurons, -1)) for x in (sets.members, sets.size, used)]
    members, k, used = (x.repeat_interleave(rankings, 0) for x in by_neuron)
    counts = _counts_in_top(ranks.flatten(0, 1), members, k, catalogue)
    return (counts * used).sum(-1).unflatten(0, (neurons, rankings))


def _counts_in_top(ranks: Tensor, members: Tensor, k: Tensor, catalogue: Catalogue) -> Tensor:
    """Number of top-k prompts [rankings, sets] with each result [rankings, sets, most], by bisection."""
    bounds = members * ranks.shape[1] + k[..., None]
    first = catalogue.result_counts.cumsum(0) - catalogue.result_counts
    return torch.searchsorted(ranks, bounds.flatten(1).to(ranks.dtype)).view(bounds.shape) - first[members]


def _mutual_information(total: int, k: Tensor, overlap: Tensor) -> Tensor:
    """N × mutual information, in nats, of membership in a set of k and in the top k; 0 for an overlap below chance."""
    k, x, n = k.double(), overlap.double(), float(total)

    def term(observed: Tensor, expected: Tensor) -> Tensor:
        return torch.xlogy(observed, observed / expected.clamp(min=1e-300))

    information = term(x, k * k / n) + 2 * term(k - x, k * (n - k) / n) + term(n - 2 * k + x, (n - k) ** 2 / n)
    return torch.where(x > k * k / n, information, torch.zeros_like(information))

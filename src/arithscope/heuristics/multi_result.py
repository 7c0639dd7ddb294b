"""Multi-result heuristics of division: which two to four results a neuron's foremost prompts have.

A set of results *accounts for* the T foremost prompts if at least 95 % of them have one of these results. For every T (on a
grid) there is a smallest such set: as each prompt has one result, that of the most frequent ones. Sets of two to four results
are candidates; a single result is no multi-result heuristic. Of the candidates, each now a set of k prompts like any
other heuristic, those come first that match, and of these the one whose overlap with the k foremost prompts says most, that
is, has the most mutual information with being among them; the smaller T comes first if two say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import MultiResult
from arithscope.heuristics.matching import histogram, is_match, sorted_rows

MOST = 4
PERCENT = 95
MATCHED = 1e9  # more than any information, in nats, of so many prompts
GROWTH = 1.5  # from one T of the grid to the next


@dataclass(frozen=True, eq=False)
class MultiResults:
    """The multi-result heuristic of each of some orders of the prompts; `found` is False where there is none (and the rest
    means nothing). `codes` are indices into the catalogue's results, of which the first `count` are meant."""

    found: Bool[Tensor, " orders"]
    codes: Int[Tensor, "orders four"]
    count: Int[Tensor, " orders"]
    size: Int[Tensor, " orders"]  # k
    overlap: Int[Tensor, " orders"]

    def __getitem__(self, rows: Tensor) -> MultiResults:
        return MultiResults(*(x[rows] for x in vars(self).values()))

    def chunk(self, pieces: int) -> list[MultiResults]:
        """In so many pieces of equal size."""
        return [MultiResults(*parts) for parts in zip(*(x.chunk(pieces) for x in vars(self).values()), strict=True)]

    @staticmethod
    def joined(parts: Sequence[MultiResults]) -> MultiResults:
        return MultiResults(*(torch.cat(x) for x in zip(*(vars(part).values() for part in parts), strict=True)))

    def heuristic(self, row: int, catalogue: Catalogue) -> MultiResult:
        return MultiResult(tuple(catalogue.results[self.codes[row, : int(self.count[row])]].tolist()))


def how_many_sets(catalogue: Catalogue) -> int:
    """How many sets of results there are to choose from."""
    if catalogue.operator != "/":
        return 0
    return sum(comb(len(catalogue.results), size) for size in range(2, MOST + 1))


def grid(total: int) -> list[int]:
    """Numbers of foremost prompts that are tried."""
    sizes = [2]
    while sizes[-1] < total:
        sizes.append(min(total, int(sizes[-1] * GROWTH)))
    return sizes


def ranks_by_result(ordered: Int[Tensor, "orders prompts"], catalogue: Catalogue) -> Int[Tensor, "orders prompts"]:
    """Ranks of the prompts, by result and then ascending, as result code · N + rank."""
    total, device = ordered.shape[1], ordered.device
    kind = torch.int32 if len(catalogue.results) * total < 2**31 else torch.int64  # the smaller are sorted faster
    first = (catalogue.codes * total).to(kind).index_select(0, ordered.flatten())
    return sorted_rows(first.view(ordered.shape).add_(torch.arange(total, dtype=kind, device=device)))


def multi_results(ordered: Int[Tensor, "orders prompts"], ranks: Tensor, catalogue: Catalogue) -> MultiResults:
    """For each order, with its `ranks_by_result`."""
    (orders, total), results, device = ordered.shape, len(catalogue.results), ordered.device
    most = min(MOST, results)
    cuts = torch.tensor(grid(total), device=device)
    lengths = cuts.diff(prepend=cuts.new_zeros(1))
    starts = torch.arange(0, len(cuts) * results, results, device=device).repeat_interleave(lengths, output_size=total)
    cells = catalogue.codes.index_select(0, ordered.flatten()).view(ordered.shape).add_(starts)
    pieces = histogram(cells, len(cuts) * results)
    counts = pieces.view(orders, len(cuts), results).cumsum(1)  # among the first T prompts
    # The most frequent results, the smaller result first among equals.
    backwards = torch.arange(results - 1, -1, -1, device=device)
    frequent = (counts * results + backwards).topk(most, dim=-1).indices  # [orders, cuts, most]
    accounted = counts.gather(-1, frequent).cumsum(-1) * 100 >= PERCENT * cuts[:, None]
    needed = accounted.int().argmax(-1) + 1  # 1, too, where no set accounts for so many
    used = torch.arange(most, device=device) < needed[..., None]
    k = (catalogue.result_sizes[frequent] * used).sum(-1)
    candidate = (needed >= 2) & (k < total)
    overlap = (_below(ranks, frequent, k, catalogue) * used).sum(-1)
    says = _information(total, k, overlap) + MATCHED * is_match(overlap, k)
    says = says.masked_fill(~candidate, -torch.inf)
    chosen = torch.arange(orders, device=device), says.argmax(-1)  # the first of equals
    return MultiResults(candidate[chosen], frequent[chosen], needed[chosen], k[chosen], overlap[chosen])


def occurrences(ranks: Tensor, sets: MultiResults, catalogue: Catalogue) -> Int[Tensor, "orders sets"]:
    """The overlap of every set, of size k, with the k foremost prompts of every order, given by its `ranks_by_result`."""
    used = torch.arange(sets.codes.shape[1], device=ranks.device) < sets.count[:, None]
    codes, k = (x.expand(len(ranks), *x.shape) for x in (sets.codes, sets.size))
    return (_below(ranks, codes, k, catalogue) * used).sum(-1)


def _below(ranks: Tensor, codes: Tensor, k: Tensor, catalogue: Catalogue) -> Tensor:
    """How often results [orders, sets, most] occur among the first k [orders, sets] prompts of each order: by bisection."""
    bounds = codes * ranks.shape[1] + k[..., None]
    first = catalogue.result_sizes.cumsum(0) - catalogue.result_sizes
    return torch.searchsorted(ranks, bounds.flatten(1).to(ranks.dtype)).view(bounds.shape) - first[codes]


def _information(total: int, k: Tensor, overlap: Tensor) -> Tensor:
    """Mutual information, in nats × prompts, of a set of k and the k foremost prompts; 0 for an overlap below chance."""
    k, x, n = k.double(), overlap.double(), float(total)

    def part(observed: Tensor, expected: Tensor) -> Tensor:
        return torch.xlogy(observed, observed / expected.clamp(min=1e-300))

    information = part(x, k * k / n) + 2 * part(k - x, k * (n - k) / n) + part(n - 2 * k + x, (n - k) ** 2 / n)
    return torch.where(x > k * k / n, information, torch.zeros_like(information))

"""Which matches can be trusted: how likely a neuron without a rule would do as well.

A neuron without a rule is one whose activations are permuted over prompts. Its value vector stays as it is: for a direct
heuristic the activation must add something to it. How surprising an overlap is then, is its *beyond*: −log₁₀ of the
probability of as much overlap, or more,

    indirect   in a random order of prompts, whatever the neuron: the hypergeometric evidence itself
    direct     when this neuron's activations are permuted. A few dozen permutations say how much overlap the value vector
               alone brings on average; the prompts beyond that are as improbable as in a binomial distribution of that mean

The largest *beyond* of all heuristics of a class is compared with what permuted neurons show. That gives the probability p
that a class shows as much by chance, doubled as there are two classes; and the p of all neurons give the false-discovery rate
(Benjamini and Hochberg): the share of neurons, among those with no larger p, that must be expected there by chance.

Why not take the hypergeometric evidence for direct heuristics too? Real value vectors favour some large set of results, so
permuted activations reach evidence in the hundreds there, and a perfect match of a small set (100 for 30 prompts) drowns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.matching import order, overlaps
from arithscope.heuristics.multi_result import MultiResults, multi_results, occurrences, ranks_by_result
from arithscope.heuristics.tails import LN10

LEVEL = 0.05  # of the false-discovery rate
INDIRECT_DRAWS = 400  # random orders, for all neurons of an operator
CLASSES, SIGNS = 2, 2

Floats = NDArray[np.float64]


def neg_log10_p(
    overlap: Int[Tensor, "*rows sets"], size: Int[Tensor, "*#rows sets"], expected: Float[Tensor, "*#rows sets"]
) -> Float[Tensor, "*rows sets"]:
    """−log₁₀ of (a tight bound, by Chernoff, of) the probability of so much overlap where so much is expected.

        k · KL(x/k ‖ μ/k) / ln 10    for an overlap x of k with x > μ, else 0

    0 for what is expected; grows with every prompt beyond it, and the faster the smaller a share of the set was expected.
    """
    k, x = size.double(), overlap.double()
    mean = torch.minimum(expected.double(), k)
    information = torch.xlogy(x, x / mean.clamp(min=1e-300)) + torch.xlogy(
        k - x, (k - x) / (k - mean).clamp(min=1e-300)
    )
    return torch.where(x > mean, information / LN10, torch.zeros_like(x))


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Of sets of `size` prompts with neurons' foremost: how many there are, how many a neuron's value vector alone leads to
    expect, and what is beyond that."""

    size: Int[Tensor, "#neurons sets"]
    overlap: Int[Tensor, "neurons sets"]
    expected: Float[Tensor, "neurons sets"]
    neg_log10_p: Float[Tensor, "neurons sets"]


@dataclass(frozen=True, eq=False)
class Direct:
    """What direct heuristics make of neurons: the catalogue's; each neuron's multi-result heuristic, as one set, of division;
    and the most that each permutation of a neuron's activations shows."""

    catalogued: Overlaps
    several: tuple[MultiResults, Overlaps] | None
    null: Float[Tensor, "neurons draws"]


def direct(
    activations: Float[Tensor, "neurons prompts"],
    logits: Float[Tensor, "neurons prompts"],
    catalogue: Catalogue,
    shifts: NDArray[np.int64],
    rows: int,
) -> Direct:
    """Match neurons, and the same neurons with their activations permuted, `rows` orders of the prompts at a time.

    Prompts are in random order, so to move activations round by a random number of places, `shifts` [neurons, draws], is to
    permute them at random.
    """
    side, divided = catalogue.direct, catalogue.operator == "/"
    todo = [(neuron, shift) for neuron, own in enumerate(shifts.tolist()) for shift in (0, *own)]
    found, sets, ranks = [], [], []
    for start in range(0, len(todo), rows):
        ordered = order(rolled_products(activations, logits, todo[start : start + rows]), catalogue.depth)
        found.append(overlaps(ordered, side))
        if divided:
            ranks.append(ranks_by_result(ordered, catalogue))
            sets.append(multi_results(ordered, ranks[-1], catalogue))
    overlap = torch.cat(found).unflatten(0, (len(activations), -1))
    expected = _expected(overlap, side.sizes, len(catalogue))
    most = neg_log10_p(overlap, side.sizes, expected)
    null, several = most[:, 1:].amax(2), None
    if divided:
        every = MultiResults.joined(sets)
        mean = torch.cat(
            [
                _expected(occurrences(own, some, catalogue)[None], some.size, len(catalogue))[0].diagonal()
                for own, some in zip(
                    torch.cat(ranks).chunk(len(activations)), every.chunk(len(activations)), strict=True
                )
            ]
        )
        above = neg_log10_p(every.overlap, every.size, mean).masked_fill(~every.found, 0.0)
        null = torch.maximum(null, above.view(null.shape[0], -1)[:, 1:])
        own = torch.arange(0, len(above), overlap.shape[1], device=above.device)
        several = every[own], Overlaps(*(x[own, None] for x in (every.size, every.overlap, mean, above)))
    return Direct(Overlaps(side.sizes[None], overlap[:, 0], expected[:, 0], most[:, 0]), several, null)


def rolled_products(
    activations: Float[Tensor, "neurons prompts"],
    logits: Float[Tensor, "neurons prompts"],
    which: Sequence[tuple[int, int]],
) -> Float[Tensor, "orders prompts"]:
    """activations[neuron].roll(shift) · logits[neuron] for some neurons and shifts."""
    if activations.is_cuda:
        return gathered_products(activations, logits, which)
    n, products = activations.shape[1], activations.new_empty(len(which), activations.shape[1])
    for product, (i, shift) in zip(products, which, strict=True):  # without a copy in between
        torch.mul(activations[i, n - shift :], logits[i, :shift], out=product[:shift])
        torch.mul(activations[i, : n - shift], logits[i, shift:], out=product[shift:])
    return products


def gathered_products(activations: Tensor, logits: Tensor, which: Sequence[tuple[int, int]]) -> Tensor:
    """The same for all at once, which a GPU is quicker with."""
    n = activations.shape[1]
    neuron, shift = torch.tensor(which, device=activations.device).T
    twice = torch.cat([activations, activations], dim=1).flatten()
    starts = (2 * neuron + 1) * n - shift
    return twice[starts[:, None] + torch.arange(n, device=starts.device)].mul_(logits[neuron])


def _expected(
    overlap: Int[Tensor, "neurons orders sets"], size: Int[Tensor, " sets"], total: int
) -> Float[Tensor, "neurons orders sets"]:
    """For each order the mean overlap in the neuron's others: its own order among them, treated like any permutation.

    One more order is counted in, with half a prompt more than chance, so that no overlap is held to be next to impossible
    because a few permutations did not show it.
    """
    x = overlap.double()
    return (x.sum(1, keepdim=True) - x + size.double() ** 2 / total + 0.5) / x.shape[1]


def indirect_null(catalogue: Catalogue, random: np.random.Generator, rows: int) -> Float[Tensor, " draws"]:
    """The most evidence for an indirect heuristic, of either sign, when prompts are in random order; `rows` at a time."""
    n, side = len(catalogue), catalogue.indirect
    found = []
    for start in range(0, INDIRECT_DRAWS, rows):
        size = min(rows, INDIRECT_DRAWS - start)
        ordered = torch.from_numpy(np.stack([random.permutation(n) for _ in range(size)])).to(catalogue.cells.device)
        both = torch.maximum(overlaps(ordered, side), overlaps(ordered.flip(1), side))
        found.append(side.neg_log10_p_hypergeom(both).amax(1))
    return torch.cat(found)


def chance_of(most: Floats, null: Floats, tries: int) -> Floats:
    """P(as much by chance): counted in the null; where that does not reach, at most the sum of the probabilities of all
    heuristics that were tried."""
    exceeding = len(null) - np.searchsorted(np.sort(null), most, side="left")
    counted = (1 + exceeding) / (1 + len(null))
    return np.where(exceeding > 0, counted, np.minimum(counted, tries * 10.0**-most))


def false_discovery_rate(p: Floats, of_neurons: Floats) -> Floats:
    """The rate at which neurons would be taken for real by chance if all with a p as small as each of `p` were taken.

        min over t ≥ p of  t · m / |{neurons with p ≤ t}|

    with the m neurons' own p; at most 1.
    """
    ranked = np.sort(of_neurons)
    m = len(ranked)
    rate = np.append(np.minimum.accumulate((ranked * m / np.arange(1, m + 1))[::-1])[::-1], 1.0)
    below = np.searchsorted(ranked, p, side="right")
    here = np.where(below > 0, p * m / np.maximum(below, 1), 1.0)
    return np.minimum(here, rate[below])

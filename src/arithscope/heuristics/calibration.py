"""Which matches can be trusted: false-discovery rates against a permutation null (docs/heuristics.md; not in the paper).

Base rates and smooth value vectors inflate raw scores: 76 % of products are even, so noise scores .76 on `result mod 2 = 0`.

1. Permutation null: permute a neuron's activations over prompts and keep its value vector, so that for a direct heuristic the
   activation must add something to the value vector.
2. Statistic of a heuristic, `neg_log10_p`: −log₁₀ of the probability of at least the observed overlap under the null.
   Indirect: the hypergeometric tail, which does not depend on the neuron. Direct: a few dozen permutations give the overlap
   expected from the value vector alone; the tail is that of a binomial distribution with this mean.
3. p of a class (direct or indirect): how often a permuted neuron reaches the statistic on any heuristic of the class, times two
   because there are two classes.
4. False-discovery rate over the neurons of an operator, by Benjamini and Hochberg.
5. Second null, for matches about the result or both operands: permute activations over the prompts with the same op2, so that
   they depend on op2 alone; likewise with op1. A match needs both operands if its overlap exceeds what remains in either case,
   averaged over a few permutations of each kind, at p < 0.001.

The hypergeometric tail does not work for direct heuristics: real value vectors favour some large set of results, where permuted
activations reach a statistic in the hundreds. A perfect match of a small set (100 for 30 prompts) would drown in these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import MultiResult, Rule
from arithscope.heuristics.multi_result import ResultSets, find_result_sets, ranks_by_result, set_overlaps
from arithscope.heuristics.overlaps import count_overlaps, rankings_at_a_time, top_prompts
from arithscope.heuristics.tails import LN10, neg_log10_p_hypergeom
from arithscope.prompts import random_source

FDR_LEVEL = 0.05
INDIRECT_DRAWS = 400  # random rankings, shared by all neurons of an operator
ONE_OPERAND_DRAWS = 4  # permutations that keep op2, and as many that keep op1, shared by all neurons of an operator
MIN_NEG_LOG10_P = 3.0  # smallest statistic of an overlap that needs both operands, given what remains with one
N_CLASSES = 2

OnPrompts = Float[Tensor, "neurons prompts"]
Shifts = Int[np.ndarray, "neurons draws"]
Rolls = Sequence[tuple[int, int]]  # pairs of neuron and shift
Floats = Float[np.ndarray, " values"]


def neg_log10_p(
    overlap: Int[Tensor, "*rows sets"], size: Int[Tensor, "*#rows sets"], expected: Float[Tensor, "*#rows sets"]
) -> Float[Tensor, "*rows sets"]:
    """−log₁₀ of a tight (Chernoff) bound on the probability of an overlap of at least x where μ is expected.

        k · KL(x/k ‖ μ/k) / ln 10    for an overlap x of k prompts with x > μ, else 0

    0 up to the expected overlap, then increasing, the faster the smaller the expected share. Unbounded.
    """
    k, x = size.double(), overlap.double()
    mean = torch.minimum(expected.double(), k)
    hits = torch.xlogy(x, x / mean.clamp(min=1e-300))
    misses = torch.xlogy(k - x, (k - x) / (k - mean).clamp(min=1e-300))
    return torch.where(x > mean, (hits + misses) / LN10, torch.zeros_like(x))


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Overlaps of sets of `size` prompts with neurons' top prompts, the overlap expected under the null, and both tails."""

    sign: Int[Tensor, "neurons sets"]  # −1 if the top prompts are those of −A
    size: Int[Tensor, "#neurons sets"]
    overlap: Int[Tensor, "neurons sets"]
    neg_log10_p_hypergeom: Float[Tensor, "neurons sets"]
    expected: Float[Tensor, "#neurons sets"]
    neg_log10_p: Float[Tensor, "neurons sets"]


@dataclass(frozen=True, eq=False)
class DirectOverlaps:
    """Overlaps with direct heuristics, and the largest statistic of each permutation of each neuron."""

    catalogued: Overlaps
    result_sets: tuple[ResultSets, Overlaps] | None  # each neuron's multi-result heuristic, for division
    null: Float[Tensor, "neurons draws"]


def direct_overlaps(
    activations: OnPrompts, logits: OnPrompts, catalogue: Catalogue, shifts: Shifts, rows: int
) -> DirectOverlaps:
    """Match neurons, unpermuted and permuted, with direct heuristics, `rows` rankings at a time.

    `logits` are the value vectors' logits of the answers. Prompts are in random order, so rolling the activations by a random
    number of places, `shifts`, permutes them at random.
    """
    group, total, division = catalogue.direct, len(catalogue), catalogue.operator == "/"
    by_neuron = (len(activations), -1)
    rolls = [(neuron, shift) for neuron, own in enumerate(shifts.tolist()) for shift in (0, *own)]
    counts, ranks, sets = [], [], []
    for start in range(0, len(rolls), rows):
        ranked = top_prompts(rolled_products(activations, logits, rolls[start : start + rows]), catalogue.max_k)
        counts.append(count_overlaps(ranked, group))
        if division:
            ranks.append(ranks_by_result(ranked, catalogue))
            sets.append(find_result_sets(ranked, ranks[-1], catalogue))
    overlap = torch.cat(counts).unflatten(0, by_neuron)
    expected = _expected(overlap, group.sizes, total)
    statistic = neg_log10_p(overlap, group.sizes, expected)
    null, own = statistic[:, 1:].amax(2), overlap[:, 0]  # permuted, unpermuted
    tail = group.neg_log10_p_hypergeom(own)
    catalogued = Overlaps(torch.ones_like(own), group.sizes[None], own, tail, expected[:, 0], statistic[:, 0])
    if not division:
        return DirectOverlaps(catalogued, None, null)
    every = ResultSets(*map(torch.cat, zip(*sets, strict=True)))
    across = set_overlaps(torch.cat(ranks).unflatten(0, by_neuron), every, catalogue)
    mean = _expected(across, every.size.unflatten(0, by_neuron)[:, None], total).diagonal(dim1=1, dim2=2).flatten()
    of_sets = neg_log10_p(every.overlap, every.size, mean).masked_fill(~every.exists, 0.0)
    null = torch.maximum(null, of_sets.unflatten(0, by_neuron)[:, 1:])
    unpermuted = slice(None, None, overlap.shape[1])
    found = ResultSets(*(x[unpermuted] for x in every))
    tail = neg_log10_p_hypergeom(total, found.size, found.overlap)
    columns = (torch.ones_like(found.size), found.size, found.overlap, tail, mean[unpermuted], of_sets[unpermuted])
    return DirectOverlaps(catalogued, (found, Overlaps(*(x[:, None] for x in columns))), null)


def rolled_products(activations: OnPrompts, logits: OnPrompts, rolls: Rolls) -> Float[Tensor, "rolls prompts"]:
    """activations[neuron].roll(shift) · logits[neuron]."""
    if activations.is_cuda:
        return gathered_products(activations, logits, rolls)
    n, products = activations.shape[1], activations.new_empty(len(rolls), activations.shape[1])
    for product, (i, shift) in zip(products, rolls, strict=True):  # without a rolled copy
        torch.mul(activations[i, n - shift :], logits[i, :shift], out=product[:shift])
        torch.mul(activations[i, : n - shift], logits[i, shift:], out=product[shift:])
    return products


def gathered_products(activations: OnPrompts, logits: OnPrompts, rolls: Rolls) -> Float[Tensor, "rolls prompts"]:
    """`rolled_products` in one gather, which is faster on a GPU."""
    n = activations.shape[1]
    neuron, shift = torch.tensor(rolls, device=activations.device).T
    twice = torch.cat([activations, activations], dim=1).flatten()
    starts = (2 * neuron + 1) * n - shift
    return twice[starts[:, None] + torch.arange(n, device=starts.device)].mul_(logits[neuron])


def _expected(overlap: Tensor, size: Tensor, total: int) -> Float[Tensor, "neurons rankings sets"]:
    """Overlap expected in each ranking: its mean over the neuron's other rankings, permuted or not.

    Half a prompt more than chance counts as one more ranking: a few permutations cannot show that an overlap is impossible.
    """
    x = overlap.double()
    return (x.sum(1, keepdim=True) - x + size.double() ** 2 / total + 0.5) / x.shape[1]


def indirect_null(catalogue: Catalogue, seed: int, gated: bool, rows: int | None = None) -> Float[np.ndarray, " draws"]:
    """Largest statistic of any indirect heuristic, of either sign if MLPs are gated, in each of INDIRECT_DRAWS random rankings.

    Independent of the neuron: whether its mean activation would allow the sign −1 is ignored. `rows` rankings are held in
    memory at a time, by default as many as fit.
    """
    random, group = random_source(seed, "indirect null", catalogue.operator), catalogue.indirect
    rows, statistics = rows or rankings_at_a_time(catalogue), []
    for start in range(0, INDIRECT_DRAWS, rows):
        rankings = [random.permutation(len(catalogue)) for _ in range(min(rows, INDIRECT_DRAWS - start))]
        ranked = torch.from_numpy(np.stack(rankings)).to(catalogue.results.device)
        overlap = count_overlaps(ranked, group)
        if gated:
            overlap = torch.maximum(overlap, count_overlaps(ranked.flip(1), group))
        statistics.append(group.neg_log10_p_hypergeom(overlap).amax(1))
    return torch.cat(statistics).cpu().numpy()


def p_values(statistic: Floats, null: Float[np.ndarray, " draws"], tries: int) -> Floats:
    """Probability that the null reaches each statistic: (1 + number of draws that do) / (1 + draws).

    If no draw does, it is at most the sum of the tail probabilities of all heuristics tried: tries · 10^−statistic.
    """
    exceeding = len(null) - np.searchsorted(np.sort(null), statistic, side="left")
    counted = (1 + exceeding) / (1 + len(null))
    return np.where(exceeding > 0, counted, np.minimum(counted, tries * 10.0**-statistic))


def false_discovery_rate(p: Floats, of_neurons: Float[np.ndarray, " neurons"]) -> Floats:
    """Share of false discoveries, by Benjamini and Hochberg, if every neuron with a p as small as each of `p` is accepted.

        min over t ≥ p of  t · m / |{neurons with p ≤ t}|,    at most 1

    with the p of all m neurons. Non-decreasing in p and never below it.
    """
    ranked, m = np.sort(of_neurons), len(of_neurons)
    rate = np.append(np.minimum.accumulate((ranked * m / np.arange(1, m + 1))[::-1])[::-1], 1.0)
    below = np.searchsorted(ranked, p, side="right")
    here = np.where(below > 0, p * m / np.maximum(below, 1), 1.0)
    return np.minimum(here, rate[below])


def one_operand_permutations(catalogue: Catalogue, seed: int) -> Int[Tensor, "2 draws prompts"]:
    """Permutations of the prompts that keep op2, then permutations that keep op1; shared by all neurons."""
    random, n = random_source(seed, "one operand", catalogue.operator), len(catalogue)
    permutations = np.empty((2, ONE_OPERAND_DRAWS, n), dtype=np.int64)
    for i, kept in enumerate((catalogue.prompts.op2, catalogue.prompts.op1)):
        slots = np.argsort(kept, kind="stable")
        for draw in permutations[i]:
            draw[slots] = np.lexsort((random.random(n), kept))
    return torch.from_numpy(permutations).to(catalogue.results.device)


def one_operand_overlaps(
    activations: Float[Tensor, " prompts"],
    weights: Float[Tensor, " prompts"],
    heuristics: Sequence[Rule],
    max_k: int,
    catalogue: Catalogue,
    permutations: Int[Tensor, "2 draws prompts"],
) -> Float[Tensor, "2 heuristics"]:
    """Mean overlaps that remain if a neuron's activations depend on op2 alone, and on op1 alone.

    `weights` multiply the permuted activations: the answers' logits for direct heuristics, the sign for indirect ones.
    `heuristics` are all direct or all indirect, of at most `max_k` prompts.
    """
    group = catalogue.direct if heuristics[0].direct else catalogue.indirect
    permuted = activations.index_select(0, permutations.flatten()).view(-1, len(weights))
    ranked = top_prompts(permuted * weights, max_k)
    counts = count_overlaps(ranked, group)

    def overlap(heuristic: Rule) -> Int[Tensor, " draws"]:
        if not isinstance(heuristic, MultiResult):
            return counts[:, group.index[heuristic]]
        members = torch.from_numpy(heuristic.holds(catalogue.prompts)).to(ranked.device)
        return members[ranked[:, : int(members.sum())]].sum(1)

    return torch.stack([overlap(h) for h in heuristics], dim=1).double().unflatten(0, permutations.shape[:2]).mean(1)


def needs_both_operands(
    overlap: Int[Tensor, " heuristics"], size: Int[Tensor, " heuristics"], remaining: Float[Tensor, "2 heuristics"]
) -> Bool[Tensor, " heuristics"]:
    """Whether overlaps clearly exceed what remains with either operand alone."""
    # Half a prompt is added to the sum over draws: a few draws cannot show that nothing remains.
    return (neg_log10_p(overlap, size, remaining + 0.5 / ONE_OPERAND_DRAWS) >= MIN_NEG_LOG10_P).all(0)

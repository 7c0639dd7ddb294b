"""Does a match need both operands? The second null of the calibration (docs/heuristics.md).

1. Permute activations over the prompts with the same op2, so that they depend on op2 alone; likewise with op1.
2. Count the overlap that remains, averaged over DRAWS permutations of each kind.
3. A heuristic about the result or both operands needs both if its overlap exceeds what remains in either case, at p < 0.001.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from arithscope.heuristics.calibration import neg_log10_p
from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import MultiResult, Rule
from arithscope.heuristics.overlaps import count_overlaps, top_prompts
from arithscope.prompts import random_source

DRAWS = 4  # of each kind
MIN_NEG_LOG10_P = 3.0


def one_operand_permutations(catalogue: Catalogue, seed: int) -> Int[Tensor, "2 draws prompts"]:
    """Permutations of the prompts that keep op2, and ones that keep op1; shared by all neurons."""
    random, n = random_source(seed, "one operand", catalogue.operator), len(catalogue)
    permutations = np.empty((2, DRAWS, n), dtype=np.int64)
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
    # Half a prompt is added to what remains over all draws together: a few draws cannot show that nothing remains.
    return (neg_log10_p(overlap, size, remaining + 0.5 / DRAWS) >= MIN_NEG_LOG10_P).all(0)

"""Does a rule take both operands? What remains of it when the activation can depend on one operand only.

Activations are permuted over the prompts with the same op2, so that they depend on op2 alone, and over those with the same
op1. A rule about the result, or about both operands, takes both if its overlap goes clearly beyond what either kind of
permutation brings: with less than one chance in a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from arithscope.heuristics.calibration import neg_log10_p
from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import Heuristic, MultiResult
from arithscope.heuristics.matching import order, overlaps
from arithscope.prompts import random_source

DRAWS = 4  # of either kind
ENOUGH = 3.0  # −log₁₀ of the chance


def permutations(catalogue: Catalogue, seed: int) -> Int[Tensor, "kinds draws prompts"]:
    """Orders of the prompts that keep op2, and orders that keep op1; the same for all neurons."""
    random = random_source(seed, "one operand", catalogue.operator)
    n = len(catalogue)
    found = np.empty((2, DRAWS, n), dtype=np.int64)
    for i, kept in enumerate((catalogue.prompts.op2, catalogue.prompts.op1)):
        slots = np.argsort(kept, kind="stable")
        for draw in found[i]:
            draw[slots] = np.lexsort((random.random(n), kept))
    return torch.from_numpy(found).to(catalogue.cells.device)


def remaining(
    activations: Float[Tensor, " prompts"],
    weights: Float[Tensor, " prompts"],
    heuristics: Sequence[Heuristic],
    largest: int,
    catalogue: Catalogue,
    permuted: Int[Tensor, "kinds draws prompts"],
) -> Float[Tensor, "kinds heuristics"]:
    """The mean overlaps of heuristics, all of one class and of `largest` prompts at the most, with permuted activations ×
    weights that are not permuted."""
    side = catalogue.direct if heuristics[0].direct else catalogue.indirect
    moved = activations.index_select(0, permuted.flatten()).view(-1, len(weights))
    ordered = order(moved * weights, largest)
    counted = overlaps(ordered, side)
    found = [
        _overlap(ordered, h, catalogue) if isinstance(h, MultiResult) else counted[:, side.column[h]]
        for h in heuristics
    ]
    return torch.stack(found, dim=1).double().unflatten(0, permuted.shape[:2]).mean(1)


def _overlap(ordered: Tensor, heuristic: MultiResult, catalogue: Catalogue) -> Tensor:
    members = torch.from_numpy(heuristic.holds(catalogue.prompts)).to(ordered.device)
    return members[ordered[:, : int(members.sum())]].sum(1)


def takes_both(
    overlap: Int[Tensor, " heuristics"], size: Int[Tensor, " heuristics"], left: Float[Tensor, "kinds heuristics"]
) -> Tensor:
    """Whether the overlaps of heuristics are clearly beyond what is left of them with either operand alone.

    Half a prompt is added to what is left over all permutations together, as a few of them cannot show that it is nothing.
    """
    return (neg_log10_p(overlap, size, left + 0.5 / DRAWS) >= ENOUGH).all(0)

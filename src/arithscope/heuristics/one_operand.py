"""Does a rule take both operands? What remains of it when the activation can depend on one operand only.

Activations are permuted over the prompts with the same op2, so that they depend on op2 alone, and over those with the same
op1. A rule about the result, or about both operands, takes both if its score beats every permutation of either kind: by
chance that happens once in twenty times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import Heuristic
from arithscope.heuristics.matching import order
from arithscope.prompts import random_source

DRAWS = 19  # of either kind


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


def remaining_scores(
    activations: Float[Tensor, " prompts"],
    weights: Float[Tensor, " prompts"],
    heuristics: Sequence[Heuristic],
    catalogue: Catalogue,
    permuted: Int[Tensor, "kinds draws prompts"],
) -> NDArray[np.float64]:
    """The scores [kinds, draws, heuristics] of heuristics for permuted activations × weights that are not permuted."""
    ranked = order(activations[permuted.flatten(0, 1)] * weights)
    members = torch.from_numpy(np.stack([h.holds(catalogue.prompts) for h in heuristics])).to(ranked.device)
    scores = [m[ranked[:, : int(m.sum())]].double().mean(1) for m in members]
    return torch.stack(scores, dim=1).view(*permuted.shape[:2], -1).cpu().numpy()

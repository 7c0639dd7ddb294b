"""How much of a neuron's pattern can be told from what: shares of its variance over prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics.catalogue import Catalogue, Variable
from arithscope.heuristics.kinds import RESULT, Heuristic, MultiResult


def told_by(patterns: Float[Tensor, "rows prompts"], values: Int[Tensor, " prompts"]) -> Float[Tensor, " rows"]:
    """The share of each row's variance that is told by a number of the prompt: 1 if the row is a function of it.

    The correlation ratio, corrected for the number of groups (ε²), so that it is 0 on average for noise and may be negative.
    0 for a row without variance.
    """
    n, groups = patterns.shape[1], int(values.unique().numel())
    x = patterns.double() - patterns.double().mean(1, keepdim=True)
    sizes = values.bincount().clamp(min=1).double()
    sums = torch.zeros(len(x), len(sizes), dtype=x.dtype, device=x.device).index_add_(1, values, x)
    total = (x**2).sum(1)
    left = (total - (sums**2 / sizes).sum(1)) / total.clamp(min=1e-300)
    told = 1 - left * (n - 1) / max(n - groups, 1)
    return torch.where(total > 0, told, torch.zeros_like(told))


class Coverage:
    """How much of a pattern's variance some heuristics explain together, as a sum of one constant for each of them.

    The R² of a linear regression on the heuristics' indicators. The regression needs only how many prompts any two heuristics
    share and the pattern's sum over each; both come from tables over the numbers of variables, so no indicator over prompts is
    ever made.
    """

    def __init__(self, catalogue: Catalogue):
        self.total = len(catalogue)
        variables = [*catalogue.indirect.variables, *catalogue.direct.variables]
        self._values = {v.name: v.values.cpu().numpy() for v in variables}
        self._rows = {
            str(h): (v.name, row)
            for side in (catalogue.indirect, catalogue.direct)
            for h, v, row in _with_rows(side.heuristics, side.variables)
        }
        answers = catalogue.answers.cpu().numpy()
        self._answers = np.unique(answers)
        self._together: dict[tuple[str, str], NDArray[np.float64]] = {}

    def __call__(self, pattern: NDArray[np.float32], heuristics: Sequence[Heuristic]) -> float:
        x = pattern.astype(np.float64)
        x -= x.mean()
        variance = float(x @ x)
        if not heuristics or variance == 0.0:
            return 0.0
        by_variable: dict[str, list[NDArray[np.bool_]]] = {}
        for h in heuristics:
            name, row = (RESULT, h.admits(self._answers)) if isinstance(h, MultiResult) else self._rows[str(h)]
            by_variable.setdefault(name, []).append(row)
        holds = {name: np.stack(rows).astype(np.float64) for name, rows in by_variable.items()}
        sums = np.concatenate([m @ np.bincount(self._values[name], weights=x) for name, m in holds.items()])
        shared = np.block([[self._shared(a, holds[a], b, holds[b]) for b in holds] for a in holds])
        sizes = np.diagonal(shared)
        centred = shared - np.outer(sizes, sizes) / self.total
        strength, directions = np.linalg.eigh(centred)
        kept = strength > 1e-9 * strength[-1]
        return float(np.sum((sums @ directions[:, kept]) ** 2 / strength[kept]) / variance)

    def _shared(self, a: str, of_a: NDArray[np.float64], b: str, of_b: NDArray[np.float64]) -> NDArray[np.float64]:
        if a == b:
            return (of_a * np.bincount(self._values[a])) @ of_b.T
        if (a, b) not in self._together:
            rows, columns = of_a.shape[1], of_b.shape[1]
            flat = np.bincount(self._values[a] * columns + self._values[b], minlength=rows * columns)
            self._together[a, b] = flat.reshape(rows, columns).astype(np.float64)
        return of_a @ self._together[a, b] @ of_b.T


def _with_rows(
    heuristics: Sequence[Heuristic], variables: Sequence[Variable]
) -> list[tuple[Heuristic, Variable, NDArray[np.bool_]]]:
    rows = [(variable, row) for variable in variables for row in variable.holds.cpu().numpy()]
    return [(h, variable, row) for h, (variable, row) in zip(heuristics, rows, strict=True)]

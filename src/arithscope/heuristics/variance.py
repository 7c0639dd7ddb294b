"""How much of a neuron's pattern can be told from what: shares of its variance over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from arithscope.heuristics.catalogue import Catalogue, Variable
from arithscope.heuristics.kinds import RESULT, Heuristic, MultiResult


class Spread:
    """Patterns over prompts, around their means, and what a number of the prompt has to do with them. In float64."""

    def __init__(self, patterns: Float[Tensor, "rows prompts"]):
        x = patterns.double()
        self._x = x.sub_(x.mean(1, keepdim=True)) if x is not patterns else x - x.mean(1, keepdim=True)
        self._total = torch.linalg.vector_norm(self._x, dim=1).square()

    def variance_explained(self, number: Int[Tensor, " prompts"]) -> Float[Tensor, " rows"]:
        """The share of each row's variance that is told by a number of the prompt: 1 if the row is a function of it.

        The correlation ratio, corrected for the number of groups (ε²), so that it is 0 on average for noise and may be
        negative. 0 for a row without variance.
        """
        n, sizes = len(number), number.bincount()
        groups = int((sizes > 0).sum())
        between = (self._sums(number, len(sizes)) ** 2 / sizes.clamp(min=1)).sum(1)
        left = (self._total - between) / self._total.clamp(min=1e-300)
        told = 1 - left * (n - 1) / max(n - groups, 1)
        return torch.where(self._total > 0, told, torch.zeros_like(told))

    def correlation(
        self, number: Int[Tensor, " prompts"], values: Float[Tensor, "rows numbers"]
    ) -> Float[Tensor, " rows"]:
        """Pearson's, of each row with a function of a number of the prompt, given by its values; 0 where either is constant.

        The function is the same for all prompts with the same number, so it needs only the row's sums over these.
        """
        sizes = number.bincount(minlength=values.shape[1]).double()
        y = values.double() - (values.double() @ sizes)[:, None] / len(number)
        size = (self._total * (y.square() @ sizes)).sqrt().clamp(min=1e-300)
        return (self._sums(number, values.shape[1]) * y).sum(1) / size

    def _sums(self, number: Int[Tensor, " prompts"], size: int) -> Float[Tensor, "rows numbers"]:
        sums = torch.zeros(len(self._x), size, dtype=self._x.dtype, device=self._x.device)
        return sums.scatter_add_(1, number.expand(len(sums), -1), self._x)


class Coverage:
    """How much of a pattern's variance some heuristics explain together, as a sum of one constant for each of them.

    The R² of a linear regression on the heuristics' indicators. The regression needs only how many prompts any two heuristics
    share and the pattern's sum over each; both come from tables over the numbers of variables, so no indicator over prompts is
    ever made.
    """

    def __init__(self, catalogue: Catalogue):
        self.total = len(catalogue)
        variables = [*catalogue.indirect.variables, *catalogue.direct.variables]
        self._values = {v.name: v.values.long().cpu().numpy() for v in variables}
        self._rows = {
            h: (v.name, row)
            for side in (catalogue.indirect, catalogue.direct)
            for h, v, row in _with_rows(side.heuristics, side.variables)
        }
        self._results = catalogue.results.cpu().numpy()
        self._together: dict[tuple[str, str], Any] = {}

    def __call__(
        self, pattern: NDArray[np.float32], heuristics: Sequence[Heuristic], *subsets: NDArray[np.bool_]
    ) -> list[float]:
        """What each subset of the heuristics explains."""
        x = pattern.astype(np.float64)
        x -= x.mean()
        variance = float(np.square(x).sum())  # x @ x would wake threads of its own
        if variance == 0.0:
            return [0.0] * len(subsets)
        rows = [(RESULT, h.admits(self._results)) if isinstance(h, MultiResult) else self._rows[h] for h in heuristics]
        names = np.array([name for name, _ in rows])
        holds = {n: np.stack([row for name, row in rows if name == n]).astype(np.float64) for n in dict.fromkeys(names)}
        sums, shared = np.empty(len(rows)), np.empty((len(rows), len(rows)))
        for a, of_a in holds.items():
            sums[names == a] = of_a @ np.bincount(self._values[a], weights=x)
            for b, of_b in holds.items():
                shared[np.ix_(names == a, names == b)] = self._shared(a, of_a, b, of_b)
        centred = shared - np.outer(np.diagonal(shared), np.diagonal(shared)) / self.total
        return [_explained(sums[s], centred[np.ix_(s, s)]) / variance for s in subsets]

    def _shared(self, a: str, of_a: NDArray[np.float64], b: str, of_b: NDArray[np.float64]) -> NDArray[np.float64]:
        """How many prompts each heuristic of variable a shares with each of variable b."""
        if (a, b) not in self._together:
            table = csr_array((np.ones(self.total), (self._values[a], self._values[b])))
            shape = table.shape
            self._together[a, b] = table if table.nnz < 0.1 * shape[0] * shape[1] else table.toarray()
        return (of_a @ self._together[a, b]) @ of_b.T


def _explained(sums: NDArray[np.float64], shared: NDArray[np.float64]) -> float:
    """The sum of squares that a regression explains, from the indicators' sums and cross products; indicators may depend on
    each other."""
    if len(sums) == 0:
        return 0.0
    strength, directions = np.linalg.eigh(shared)
    kept = strength > 1e-9 * max(strength[-1], 1.0)  # what is less is rounding
    return float(np.sum((sums @ directions[:, kept]) ** 2 / strength[kept]))


def _with_rows(
    heuristics: Sequence[Heuristic], variables: Sequence[Variable]
) -> list[tuple[Heuristic, Variable, NDArray[np.bool_]]]:
    rows = [(variable, row) for variable in variables for row in variable.holds.cpu().numpy()]
    return [(h, variable, row) for h, (variable, row) in zip(heuristics, rows, strict=True)]

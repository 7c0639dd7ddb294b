"""Shares of an activation map's variance over prompts: explained by a number of the prompt, or by heuristics together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from torch import Tensor

from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import RESULT, Bools, MultiResult, Rule
from arithscope.stats.intervals import Floats

Numbers = Int[Tensor, " prompts"]


class Spread:
    """Centred activation maps, in float64, and how they depend on a number of the prompt (op1, op2 or the result)."""

    def __init__(self, maps: Float[Tensor, "rows prompts"]):
        x = maps.double()
        self._x = x.sub_(x.mean(1, keepdim=True)) if x is not maps else x - x.mean(1, keepdim=True)
        self._total = torch.linalg.vector_norm(self._x, dim=1).square()

    def variance_explained(self, number: Numbers) -> Float[Tensor, " rows"]:
        """Share of each row's variance explained by a number of the prompt: 1 if the row is a function of it.

            ε² = 1 − (SS_within / (n − groups)) / (SS_total / (n − 1))

        The correlation ratio, corrected for the number of groups: 0 on average for noise, and it may be negative. 0 for a
        constant row. Invariant to shifting and scaling the row, and to relabelling the number.
        """
        n, sizes = len(number), number.bincount()
        groups = int((sizes > 0).sum())
        between = (self._sums(number, len(sizes)) ** 2 / sizes.clamp(min=1)).sum(1)
        within = (self._total - between) / self._total.clamp(min=1e-300)
        explained = 1 - within * (n - 1) / max(n - groups, 1)
        return torch.where(self._total > 0, explained, torch.zeros_like(explained))

    def correlation(self, number: Numbers, values: Float[Tensor, "rows numbers"]) -> Float[Tensor, " rows"]:
        """Pearson correlation of each row with a function of a number of the prompt, given by its values.

        In [−1, 1]; 0 where either is constant. The row's sums over prompts with the same number suffice.
        """
        sizes = number.bincount(minlength=values.shape[1]).double()
        y = values.double() - (values.double() @ sizes)[:, None] / len(number)
        norm = (self._total * (y.square() @ sizes)).sqrt().clamp(min=1e-300)
        return (self._sums(number, values.shape[1]) * y).sum(1) / norm

    def _sums(self, number: Numbers, size: int) -> Float[Tensor, "rows numbers"]:
        sums = torch.zeros(len(self._x), size, dtype=self._x.dtype, device=self._x.device)
        return sums.scatter_add_(1, number.expand(len(sums), -1), self._x)


class Coverage:
    """Share of an activation map's variance that heuristics explain together: R² of a linear regression on their indicators.

    In [0, 1], invariant to shifting and scaling the map. The regression needs only the number of prompts that any two
    heuristics share and the map's sum over each. Both come from tables over the values of variables, so no indicator over
    prompts is ever built.
    """

    def __init__(self, catalogue: Catalogue):
        self.total = len(catalogue)
        variables = [v for group in catalogue.groups for v in group.variables]
        self._values = {v.name: v.values.long().cpu().numpy() for v in variables}
        rows = [(v.name, holds) for v in variables for holds in v.holds.cpu().numpy()]
        self._rows = dict(zip([h for group in catalogue.groups for h in group.heuristics], rows, strict=True))
        self._results = catalogue.results.cpu().numpy()
        self._tables: dict[tuple[str, str], Any] = {}

    def __call__(self, activations: Floats, heuristics: Sequence[Rule], *subsets: Bools) -> list[float]:
        """Variance explained by each subset of the heuristics, given the activation on each prompt."""
        x = activations.astype(np.float64)
        x -= x.mean()
        variance = float(np.square(x).sum())  # x @ x would start BLAS threads
        if variance == 0.0:
            return [0.0] * len(subsets)
        rows = [(RESULT, h.admits(self._results)) if isinstance(h, MultiResult) else self._rows[h] for h in heuristics]
        names = np.array([name for name, _ in rows])
        holds = {n: np.stack([row for name, row in rows if name == n]).astype(np.float64) for n in dict.fromkeys(names)}
        sums, shared = np.empty(len(rows)), np.empty((len(rows), len(rows)))
        for a, holds_a in holds.items():
            sums[names == a] = holds_a @ np.bincount(self._values[a], weights=x)
            for b, holds_b in holds.items():
                shared[np.ix_(names == a, names == b)] = (holds_a @ self._table(a, b)) @ holds_b.T
        centred = shared - np.outer(np.diagonal(shared), np.diagonal(shared)) / self.total
        return [_explained(sums[s], centred[np.ix_(s, s)]) / variance for s in subsets]

    def _table(self, a: str, b: str) -> Any:
        """Number of prompts with each pair of values of two variables; sparse where most pairs do not occur."""
        if (a, b) not in self._tables:
            table = csr_array((np.ones(self.total), (self._values[a], self._values[b])))
            self._tables[a, b] = table if table.nnz < 0.1 * table.shape[0] * table.shape[1] else table.toarray()
        return self._tables[a, b]


def _explained(sums: Floats, shared: Floats) -> float:
    """Sum of squares that a regression explains, from centred sums and cross products of possibly dependent indicators."""
    if len(sums) == 0:
        return 0.0
    strength, directions = np.linalg.eigh(shared)
    kept = strength > 1e-9 * max(strength[-1], 1.0)  # the rest is rounding
    return float(np.sum((sums @ directions[:, kept]) ** 2 / strength[kept]))

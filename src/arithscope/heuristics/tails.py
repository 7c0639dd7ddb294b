"""Exact tail probabilities of the overlap between two sets of k prompts out of N, one of them drawn at random.

The overlap X is hypergeometric: P(X = x) = C(k, x) · C(N−k, k−x) / C(N, k). The statistic is −log₁₀ P(X ≥ x): 3 for one chance
in a thousand. It reaches the ten thousands, so everything is computed from logarithms.
"""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

LN10 = float(np.log(10.0))


@lru_cache(maxsize=8)
def _log_factorials(n: int) -> NDArray[np.float64]:
    return np.asarray(gammaln(np.arange(n + 1) + 1.0))


def neg_log10_p_hypergeom_table(total: int, k: int) -> Float[np.ndarray, " overlaps"]:
    """−log₁₀ P(X ≥ x) for every overlap x = 0…k of two sets of k out of `total` prompts."""
    log = _log_factorials(total)
    x = np.arange(max(0, 2 * k - total), k + 1)  # two sets of k share at least 2k − N prompts
    log_pmf = 2 * log[k] + 2 * log[total - k] - log[total] - log[x] - 2 * log[k - x] - log[total - 2 * k + x]
    tail = np.logaddexp.accumulate(log_pmf[::-1])[::-1]
    out = np.zeros(k + 1)
    out[x] = np.maximum(-tail / LN10, 0.0)
    return out


def neg_log10_p_hypergeom(total: int, k: Int[Tensor, " n"], x: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """−log₁₀ P(X ≥ x) of single overlaps, each with its own k."""
    # Sums P(X = x), P(X = x + 1), …, each term from the previous one, up to twelve standard deviations beyond x and the mean.
    if len(k) == 0:
        return torch.zeros(0, dtype=torch.float64, device=k.device)
    k, x, n = k.double(), torch.maximum(x, 2 * k - total).double(), float(total)
    first = 2 * torch.lgamma(k + 1) + 2 * torch.lgamma(n - k + 1) - gammaln(n + 1)
    first = first - torch.lgamma(x + 1) - 2 * torch.lgamma(k - x + 1) - torch.lgamma(n - 2 * k + x + 1)
    mean, deviation = k * k / n, k * (n - k) / n / (max(n - 1, 1) ** 0.5)
    terms = torch.minimum(k - x, (mean - x).clamp(min=0) + 12 * deviation + 50).max()
    at = x[:, None] + torch.arange(int(terms), device=k.device)
    left = (k[:, None] - at).clamp(min=0)  # 0 from the last term on, so that its logarithm ends the sum
    ratios = 2 * left.log() - (at + 1).log() - (n - 2 * k[:, None] + at + 1).log()
    tail = torch.cat([first[:, None], ratios], dim=1).cumsum(1).logsumexp(1)
    return (-tail / LN10).clamp(min=0.0)

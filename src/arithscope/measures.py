"""Measures: pure functions of tensors and arrays, with no model behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


def log_probability(
    logits: Float[Tensor, "*variants batch vocabulary"], tokens: Int[Tensor, " batch"]
) -> Float[Tensor, "*variants batch"]:
    """Log-probability of one token per prompt. At most 0; invariant to adding a constant to all logits."""
    wanted = logits.gather(-1, tokens.expand(logits.shape[:-1])[..., None])[..., 0]
    return wanted - logits.logsumexp(-1)


def effect(
    before: Float[Tensor, "batch vocabulary"],
    after: Float[Tensor, "*variants batch vocabulary"],
    answer: Int[Tensor, " batch"],
    counterfactual: Int[Tensor, " batch"],
) -> Float[Tensor, "*variants batch"]:
    """How far an intervention moves the model from its answer r to the counterfactual's answer r′.

    Half of the relative gain of r′ plus half of the relative loss of r:

        ½ · [ (P*(r′) − P(r′)) / P(r′)  +  (P(r) − P*(r)) / P*(r) ]

    with P before and P* after. It is 0 where nothing changes, at least −1, and unbounded above. It is invariant to
    adding constants to the logits, and computed from log-probabilities, so that it stays finite where a probability
    underflows: P*/P = exp(log P* − log P).
    """
    gain = log_probability(after, counterfactual) - log_probability(before, counterfactual)
    loss = log_probability(before, answer) - log_probability(after, answer)
    return 0.5 * (torch.expm1(gain) + torch.expm1(loss))


@dataclass(frozen=True)
class Mean:
    """A mean with its bootstrap interval and the number of values behind it; NaN where there are none."""

    value: float
    low: float
    high: float
    n: int


RESAMPLES = 1000
LEVEL = 0.95


def resampled_means(values: ArrayLike, random: np.random.Generator) -> NDArray[np.float64]:
    """Means of samples drawn, with replacement, from the values themselves.

    A resample is fully described by how often each distinct value occurs in it, which is multinomial: for values with
    few distinct ones (right or wrong, say) that is as exact as drawing them one by one and costs next to nothing.
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    if len(x) == 0:
        return np.full(RESAMPLES, np.nan)
    distinct, counts = np.unique(x, return_counts=True)
    if len(distinct) * 8 <= len(x):
        return random.multinomial(len(x), counts / len(x), size=RESAMPLES) @ distinct / len(x)
    draws = (random.integers(0, len(x), len(x), dtype=np.uint32) for _ in range(RESAMPLES))
    return np.array([x[rows].mean() for rows in draws])


def bootstrap_mean(*groups: ArrayLike, random: np.random.Generator) -> Mean:
    """A mean and its percentile bootstrap interval; of several groups, the mean of their means, each weighing the same
    (groups are resampled apart)."""
    arrays = [np.asarray(g, dtype=np.float64).ravel() for g in groups]
    n = sum(len(a) for a in arrays)
    if min(map(len, arrays)) == 0:
        return Mean(np.nan, np.nan, np.nan, n)
    means = np.mean([resampled_means(a, random) for a in arrays], axis=0)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Mean(float(np.mean([a.mean() for a in arrays])), float(low), float(high), n)

"""Logistic regression with bootstrap intervals."""

import numpy as np
from jaxtyping import Bool, Float

from arithscope.stats.intervals import Floats, Mean

RESAMPLES, QUANTILES = 1000, (0.025, 0.975)

RIDGE = 1e-2  # keeps coefficients finite where a feature separates the outcomes
NEWTON_STEPS = 50

Features = Float[np.ndarray, "values features"]


def logistic(features: Features, outcome: Bool[np.ndarray, " values"], random: np.random.Generator) -> list[Mean]:
    """Intercept, coefficients and AUC of a logistic regression of the outcome, with bootstrap intervals.

        log P(1)/P(0) = intercept + Σ coefficient · standardised feature

    Coefficients are log-odds per standard deviation, slightly shrunk (ridge RIDGE, intercept free), and so invariant to
    shifting and scaling features. The AUC is the probability that a random positive scores higher than a random negative: ½
    without information. A resample weights each value by the number of times it is drawn; resamples with only one
    outcome are left out. All estimates are NaN if the data has only one outcome.
    """
    n, width = features.shape
    y = np.asarray(outcome, dtype=np.float64)
    if not 0 < y.sum() < n:
        return [Mean(np.nan, np.nan, np.nan, n)] * (width + 2)
    x = np.column_stack([np.ones(n), standardised(features)])
    counts = random.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(np.float64)
    both_outcomes = (counts @ y > 0) & (counts @ (1 - y) > 0)
    weights = np.concatenate([np.ones((1, n)), counts[both_outcomes]])
    fits = _newton(x, y, weights)
    auc = np.array([_auc(x @ b, y, w) for b, w in zip(fits, weights, strict=True)])
    estimates = np.column_stack([fits, auc])
    intervals = zip(estimates[0], *np.quantile(estimates[1:], QUANTILES, axis=0), strict=True)
    return [Mean(float(value), float(low), float(high), n) for value, low, high in intervals]


def standardised(features: Features) -> Features:
    """Columns with mean 0 and standard deviation 1; constant ones become 0."""
    deviation = features.std(0)
    return (features - features.mean(0)) / np.where(deviation > 0, deviation, 1.0)


def _newton(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Coefficients [weightings, columns] that maximise Σ w·log-likelihood − RIDGE/2 · n · |coefficients|²."""
    penalty = RIDGE * len(y) * np.diag([0.0, *np.ones(x.shape[1] - 1)])
    fits = np.zeros((len(weights), x.shape[1]))
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(fits @ x.T, -30, 30)))
        gradient = (weights * (y - p)) @ x - fits @ penalty
        hessian = np.einsum("bn,ni,nj->bij", weights * p * (1 - p), x, x) + penalty
        step = np.linalg.solve(hessian + 1e-9 * np.eye(x.shape[1]), gradient[..., None])[..., 0]
        fits += np.clip(step, -2, 2)  # a full step may overshoot far from the optimum
        if np.abs(step).max() < 1e-8:
            break
    return fits


def _auc(scores: Floats, y: Floats, weights: Floats) -> float:
    """Weighted share of pairs of a positive and a negative in which the positive scores higher; ties count half."""
    rank = np.unique(scores, return_inverse=True)[1]
    positives, negatives = (np.bincount(rank, weights * c) for c in (y, 1 - y))
    lower = np.cumsum(negatives) - negatives
    return float((positives * (lower + negatives / 2)).sum() / (positives.sum() * negatives.sum()))

"""Logistic regression, and how well it tells two outcomes apart on values it was not fitted to.

docs/statistics.md gives the coverage of the intervals, and how often noise is mistaken for a signal.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.random import Generator

from arithscope.stats.intervals import Floats, Mean, Z

RIDGE = 1e-3  # keeps coefficients finite where a feature separates the outcomes
NEWTON_STEPS = 50
FOLDS, PERMUTATIONS = 10, 1000
ORDERS_AT_ONCE = 100
SHARED_DIRECTION = 1.5
TIE = 1e-9  # scores, and AUCs, that differ by less are equal but for rounding

Features = Float[np.ndarray, "values features"]
Outcome = Bool[np.ndarray, " values"]
Folds = Int[np.ndarray, " values"]
Counts = Int[np.ndarray, " folds"]


def logistic(features: Features, outcome: Outcome) -> list[Mean]:
    """Intercept and coefficients of a logistic regression of the outcome, with Wald intervals.

        log P(1)/P(0) = intercept + Σ coefficient · standardised feature

    Coefficients are log-odds per standard deviation, slightly shrunk (ridge RIDGE, intercept free), and so invariant to
    shifting and scaling features. Standard errors come from the inverse of the penalised Fisher information. All estimates
    are NaN if the data has only one outcome; a constant feature has a coefficient of 0 without an interval.
    """
    n, width = features.shape
    y = np.asarray(outcome, dtype=np.float64)
    if not 0 < y.sum() < n:
        return [Mean(np.nan, np.nan, np.nan, n)] * (width + 1)
    x = _design(features)
    [fit], [information] = _newton(x, y[None], np.ones((1, n)))
    half = Z * np.sqrt(np.diag(np.linalg.inv(information)))
    half[~x.any(0)] = np.nan
    return [Mean(value, value - d, value + d, n) for value, d in zip(fit.tolist(), half.tolist(), strict=True)]


@dataclass(frozen=True)
class CrossValidated:
    """An area under the curve with its interval, and the p of an outcome that has nothing to do with the features."""

    auc: Mean
    p: float


def cross_validated_auc(features: Features, outcome: Outcome, random: Generator) -> CrossValidated:
    """Probability that a regression gives a positive a higher score than a negative, when it was fitted to neither.

    The values are divided at random into FOLDS folds (fewer if an outcome is rarer), each with its share of positives and
    negatives. Each fold is scored by a regression fitted to the others. The AUC is the mean of the folds' own AUCs: ½ on
    average if there is nothing to find, since a fold is independent of what its regression was fitted to. (Pairs from
    two folds are not: comparing all scores with one another gives less than ½ on noise.)

    Its interval is a score interval like Wilson's, Newcombe's for an AUC: all θ that differ from the AUC by at most z
    standard errors, which an AUC of θ has by Hanley and McNeil's formula. Near ½ chance decides in which direction all folds'
    regressions point, so that the folds err together; the variance is then as much larger as it is over permutations.

    p is the share of PERMUTATIONS shuffled outcomes, each with its own regressions, that reach the same AUC; the observed
    outcome counts as one of them. All are NaN if an outcome occurs fewer than two times.
    """
    n, y = len(outcome), np.asarray(outcome, dtype=np.float64)
    counts = int(y.sum()), n - int(y.sum())
    folds = min(FOLDS, *counts)
    if folds < 2:
        return CrossValidated(Mean(np.nan, np.nan, np.nan, n), float("nan"))
    fold = _stratified_folds(outcome, folds, random)
    # Shuffling the values below fixed outcomes and folds is the same as shuffling the outcomes, and keeps the folds stratified.
    orders = np.stack([np.arange(n), *(random.permutation(n) for _ in range(PERMUTATIONS))])
    some = np.array_split(orders, len(orders) // ORDERS_AT_ONCE + 1)
    observed, *shuffled = np.concatenate([_mean_aucs(_design(features), y, fold, x) for x in some]).tolist()
    p = (1 + sum(auc >= observed - TIE for auc in shuffled)) / (1 + len(shuffled))
    positives, negatives = (np.bincount(fold[y == c], minlength=folds) for c in (1, 0))
    interval = _auc_interval(observed, positives, negatives, float(np.mean(np.square(np.subtract(shuffled, 0.5)))))
    return CrossValidated(Mean(observed, *interval, n), p)


def standardised(features: Features) -> Features:
    """Columns with mean 0 and standard deviation 1; constant ones become 0."""
    deviation = features.std(0)
    return (features - features.mean(0)) / np.where(deviation > 0, deviation, 1.0)


def _design(features: Features) -> Floats:
    return np.column_stack([np.ones(len(features)), standardised(features)])


def _stratified_folds(outcome: Outcome, folds: int, random: Generator) -> Folds:
    fold = np.empty(len(outcome), dtype=np.int64)
    for which in (outcome, ~outcome):
        fold[which] = random.permutation(np.arange(which.sum()) % folds)
    return fold


def _mean_aucs(x: Floats, y: Floats, fold: Folds, orders: Int[np.ndarray, "orders values"]) -> Floats:
    """For each order of the rows of x: the mean over folds of the AUC of a regression fitted to the other folds."""
    folds = int(fold.max()) + 1
    back = np.argsort(orders, axis=1)  # outcomes and folds by row of x
    used = (fold[back][:, None] != np.arange(folds)[:, None]).astype(np.float64)
    fits, _ = _newton(x, np.repeat(y[back], folds, axis=0), used.reshape(-1, len(x)))
    by_fold = (fits.reshape(len(orders), folds, -1) @ x.T)[np.arange(len(orders))[:, None], fold, orders]
    auc = np.zeros(len(orders))
    for i in range(folds):
        positives, negatives = (by_fold[:, (fold == i) & (y == c)] for c in (1, 0))
        gaps = positives[:, :, None] - negatives[:, None]
        auc += ((gaps > TIE) + 0.5 * (np.abs(gaps) <= TIE)).mean((1, 2)) / folds
    return auc


def _newton(x: Floats, y: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Coefficients [fits, columns] that maximise Σ w·log-likelihood − RIDGE/2 · Σ w · |coefficients|², for outcomes and
    weights [fits, values]; and the penalised Fisher information [fits, columns, columns]."""
    free = np.diag([0.0, *np.ones(x.shape[1] - 1)])
    penalty = RIDGE * weights.sum(1)[:, None, None] * free + 1e-9 * np.eye(x.shape[1])
    products = (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)
    fits = np.zeros((len(weights), x.shape[1]))
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(fits @ x.T, -30, 30)))
        gradient = (weights * (y - p)) @ x - np.einsum("bij,bj->bi", penalty, fits)
        information = ((weights * p * (1 - p)) @ products).reshape(penalty.shape) + penalty
        step = np.linalg.solve(information, gradient[..., None])[..., 0]
        fits += np.clip(step, -2, 2)  # a full step may overshoot far from the optimum
        if np.abs(step).max() < 1e-8:
            break
    return fits, information


def _auc_interval(auc: float, positives: Counts, negatives: Counts, null_variance: float) -> tuple[float, float]:
    """Newcombe's interval of a mean of AUCs of folds with so many positives and negatives.

    Around ½ the variance is enlarged to that under permutations. SHARED_DIRECTION says how far around, in standard errors;
    it was chosen by simulation.
    """
    theta = np.linspace(0, 1, 10_001)[:, None]
    overlap = (1 - theta) / (2 - theta) + theta / (1 + theta)
    variances = theta * (1 - theta) * (1 + ((positives + negatives) / 2 - 1) * overlap) / (positives * negatives)
    theta, variance = theta[:, 0], variances.mean(1) / len(positives)
    middle = variance[len(theta) // 2]
    near = np.exp(-np.square(np.maximum(theta - 0.5, 0)) / middle / (2 * SHARED_DIRECTION**2))
    variance *= 1 + max(null_variance / middle - 1, 0) * near
    kept = theta[np.square(auc - theta) <= Z**2 * variance]
    return float(min(kept.min(), auc)), float(max(kept.max(), auc))

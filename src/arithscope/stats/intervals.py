"""Means with 95 % intervals, how to combine them, and which differences are clear.

Each kind of number has one interval; docs/statistics.md gives their coverage in simulations.

    share_of, share         shares of 0s and 1s                     Wilson's score interval
    unit_mean, unit_means   means of values in [0, 1]               Wilson's interval, scaled by the observed variance
    t_mean, t_means         means of other values, or of few draws  Student's t
    paired_difference       two measures in [0, 1] of each prompt   both intervals, combined with their correlation
    difference, average     numbers of independent samples          intervals combined side by side
    ratio                   ratio of two means of paired values     Fieller's
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest, norm, t

CONFIDENCE = 0.95
Z = float(norm.ppf((1 + CONFIDENCE) / 2))
ALPHA = 1 - CONFIDENCE

Rows = Float[np.ndarray, "rows values"]
Floats = NDArray[np.float64]
Intervals = Float[np.ndarray, "3 rows"]  # value, low and high


@dataclass(frozen=True)
class Mean:
    """A mean with its 95 % interval and the number of values behind it; NaN if there are none."""

    value: float
    low: float
    high: float
    n: int


NOTHING = Mean(np.nan, np.nan, np.nan, 0)


def share(successes: int, n: int) -> Mean:
    """A share with its Wilson score interval, which has a width also where the share is 0 or 1; NaN if n is 0."""
    return share_of(np.arange(n) < successes)


def share_of(values: ArrayLike) -> Mean:
    """Share of true values, or of 1s, with its Wilson score interval."""
    return unit_mean(values)


def unit_mean(values: ArrayLike) -> Mean:
    """Mean of values in [0, 1] with its interval; see `unit_means`."""
    return unit_means(np.asarray(values, dtype=np.float64).reshape(1, -1))[0]


def unit_means(values: Rows) -> list[Mean]:
    """Mean of each row of values that are at most 1, and at least 0 or the row's smallest, with an interval in that range.

    The interval has all μ that differ from the mean x by at most z standard errors, with the variance that values of mean μ
    would have: φ·μ(1 − μ), where φ is the observed variance relative to x(1 − x).

        |x − μ| ≤ z · √(φ·μ(1 − μ)/n)

    For 0s and 1s φ is 1 and this is Wilson's interval. Elsewhere φ is smaller and so is the interval; one value of variance
    x(1 − x) is added to the estimate of φ, since a few equal values cannot show that there is no variance. If a row has
    negative values (a faithfulness may), its smallest value takes the place of 0.
    """
    n = values.shape[1]
    if n == 0:
        return [NOTHING] * len(values)
    floor = np.minimum(values.min(1), 0.0).astype(np.float64)
    scale = 1 - floor
    x = (values.mean(1, dtype=np.float64) - floor) / scale
    largest = np.clip(x * (1 - x), 0, None)  # rounding may take a mean beyond 1
    ratio = np.divide(values.var(1, dtype=np.float64) / scale**2, largest, out=np.ones_like(x), where=largest > 0)
    spread = Z**2 * (n * np.clip(ratio, 0, 1) + 1) / (n + 1) / n
    centre = (x + spread / 2) / (1 + spread)
    half = np.sqrt(spread * largest + spread**2 / 4) / (1 + spread)
    lower, upper = np.minimum(centre - half, x), np.maximum(centre + half, x)  # rounding must not exclude the mean
    ends = (floor + scale * each for each in (x, lower.clip(0), upper.clip(None, 1)))
    return [Mean(value, low, high, n) for value, low, high in np.stack(list(ends), axis=1).tolist()]


def t_mean(values: ArrayLike) -> Mean:
    """Mean of the values with Student's t interval; without an interval if there is only one."""
    return t_means(np.asarray(values, dtype=np.float64).reshape(1, -1))[0]


def t_means(values: Rows) -> list[Mean]:
    """Mean of each row with Student's t interval."""
    return [Mean(value, low, high, values.shape[1]) for value, low, high in t_intervals(values).T.tolist()]


def t_intervals(values: Rows) -> Intervals:
    """Value, low and high of `t_means`, for millions of rows."""
    n = values.shape[1]
    if n == 0:
        return np.full((3, len(values)), np.nan)
    x = values.mean(1, dtype=np.float64)
    if n == 1:
        return np.stack([x, np.full_like(x, np.nan), np.full_like(x, np.nan)])
    half = t.ppf((1 + CONFIDENCE) / 2, n - 1) * values.std(1, ddof=1, dtype=np.float64) / np.sqrt(n)
    return np.stack([x, x - half, x + half])


def average(means: Sequence[Mean]) -> Mean:
    """Unweighted mean of means of independent samples. NaNs are left out; `n` is the sum of the others' n.

    Interval half-widths combine like independent errors, √(Σ d²) / number of means, separately on each side.
    """
    kept = [m for m in means if not np.isnan(m.value)]
    if not kept:
        return NOTHING
    value = float(np.mean([m.value for m in kept]))
    sides = [m.value - m.low for m in kept], [m.high - m.value for m in kept]
    below, above = (float(np.sqrt(np.sum(np.square(d)))) / len(kept) for d in sides)
    return Mean(value, value - below, value + above, sum(m.n for m in kept))


def difference(a: Mean, b: Mean, correlation: float = 0.0) -> Mean:
    """a − b for means of independent samples; `n` is the smaller of the two.

    Half-widths combine like errors: the lower one is √(d² + e² − 2r·d·e) with d = a − a.low, e = b.high − b, and r the
    correlation of the two means, 0 if they are independent. For two shares that is Newcombe's interval.
    """
    value = a.value - b.value

    def combined(d: float, e: float) -> float:
        return float(np.sqrt(max(d * d + e * e - 2 * correlation * d * e, 0.0)))

    below, above = combined(a.value - a.low, b.high - b.value), combined(a.high - a.value, b.value - b.low)
    return Mean(value, value - below, value + above, min(a.n, b.n))


def paired_difference(a: ArrayLike, b: ArrayLike) -> Mean:
    """Mean of a − b for two measures in [0, 1] of the same prompts.

    Both means' intervals (`unit_mean`) are combined with the correlation of the two measures, as in Newcombe's method for
    paired shares. Unlike the t interval of the differences it has a width where all differences are zero.
    """
    x, y = (np.asarray(values, dtype=np.float64).ravel() for values in (a, b))
    varies = len(x) > 1 and x.std() > 0 and y.std() > 0
    correlation = float(np.corrcoef(x, y)[0, 1]) if varies else 0.0
    return difference(unit_mean(x), unit_mean(y), correlation)


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Mean:
    """Ratio of the means of two measures of the same rows, with Fieller's interval.

    The interval has all ratios q for which the mean of numerator − q·denominator is not clearly different from zero. It is
    unbounded, and left out here, unless the denominator's mean is clearly different from zero.
    """
    x, y = (np.asarray(values, dtype=np.float64).ravel() for values in (numerator, denominator))
    n = len(x)
    if n == 0 or y.mean() == 0:
        return Mean(np.nan, np.nan, np.nan, n)
    value = float(x.mean() / y.mean())
    if n == 1:
        return Mean(value, np.nan, np.nan, n)
    squared = t.ppf((1 + CONFIDENCE) / 2, n - 1) ** 2 / n
    (xx, xy), (_, yy) = squared * np.cov(x, y)
    # (mean x − q·mean y)² ≤ squared · var(x − q·y) is a quadratic inequality in q.
    a, b, c = y.mean() ** 2 - yy, x.mean() * y.mean() - xy, x.mean() ** 2 - xx
    if a <= 0:
        return Mean(value, np.nan, np.nan, n)
    root = float(np.sqrt(max(b * b - a * c, 0.0)))
    return Mean(value, float((b - root) / a), float((b + root) / a), n)


def p_of_zero(mean: Mean) -> float:
    """Two-sided p of a true value of zero, read off the interval: 0.05 where an end of the interval is zero.

    The distance from zero is compared with the half-width on that side, as quantiles of Student's t with n − 1 degrees of
    freedom. NaN without an interval.
    """
    half = mean.value - mean.low if mean.value > 0 else mean.high - mean.value
    if np.isnan(half):
        return float("nan")
    if mean.value == 0 or half <= 0:
        return 1.0 if mean.value == 0 else 0.0
    degrees = max(mean.n - 1, 1)
    return float(2 * t.sf(abs(mean.value) / half * t.ppf((1 + CONFIDENCE) / 2, degrees), degrees))


def clear_signs(means: Sequence[Mean], comparisons: int | None = None) -> list[int]:
    """For each mean, 1 or −1 if it is clearly above or below zero, else 0; corrected for the number of comparisons.

    By Holm's method: all signs are right with a probability of at least 95 %, whatever the dependence. `comparisons` counts
    all comparisons of the table if `means` are only some of them; by default those that have an interval.
    """
    p = np.array([p_of_zero(mean) for mean in means], dtype=np.float64)
    clear = holm(p, comparisons)
    return [int(np.sign(mean.value)) if ok else 0 for mean, ok in zip(means, clear, strict=True)]


def holm(p: Floats, comparisons: int | None = None, alpha: float = ALPHA) -> NDArray[np.bool_]:
    """Which hypotheses Holm's method rejects, given their p; NaNs are never rejected and not counted."""
    order = np.argsort(p, kind="stable")  # NaN comes last
    known = int((~np.isnan(p)).sum())
    total = max(comparisons or known, known)
    passed = p[order][:known] <= alpha / (total - np.arange(known))
    rejected = np.zeros(len(p), dtype=np.bool_)
    rejected[order[: known if passed.all() else int(np.argmin(passed))]] = True
    return rejected


@dataclass(frozen=True)
class SignTest:
    """Numbers of differences above and below zero, and the two-sided p if both signs are equally likely."""

    above: int
    below: int
    p: float


def sign_test(differences: ArrayLike) -> SignTest:
    """Two-sided sign test. Zeros are left out; if no difference remains, p is 1."""
    x = np.asarray(differences, dtype=np.float64)
    above, below = int((x > 0).sum()), int((x < 0).sum())
    return SignTest(above, below, float(binomtest(above, above + below).pvalue) if above + below else 1.0)

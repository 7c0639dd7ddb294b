"""Means with 95 % intervals, how to combine them, and which differences are clear.

Each kind of number has one interval; docs/statistics.md gives their coverage in simulations.

    share_of, share         shares of 0s and 1s                     Wilson's score interval
    unit_mean, unit_means   means of values up to 1                 Wilson's interval, scaled by the observed variance
    t_mean, t_means         means of other values                   Student's t
    paired_difference       two measures up to 1 of each prompt     both intervals, combined with their correlation
    difference, average     numbers of independent samples          intervals combined side by side
    ratio                   ratio of two means of paired values     Fieller's
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest, norm, t

CONFIDENCE = 0.95
Z = float(norm.ppf((1 + CONFIDENCE) / 2))
ALPHA = 1 - CONFIDENCE
SMALLEST_VARIANCE = 1e-8  # of values up to 1; those that vary less count as equal, as the rest may be rounding
RARE = 4.0

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

    For 0s and 1s φ is 1 and this is Wilson's interval. Elsewhere φ is smaller and so is the interval, and as φ is estimated,
    Student's t takes the place of z. A skewed sample may lack the rare values on which its mean depends, so ½·skewness² values
    of variance x(1 − x), at most RARE, are added to the estimate of φ; RARE if all values are equal. If a row has negative
    values (a faithfulness may), its smallest value takes the place of 0.
    """
    n = values.shape[1]
    if n == 0:
        return [NOTHING] * len(values)
    floor = np.minimum(values.min(1), 0.0).astype(np.float64)
    scale = 1 - floor
    binary = ((values == 0) | (values == 1)).all(1)
    deviations = values - values.mean(1, dtype=np.float64, keepdims=True)
    x = (values.mean(1, dtype=np.float64) - floor) / scale
    largest = np.clip(x * (1 - x), 0, None)  # rounding may take a mean beyond 1
    variance = np.square(deviations).mean(1) / scale**2
    varies = variance > SMALLEST_VARIANCE
    skewness = np.divide((deviations**3).mean(1) / scale**3, variance**1.5, out=np.full_like(x, np.inf), where=varies)
    rare = np.minimum(0.5 * skewness**2, RARE)
    observed = np.divide(variance, largest, out=np.ones_like(x), where=largest > 0)
    phi = np.where(binary, 1.0, (n * np.clip(observed, 0, 1) + rare) / (n + rare))
    spread = np.where(binary, Z, t_quantile(n)) ** 2 * phi / n
    ends = (floor + scale * each for each in (x, *score_interval(x, spread)))
    return [Mean(value, low, high, n) for value, low, high in np.stack(list(ends), axis=1).tolist()]


def score_interval(x: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """The smallest and largest μ in [0, 1] with |x − μ| ≤ √(spread · μ(1 − μ)). Wilson's interval has a spread of z²/n."""
    centre = (x + spread / 2) / (1 + spread)
    half = np.sqrt(spread * np.clip(x * (1 - x), 0, None) + spread**2 / 4) / (1 + spread)
    low, high = np.minimum(centre - half, x), np.maximum(centre + half, x)  # with x in spite of rounding
    return low.clip(0), high.clip(None, 1)


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
    half = t_quantile(n) * values.std(1, ddof=1, dtype=np.float64) / np.sqrt(n)
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
    """Mean of a − b for two measures of the same prompts, of values such as those of `unit_mean`.

    Both means' intervals are combined with the correlation of the two measures, as in Newcombe's method 10 for paired shares.
    Like there a positive correlation is first reduced by 1/(2n·√(x(1 − x)·y(1 − y))), for means x and y on the scale from 0
    (or the smallest value) to 1. So the interval has a width also where all differences are zero.
    """
    x, y = (np.asarray(values, dtype=np.float64).ravel() for values in (a, b))
    n, correlation = len(x), 0.0
    if n > 1 and x.std() > 0 and y.std() > 0:
        floors = (min(float(each.min()), 0.0) for each in (x, y))
        means = [(each.mean() - floor) / (1 - floor) for each, floor in zip((x, y), floors, strict=True)]
        correction = 1 / (2 * n * np.sqrt(np.prod([m * (1 - m) for m in means])))
        correlation = float(np.corrcoef(x, y)[0, 1])
        correlation = max(correlation - float(correction), 0.0) if correlation > 0 else correlation
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
    squared = t_quantile(n) ** 2 / n
    (xx, xy), (_, yy) = squared * np.cov(x, y)
    # (mean x − q·mean y)² ≤ squared · var(x − q·y) is a quadratic inequality in q.
    a, b, c = y.mean() ** 2 - yy, x.mean() * y.mean() - xy, x.mean() ** 2 - xx
    if a <= 0:
        return Mean(value, np.nan, np.nan, n)
    root = float(np.sqrt(max(b * b - a * c, 0.0)))
    return Mean(value, float((b - root) / a), float((b + root) / a), n)


def t_quantile(n: int) -> float:
    """By how many standard errors the 95 % interval of a mean of n values reaches to each side; unknown for fewer than two."""
    return float(t.ppf((1 + CONFIDENCE) / 2, max(n - 1, 1)))


def p_of_zero(value: ArrayLike, low: ArrayLike, high: ArrayLike, n: ArrayLike) -> Floats:
    """Two-sided p of a true value of zero, read off the interval: 0.05 where an end of the interval is zero.

    The distance from zero is compared with the half-width on that side, as quantiles of Student's t with n − 1 degrees of
    freedom. NaN without an interval.
    """
    x, lower, upper = (np.asarray(each, dtype=np.float64) for each in (value, low, high))
    half = np.where(x > 0, x - lower, upper - x)
    degrees = np.maximum(np.asarray(n, dtype=np.float64) - 1, 1)
    distance = np.divide(np.abs(x), half, out=np.where(x == 0, 0.0, np.inf), where=half != 0)
    p = 2 * t.sf(distance * t.ppf((1 + CONFIDENCE) / 2, degrees), degrees)
    return np.where(np.isnan(half), np.nan, p)


def clear_signs(means: Sequence[Mean], comparisons: int | None = None) -> list[int]:
    """For each mean, 1 or −1 if it is clearly above or below zero, else 0; corrected for the number of comparisons.

    By Holm's method: with a probability of at least 95 % no true zero gets a sign, whatever the dependence. `comparisons`
    counts all comparisons of the table if `means` are only some of them; by default those that have an interval.
    """
    value, low, high, n = np.array([astuple(mean) for mean in means], dtype=np.float64).reshape(-1, 4).T
    return signs_of_rows(value, low, high, n, comparisons).tolist()


def signs_of_rows(
    value: ArrayLike, low: ArrayLike, high: ArrayLike, n: ArrayLike, comparisons: int | None = None
) -> NDArray[np.int64]:
    """`clear_signs` for millions of means, given as columns."""
    clear = holm(p_of_zero(value, low, high, n), comparisons)
    return np.where(clear, np.sign(np.asarray(value, dtype=np.float64)), 0).astype(np.int64)


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

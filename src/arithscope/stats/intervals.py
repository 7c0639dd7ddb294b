"""Means with bootstrap intervals, how to combine them, and the sign test."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest
from torch import Tensor

from arithscope.utils.threads import thread_pool

RESAMPLES = 1000
CPU_ROWS, GPU_ROWS = 1024, 16384  # rows that are resampled together
LARGE = 8192  # number of values above which neighbours are merged
CPU = torch.device("cpu")
CONFIDENCE = 0.95
QUANTILES = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)

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


def bootstrap_mean(values: ArrayLike, random: Generator) -> Mean:
    """Mean of the values with its percentile bootstrap interval."""
    x = np.asarray(values, dtype=np.float64).ravel()
    if len(x) == 0:
        return Mean(np.nan, np.nan, np.nan, 0)
    low, high = np.quantile(resampled_means(x, random), QUANTILES)
    return Mean(float(x.mean()), float(low), float(high), len(x))


def share(successes: int, n: int) -> Mean:
    """A share with its Wilson interval, which unlike a bootstrap interval has a width where it is 0 or 1."""
    interval = binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return Mean(successes / n, float(interval.low), float(interval.high), n)


def resampled_means(values: ArrayLike, random: Generator) -> Float[np.ndarray, " resamples"]:
    """Means of RESAMPLES samples drawn with replacement from the values.

    A resample is determined by the number of times each distinct value is drawn, which is multinomial. With few distinct
    values (0 and 1, say) drawing these counts is as exact as drawing values, and costs next to nothing. More than LARGE
    values are first replaced by the means of neighbouring ones, which keeps their mean and hardly changes their spread.
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    if len(x) > LARGE:
        groups = np.array_split(np.sort(x), LARGE // 8)
        x = np.repeat([group.mean() for group in groups], [len(group) for group in groups])
    distinct, counts = np.unique(x, return_counts=True)
    if len(distinct) * 8 <= len(x):
        return random.multinomial(len(x), counts / len(x), size=RESAMPLES) @ distinct / len(x)
    draws = (random.integers(0, len(x), len(x), dtype=np.uint32) for _ in range(RESAMPLES))
    return np.array([x[rows].mean() for rows in draws])


def bootstrap_means(values: Rows, random: Generator, denominator: Rows | None = None) -> list[Mean]:
    """Mean of each row, or with a denominator the ratio mean(row) / mean(its denominator), with its interval.

    Rows share their resamples, so that differences between rows are not blurred by sampling.
    """
    intervals = bootstrap_intervals(values, random, denominator)
    return [Mean(value, low, high, values.shape[1]) for value, low, high in intervals.T.tolist()]


def bootstrap_intervals(
    numerator: Rows, random: Generator, denominator: Rows | None = None, device: torch.device = CPU
) -> Intervals:
    """Value, low and high of `bootstrap_means`, for millions of rows."""
    rows, n = numerator.shape
    if n == 0:
        return np.full((3, rows), np.nan)
    gpu = device.type == "cuda"  # MPS lacks float64, and meta tensors hold no data
    counts = torch.from_numpy(random.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).T.astype(np.float64))
    counts = counts.to(device) if gpu else counts
    position = np.array(QUANTILES) * (RESAMPLES - 1)  # of the quantiles in sorted order; fractional
    below = position.astype(np.int64)
    intervals, size = np.empty((3, rows)), GPU_ROWS if gpu else CPU_ROWS

    def resample(start: int) -> None:  # in chunks: the resamples of every row at once would be large
        chunk = slice(start, start + size)
        a = numerator[chunk].astype(np.float64)
        b = np.ones((1, n)) if denominator is None else denominator[chunk].astype(np.float64)
        left, right = np.split(_sorted_resamples(a, b, counts, [*below, *(below + 1)]), 2, axis=1)
        intervals[0, chunk] = a.mean(1) / b.mean(1)
        intervals[1:, chunk] = (left + (position - below) * (right - left)).T

    with thread_pool() as pool:
        list((map if gpu else pool.map)(resample, range(0, rows, size)))
    return intervals


def _sorted_resamples(a: Rows, b: Rows, counts: Tensor, places: list[int]) -> Rows:
    """Resampled ratios of each row at some places of their sorted order; NaN if any ratio is undefined."""
    if counts.is_cuda:
        x, y = (torch.from_numpy(each).to(counts.device) @ counts for each in (a, b))
        ordered = (x / y).sort(1).values  # NaN is sorted to the end
        return torch.where(ordered[:, -1:].isnan(), torch.nan, ordered[:, places]).cpu().numpy()
    resampled = (a @ counts.numpy()) / (b @ counts.numpy())
    undefined = np.isnan(resampled).any(1)
    resampled.partition(places, axis=1)
    resampled[undefined] = np.nan
    return resampled[:, places]


def average(means: Sequence[Mean]) -> Mean:
    """Unweighted mean of means of independent samples. NaNs are left out; `n` is the sum of the others' n.

    Interval half-widths combine like independent errors, √(Σ d²) / number of means, separately on each side.
    """
    kept = [m for m in means if not np.isnan(m.value)]
    if not kept:
        return Mean(np.nan, np.nan, np.nan, 0)
    value = float(np.mean([m.value for m in kept]))
    sides = [m.value - m.low for m in kept], [m.high - m.value for m in kept]
    below, above = (float(np.sqrt(np.sum(np.square(d)))) / len(kept) for d in sides)
    return Mean(value, value - below, value + above, sum(m.n for m in kept))


def difference(a: Mean, b: Mean) -> Mean:
    """a − b for means of independent samples; `n` is the smaller of the two.

    Half-widths combine like independent errors: the lower one is √((a − a.low)² + (b.high − b)²).
    """
    value = a.value - b.value
    below, above = np.hypot(a.value - a.low, b.high - b.value), np.hypot(a.high - a.value, b.value - b.low)
    return Mean(value, value - float(below), value + float(above), min(a.n, b.n))


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

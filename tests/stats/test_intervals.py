"""Bootstrap intervals: coverage, known distributions, and every resample by hand."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arithscope.stats.intervals import (
    CPU_ROWS,
    RESAMPLES,
    Mean,
    average,
    bootstrap_intervals,
    bootstrap_mean,
    bootstrap_means,
    difference,
    resampled_means,
    share,
    sign_test,
)


def test_interval_of_a_share_is_the_binomial_one() -> None:
    values = np.repeat([0, 1], [300, 700])
    mean = bootstrap_mean(values, random=np.random.default_rng(0))
    half = 1.96 * np.sqrt(0.7 * 0.3 / 1000)
    assert (mean.value, mean.n) == (0.7, 1000)
    assert mean.low == pytest.approx(0.7 - half, abs=0.004)
    assert mean.high == pytest.approx(0.7 + half, abs=0.004)


@pytest.mark.parametrize(("successes", "n"), [(0, 100), (7, 40), (100, 100)])
def test_the_wilson_interval_holds_all_shares_that_a_test_does_not_reject(successes: int, n: int) -> None:
    """Its ends are the shares p with |share − p| = 1.96 √(p (1 − p) / n)."""
    found = share(successes, n)
    p = np.linspace(0, 1, 100_001)
    kept = p[np.abs(successes / n - p) <= 1.959964 * np.sqrt(p * (1 - p) / n)]
    assert (found.value, found.n) == (successes / n, n)
    assert [found.low, found.high] == pytest.approx([kept.min(), kept.max()], abs=2e-5)


def test_the_interval_is_that_of_the_resampled_means() -> None:
    for values in (np.repeat([0, 1], [30, 70]), np.random.default_rng(1).exponential(1.0, 30)):
        mean = bootstrap_mean(values, np.random.default_rng(0))
        want = np.quantile(resampled_means(values, np.random.default_rng(0)), [0.025, 0.975])
        assert [mean.low, mean.high] == pytest.approx(want.tolist())


@pytest.mark.parametrize("at", [0, 1, 19])
def test_every_value_is_drawn_equally_often(at: int) -> None:
    x = np.arange(20) / 1000
    x[at] = 20.0  # so that the mean of a resample is about the number of times it was drawn
    times = resampled_means(x, np.random.default_rng(0)).round()
    shares = [float(np.mean(times == k)) for k in range(3)]
    assert shares == pytest.approx([comb(20, k) * 0.05**k * 0.95 ** (20 - k) for k in range(3)], abs=0.05)


def test_both_resampling_methods_agree() -> None:
    """Many distinct values are drawn one by one, few through their counts; the distribution is the same."""
    few = np.repeat([0.0, 1.0, 5.0], [40, 30, 30])
    many = few + np.random.default_rng(1).normal(0, 1e-6, len(few))
    a, b = (resampled_means(x, np.random.default_rng(2)) for x in (few, many))
    assert len(a) == len(b) == RESAMPLES
    assert a.mean() == pytest.approx(b.mean(), abs=0.03)
    assert a.std() == pytest.approx(b.std(), rel=0.1)
    assert a.std() == pytest.approx(few.std() / 10, rel=0.1)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    random = np.random.default_rng(3)
    samples = [random.exponential(2.0, 200) for _ in range(200)]
    covered = [(m := bootstrap_mean(x, random=random)).low <= 2.0 <= m.high for x in samples]
    assert 0.88 <= np.mean(covered) <= 0.99


def test_the_mean_of_nothing_is_nan() -> None:
    mean = bootstrap_mean([], random=np.random.default_rng(0))
    assert mean.n == 0
    assert np.isnan([mean.value, mean.low, mean.high]).all()


def test_intervals_of_many_rows_equal_those_of_single_rows() -> None:
    values = np.random.default_rng(0).exponential(1.0, (3, 80))
    together = bootstrap_means(values, np.random.default_rng(1))
    for row, mean in zip(values, together, strict=True):
        alone = bootstrap_mean(row, random=np.random.default_rng(2))
        assert mean.value == pytest.approx(alone.value)
        assert mean.n == alone.n
        assert mean.low == pytest.approx(alone.low, abs=0.03)
        assert mean.high == pytest.approx(alone.high, abs=0.03)


def test_rows_share_their_resamples() -> None:
    """Two rows that differ by a constant have intervals that differ by exactly that."""
    values = np.random.default_rng(0).normal(size=50)
    a, b = bootstrap_means(np.stack([values, values + 2]), np.random.default_rng(1))
    assert [b.low - a.low, b.high - a.high] == pytest.approx([2, 2])


def test_ratios_of_means_against_a_loop() -> None:
    random = np.random.default_rng(0)
    above, below = random.uniform(1, 2, (5000, 4)), random.uniform(2, 3, (5000, 4))
    found = bootstrap_means(above, np.random.default_rng(1), below)
    assert len(found) == 5000 > CPU_ROWS  # more than are resampled at a time
    counts = np.random.default_rng(1).multinomial(4, np.full(4, 1 / 4), size=RESAMPLES)
    for i in (0, CPU_ROWS - 1, CPU_ROWS, 4999):
        resampled = [np.average(above[i], weights=c) / np.average(below[i], weights=c) for c in counts]
        assert found[i].value == pytest.approx(above[i].mean() / below[i].mean())
        assert [found[i].low, found[i].high] == pytest.approx(np.quantile(resampled, [0.025, 0.975]))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_ratios_with_a_zero_denominator() -> None:
    """0 ÷ 0 has no quantiles; the ratio itself, and other rows, are unaffected."""
    above, below = np.array([[1.0, 0.0, 2.0], [1.0, 1.0, 2.0]]), np.array([[2.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    undefined, sound = bootstrap_means(above, np.random.default_rng(0), below)
    assert undefined.value == pytest.approx(1.0)
    assert np.isnan([undefined.low, undefined.high]).all()
    assert (sound.value, sound.low, sound.high) == pytest.approx((4 / 3, 1.0, 2.0))


def test_average_of_means() -> None:
    missing = Mean(np.nan, np.nan, np.nan, 0)
    mean = average([Mean(0.4, 0.1, 0.9, 10), Mean(0.6, 0.2, 1.8, 20), missing])
    assert (mean.value, mean.n) == (pytest.approx(0.5), 30)
    assert mean.low == pytest.approx(0.5 - 0.25)  # √(.3² + .4²) / 2
    assert mean.high == pytest.approx(0.5 + 0.65)  # √(.5² + 1.2²) / 2
    for nothing in (average([missing]), average([])):
        assert np.isnan([nothing.value, nothing.low, nothing.high]).all()
        assert nothing.n == 0


def test_average_agrees_with_resampling_everything() -> None:
    random = np.random.default_rng(0)
    groups = [random.exponential(scale, 300) for scale in (1.0, 2.0, 0.5)]
    resampled = np.mean([resampled_means(g, np.random.default_rng(1)) for g in groups], axis=0)
    quick = average([bootstrap_mean(g, np.random.default_rng(2)) for g in groups])
    assert quick.value == pytest.approx(np.mean([g.mean() for g in groups]))
    assert [quick.low, quick.high] == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=0.05)


def test_difference_of_independent_means() -> None:
    """Hand-worked: 3-4-5 triangles."""
    found = difference(Mean(2.0, 1.7, 2.3, 10), Mean(1.0, 0.6, 1.4, 7))
    assert (found.value, found.low, found.high, found.n) == pytest.approx((1.0, 0.5, 1.5, 7))
    uneven = difference(Mean(2.0, 1.7, 2.8, 10), Mean(1.0, 0.4, 1.4, 20))
    assert (uneven.low, uneven.high) == pytest.approx((0.5, 2.0))


def test_intervals_of_differences_cover_the_truth() -> None:
    random, covered = np.random.default_rng(0), 0
    for _ in range(80):
        a, b = random.normal(1.0, 1.0, 60), random.normal(0.5, 2.0, 80)
        found = difference(bootstrap_mean(a, random), bootstrap_mean(b, random))
        covered += found.low <= 0.5 <= found.high
    assert 0.87 <= covered / 80 <= 1


@given(st.lists(st.integers(-2, 2), max_size=12))
def test_sign_test_by_enumeration(values: list[int]) -> None:
    found = sign_test(values)
    above, below = sum(v > 0 for v in values), sum(v < 0 for v in values)
    assert (found.above, found.below) == (above, below)
    n = above + below
    chances = [comb(n, k) / 2**n for k in range(n + 1)]
    assert found.p == pytest.approx(sum(c for c in chances if c <= chances[above] * (1 + 1e-9)) if n else 1)


def test_intervals_of_very_many_values() -> None:
    """Merging neighbours keeps the mean, and the interval is that of the central limit theorem."""
    x = np.random.default_rng(0).exponential(2.0, 90_001) ** 2
    found = bootstrap_mean(x, np.random.default_rng(1))
    assert found.value == x.mean()
    half = 1.96 * x.std() / len(x) ** 0.5
    assert [found.low, found.high] == pytest.approx([x.mean() - half, x.mean() + half], abs=0.1 * half)
    means = resampled_means(x, np.random.default_rng(2))
    assert means.std() == pytest.approx(x.std() / len(x) ** 0.5, rel=0.08)


@pytest.mark.parametrize("device", ["mps", "meta"])
def test_a_device_without_doubles_or_data_is_not_used(device: str) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5))
    there, here = (
        bootstrap_intervals(values, np.random.default_rng(1), device=torch.device(name)) for name in (device, "cpu")
    )
    assert (there == here).all()

"""Intervals against scans over all values, SciPy and published examples; what is clear against a brute-force Holm."""

from __future__ import annotations

from itertools import permutations
from math import comb

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from arithscope.stats.intervals import (
    NOTHING,
    Mean,
    average,
    clear_signs,
    difference,
    holm,
    p_of_zero,
    paired_difference,
    ratio,
    share,
    share_of,
    sign_test,
    signs_of_rows,
    t_intervals,
    t_mean,
    t_means,
    unit_mean,
    unit_means,
)

shares = st.lists(st.integers(0, 10_000).map(lambda k: k / 10_000), min_size=2, max_size=40)
numbers = st.lists(st.floats(-100, 100), min_size=3, max_size=30)


def ends(mean: Mean) -> list[float]:
    return [mean.low, mean.high]


def p_of(mean: Mean) -> float:
    return float(p_of_zero(mean.value, mean.low, mean.high, mean.n))


@pytest.mark.parametrize(("successes", "n"), [(0, 100), (7, 40), (24, 25), (100, 100)])
def test_the_wilson_interval_holds_all_shares_that_a_test_does_not_reject(successes: int, n: int) -> None:
    """Its ends are the shares p with |share − p| = 1.96 √(p (1 − p) / n)."""
    p = np.linspace(0, 1, 100_001)
    kept = p[np.abs(successes / n - p) <= 1.959964 * np.sqrt(p * (1 - p) / n)]
    values = np.arange(n) < successes
    for found in (share(successes, n), share_of(values), unit_mean(values)):
        assert (found.value, found.n) == (successes / n, n)
        assert ends(found) == pytest.approx([kept.min(), kept.max()], abs=2e-5)


@given(shares, st.sampled_from([0.0, -0.5, -3.0]))
def test_the_interval_of_a_mean_holds_all_means_that_a_test_does_not_reject(
    values: list[float], smallest: float
) -> None:
    """As documented: the variance is φ·μ(1 − μ), φ is estimated with ½·skewness² values more (at most 4) of φ = 1."""
    x = np.array(values) * (1 - smallest) + smallest
    assume(x.std() > 1e-3 and not np.isin(x, (0, 1)).all())
    n, floor = len(x), min(x.min(), 0.0)
    y = (x - floor) / (1 - floor)
    rare = min(0.5 * float(stats.skew(y)) ** 2, 4)
    phi = (n * y.var() / (y.mean() * (1 - y.mean())) + rare) / (n + rare)
    mu = np.linspace(0, 1, 20_001)
    kept = mu[np.abs(y.mean() - mu) <= stats.t.ppf(0.975, n - 1) * np.sqrt(phi * mu * (1 - mu) / n)]
    found = unit_mean(x)
    assert (found.value, found.n) == (pytest.approx(x.mean()), n)
    want = floor + (1 - floor) * np.array([kept.min(), kept.max()])
    assert ends(found) == pytest.approx(want.tolist(), abs=1e-4 * (1 - floor))


@given(shares)
def test_intervals_of_means_of_values_up_to_one(values: list[float]) -> None:
    """They hold the mean, lie in [0, 1], always have a width, and mirror if all values do."""
    x = np.array(values)
    mean, mirrored = unit_mean(x), unit_mean(1 - x)
    assert 0 <= mean.low <= mean.value <= mean.high <= 1
    assert mean.high - mean.low > 1e-4
    assert ends(mirrored) == pytest.approx([1 - mean.high, 1 - mean.low], abs=1e-6)
    twice = unit_means(np.stack([x, x]))
    assert twice == [mean, mean]


@pytest.mark.parametrize("value", [0.0, 0.3, 0.999, 1.0])
def test_equal_values_have_an_interval_with_a_width(value: float) -> None:
    """At 0 and 1 Wilson's; elsewhere that of four values of the largest variance among n + 4."""
    found = unit_mean(np.full(20, value))
    if value in (0, 1):
        assert found == share(int(20 * value), 20)
    else:
        z = stats.t.ppf(0.975, 19) * np.sqrt(4 / 24)
        mu = np.linspace(0, 1, 100_001)
        kept = mu[np.abs(value - mu) <= z * np.sqrt(mu * (1 - mu) / 20)]
        assert ends(found) == pytest.approx([kept.min(), kept.max()], abs=2e-5)


@given(numbers, st.floats(-50, 50), st.floats(0.1, 20))
def test_t_intervals_are_scipys_and_move_with_the_values(values: list[float], shift: float, scale: float) -> None:
    x = np.array(values)
    assume(x.std() > 1e-3)
    found = t_mean(x)
    want = stats.t.interval(0.95, len(x) - 1, x.mean(), stats.sem(x))
    assert ends(found) == pytest.approx(want, abs=1e-9)
    assert p_of(found) == pytest.approx(stats.ttest_1samp(x, 0).pvalue, abs=1e-9)
    moved = t_mean(scale * x + shift)
    assert ends(moved) == pytest.approx([scale * e + shift for e in want], abs=1e-6)
    assert t_means(np.stack([x, 2 * x]))[1] == t_mean(2 * x)
    assert t_intervals(x[None])[:, 0].tolist() == [found.value, found.low, found.high]


def test_means_of_nothing_and_of_one_value() -> None:
    for mean in (share(0, 0), share_of([]), unit_mean([]), t_mean([]), paired_difference([], []), ratio([], [])):
        assert mean.n == 0
        assert np.isnan([mean.value, mean.low, mean.high]).all()
    assert (t_mean([0.4]).value, t_mean([0.4]).n) == (0.4, 1)
    assert np.isnan(ends(t_mean([0.4]))).all()
    assert unit_mean([1]) == share(1, 1)


def test_average_of_means() -> None:
    missing = Mean(np.nan, np.nan, np.nan, 0)
    mean = average([Mean(0.4, 0.1, 0.9, 10), Mean(0.6, 0.2, 1.8, 20), missing])
    assert (mean.value, mean.n) == (pytest.approx(0.5), 30)
    assert mean.low == pytest.approx(0.5 - 0.25)  # √(.3² + .4²) / 2
    assert mean.high == pytest.approx(0.5 + 0.65)  # √(.5² + 1.2²) / 2
    for nothing in (average([missing]), average([])):
        assert np.isnan([nothing.value, nothing.low, nothing.high]).all()
        assert nothing.n == 0


def test_difference_of_independent_means() -> None:
    """3-4-5 triangles, by hand; and Newcombe's first example (1998, method 10): 56 of 70 against 48 of 80."""
    found = difference(Mean(2.0, 1.7, 2.3, 10), Mean(1.0, 0.6, 1.4, 7))
    assert (found.value, found.low, found.high, found.n) == pytest.approx((1.0, 0.5, 1.5, 7))
    uneven = difference(Mean(2.0, 1.7, 2.8, 10), Mean(1.0, 0.4, 1.4, 20))
    assert (uneven.low, uneven.high) == pytest.approx((0.5, 2.0))
    assert ends(difference(share(56, 70), share(48, 80))) == pytest.approx([0.0524, 0.3339], abs=5e-5)


@pytest.mark.parametrize(
    ("both", "first", "second", "neither", "low", "high"),
    [(36, 12, 2, 0, 0.0569, 0.3404), (1, 1, 7, 12, -0.507, -0.026)],
)
def test_difference_of_paired_shares(both: int, first: int, second: int, neither: int, low: float, high: float) -> None:
    """Published: Newcombe (1998, method 10) with a negative, Bentur et al. (2009) with a positive correlation."""
    cells = [both, first, second, neither]
    found = paired_difference(np.repeat([1, 1, 0, 0], cells), np.repeat([1, 0, 1, 0], cells))
    assert (found.value, found.n) == (pytest.approx((first - second) / sum(cells)), sum(cells))
    assert ends(found) == pytest.approx([low, high], abs=5e-4)


@given(shares, st.data())
def test_paired_differences(values: list[float], data: st.DataObject) -> None:
    """Antisymmetric; around the mean difference; with a width even where all differences are zero."""
    x, y = (np.array(v) for v in (values, data.draw(st.permutations(values))))
    found, back = paired_difference(x, y), paired_difference(y, x)
    assert found.value == pytest.approx((x - y).mean(), abs=1e-9)
    assert found.low <= found.value <= found.high
    assert [found.low, found.high] == pytest.approx([-back.high, -back.low], abs=1e-9)
    same = paired_difference(x, x)
    assert same.low < 0 < same.high


def test_a_strong_correlation_narrows_a_paired_difference() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(0.2, 0.8, 100)
    y = np.clip(x - 0.1 + random.normal(0, 0.01, 100), 0, 1)
    paired, apart = paired_difference(x, y), difference(unit_mean(x), unit_mean(y))
    assert paired.high - paired.low < 0.4 * (apart.high - apart.low)


@pytest.mark.parametrize("seed", range(3))
def test_fiellers_interval_by_a_scan_over_all_ratios(seed: int) -> None:
    random = np.random.default_rng(seed)
    y = random.uniform(0.5, 1.5, 8)
    x = 0.7 * y + random.normal(0, 0.2, 8)
    q = np.linspace(-1, 3, 40_001)
    gaps = x[:, None] - q * y[:, None]
    kept = q[np.abs(gaps.mean(0)) <= stats.t.ppf(0.975, 7) * gaps.std(0, ddof=1) / np.sqrt(8)]
    found = ratio(x, y)
    assert found.value == pytest.approx(x.mean() / y.mean())
    assert ends(found) == pytest.approx([kept.min(), kept.max()], abs=2e-4)


def test_ratios_without_an_interval() -> None:
    unclear = ratio([1.0, 2.0, 1.5], [1.0, -1.0, 0.3])  # the denominator may be zero: all ratios are possible
    assert unclear.value == pytest.approx(15.0)
    assert np.isnan(ends(unclear)).all()
    assert ratio([0.5], [2.0]).value == 0.25
    assert np.isnan(ends(ratio([0.5], [2.0]))).all()
    assert np.isnan(ratio([1.0, 2.0], [1.0, -1.0]).value)


def test_p_is_a_twentieth_where_the_interval_ends_at_zero() -> None:
    columns = np.array([[0.2, 0.0, 0.5], [-0.3, -0.5, 0.0], [0.0, -1.0, 1.0], [0.0, 0.0, 0.0], [0.1, 0.1, 0.1]]).T
    assert p_of_zero(*columns, n=[50, 5, 9, 9, 9]).tolist() == pytest.approx([0.05, 0.05, 1.0, 1.0, 0.0])
    assert np.isnan(p_of(Mean(0.3, np.nan, np.nan, 1)))


@given(st.lists(st.floats(0, 1) | st.sampled_from([0.001, 0.01, 0.02, 0.05]), max_size=6), st.integers(0, 4))
def test_holm_by_brute_force(p: list[float], others: int) -> None:
    """Its definition as a closed test: reject i if every set with i in it is rejected by Bonferroni's method."""
    if others == 0:
        sets = range(1, 2 ** len(p))
        rejected = [
            all(min(p[j] for j in range(len(p)) if s >> j & 1) <= 0.05 / s.bit_count() for s in sets if s >> i & 1)
            for i in range(len(p))
        ]
    else:  # comparisons that are not given have p = 1
        rejected = holm(np.array([*p, *np.ones(others)])).tolist()[: len(p)]
    assert holm(np.array(p), len(p) + others).tolist() == rejected


def test_holm_by_hand() -> None:
    """.01 ≤ .05/4 and .013 ≤ .05/3, but .03 > .05/2, which also ends the matter for .04."""
    p = [0.04, 0.01, 0.03, 0.013]
    for order in permutations(range(4)):
        assert holm(np.array(p)[list(order)]).tolist() == [i in (1, 3) for i in order]
    assert holm(np.array([0.04, np.nan])).tolist() == [True, False]  # a p that is not known is no comparison
    assert holm(np.array([0.04]), comparisons=2).tolist() == [False]


def test_an_interval_may_exclude_zero_without_being_clear() -> None:
    sure, likely, nothing = Mean(0.5, 0.4, 0.6, 50), Mean(-0.2, -0.39, -0.01, 50), Mean(0.1, -0.1, 0.3, 50)
    assert clear_signs([likely]) == [-1]
    assert clear_signs([likely, nothing]) == [0, 0]
    assert clear_signs([sure, likely]) == [1, -1]
    assert clear_signs([sure, likely], comparisons=3) == [1, 0]
    assert clear_signs([sure, NOTHING, likely]) == [1, 0, -1]
    assert clear_signs([]) == []


def test_zeros_are_rarely_called_clear() -> None:
    """20 comparisons of samples with mean zero: none gets a sign in at least 95 % of trials; single intervals rarely agree."""
    random = np.random.default_rng(0)
    any_clear, any_excludes = 0, 0
    for _ in range(400):
        columns = t_intervals(random.normal(size=(20, 10)))
        any_clear += bool(signs_of_rows(*columns, np.full(20, 10)).any())
        any_excludes += bool(((columns[1] > 0) | (columns[2] < 0)).any())
    assert any_clear <= stats.binom.ppf(0.999, 400, 0.05)
    assert any_excludes > 200


@pytest.mark.parametrize("share_of_ones", [0.5, 0.8, 0.97])
@pytest.mark.parametrize("n", [25, 50, 100])
def test_intervals_of_shares_cover_the_truth(share_of_ones: float, n: int) -> None:
    """Exactly, by the binomial distribution, averaged over shares up to .02 away (coverage oscillates with the share)."""
    kept = np.array([ends(share(k, n)) for k in range(n + 1)]).T
    near = np.linspace(share_of_ones - 0.02, share_of_ones + 0.02, 41)
    chances = stats.binom.pmf(np.arange(n + 1), n, near[:, None])
    covered = (chances * ((kept[0] <= near[:, None]) & (near[:, None] <= kept[1]))).sum(1)
    assert 0.93 < covered.mean() < 0.97
    assert covered.min() > 0.85


@given(st.lists(st.integers(-2, 2), max_size=12))
def test_sign_test_by_enumeration(values: list[int]) -> None:
    found = sign_test(values)
    above, below = sum(v > 0 for v in values), sum(v < 0 for v in values)
    assert (found.above, found.below) == (above, below)
    n = above + below
    chances = [comb(n, k) / 2**n for k in range(n + 1)]
    assert found.p == pytest.approx(sum(c for c in chances if c <= chances[above] * (1 + 1e-9)) if n else 1)

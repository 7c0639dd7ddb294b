"""Logistic regression and its cross-validated AUC against a general optimiser, on noise, and on planted signals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize

from arithscope.stats.classifiers import (
    RIDGE,
    CrossValidated,
    _auc_interval,
    _mean_aucs,
    _stratified_folds,
    cross_validated_auc,
    logistic,
    standardised,
)


def likelihood(b: Any, x: Any, y: Any) -> float:
    z = b[0] + x @ b[1:]
    return float(np.sum(np.logaddexp(0, z) - y * z) + RIDGE / 2 * len(y) * np.sum(b[1:] ** 2))


def fitted(x: Any, y: Any) -> Any:
    return minimize(likelihood, np.zeros(x.shape[1] + 1), (x, np.asarray(y, dtype=float)), tol=1e-12).x


def groups(random: np.random.Generator, positives: int, negatives: int, effect: float) -> tuple[Any, Any]:
    """Two features, of which the first is larger for positives by `effect` standard deviations."""
    y = np.arange(positives + negatives) < positives
    x = random.normal(size=(len(y), 2))
    x[:, 0] += effect * y
    return x, y


@pytest.mark.parametrize("seed", range(4))
def test_logistic_against_a_general_optimiser(seed: int) -> None:
    """Intervals have 1.96 standard errors to each side, from the likelihood's second derivatives by finite differences."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 3, (80, 2)) + 5
    y = random.random(80) < 1 / (1 + np.exp(-(0.8 * x[:, 0] - 0.3 * x[:, 1] - 2)))
    found, want = logistic(x, y), fitted(standardised(x), y)
    assert [mean.value for mean in found] == pytest.approx(want.tolist(), abs=1e-4)
    step = 1e-3 * np.eye(3)
    curvature = np.empty((3, 3))
    for i in range(3):
        for j in range(3):
            corners = [
                (a * b, likelihood(want + a * step[i] + b * step[j], standardised(x), y.astype(float)))
                for a in (1, -1)
                for b in (1, -1)
            ]
            curvature[i, j] = sum(sign * value for sign, value in corners) / 4e-6
    errors = np.sqrt(np.diag(np.linalg.inv(curvature)))
    assert [mean.high - mean.value for mean in found] == pytest.approx((1.959964 * errors).tolist(), rel=1e-3)
    assert [mean.value - mean.low for mean in found] == pytest.approx((1.959964 * errors).tolist(), rel=1e-3)


def test_logistic_with_a_separating_or_a_constant_feature() -> None:
    """Coefficients stay finite; that of a constant feature is 0 without an interval."""
    x = np.column_stack([np.arange(40.0), np.ones(40)])
    _, separating, constant = logistic(x, np.arange(40) >= 20)
    assert 2 < separating.low < separating.value < 50
    assert constant.value == 0
    assert np.isnan([constant.low, constant.high]).all()
    for outcome in (np.ones(40, dtype=bool), np.zeros(40, dtype=bool)):
        nothing = logistic(x, outcome)
        assert len(nothing) == 3
        for mean in nothing:
            assert np.isnan([mean.value, mean.low, mean.high]).all()
            assert mean.n == 40


def test_standardised_by_hand() -> None:
    x = np.array([[0.1, 10.0, 4.0], [0.3, 10.0, 12.0]])
    assert standardised(x) == pytest.approx(np.array([[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]]))


@pytest.mark.parametrize(("positives", "negatives", "effect"), [(50, 50, 0.0), (50, 50, 1.0), (50, 15, 2.0)])
def test_intervals_of_coefficients_cover_the_truth(positives: int, negatives: int, effect: float) -> None:
    """Of normal features with a shift of `effect` the log-odds have this slope, and none in the second feature."""
    random, inside = np.random.default_rng(0), np.zeros(2)
    for _ in range(200):
        x, y = groups(random, positives, negatives, effect)
        _, first, second = logistic(x, y)
        inside += [first.low <= effect * x[:, 0].std() <= first.high, second.low <= 0 <= second.high]
    assert (inside >= stats.binom.ppf(0.001, 200, 0.94)).all()


@given(st.integers(2, 30), st.integers(2, 30), st.integers(0, 99))
def test_folds_have_their_share_of_both_outcomes(positives: int, negatives: int, seed: int) -> None:
    y = np.random.default_rng(seed).permutation(np.arange(positives + negatives) < positives)
    folds = min(10, positives, negatives)
    fold = _stratified_folds(y, folds, np.random.default_rng(seed))
    for which in (y, ~y):
        counts = np.bincount(fold[which], minlength=folds)
        assert counts.min() >= 1
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(("positives", "negatives"), [(9, 9), (12, 5)])
def test_cross_validation_against_a_plain_loop(positives: int, negatives: int) -> None:
    """Every fold is left out once, also for shuffled outcomes; ties count half."""
    random = np.random.default_rng(3)
    x, y = groups(random, positives, negatives, 1.0)
    x[:, 1] = 0
    x[3], x[-1] = x[2], x[0]  # a positive and a negative with equal features
    fold = _stratified_folds(y, 4, random)
    orders = np.stack([np.arange(len(y)), *(random.permutation(len(y)) for _ in range(5))])
    design = np.column_stack([np.ones(len(y)), standardised(x)])
    found = _mean_aucs(design, y.astype(float), fold, orders)
    for order, auc in zip(orders, found, strict=True):
        values, by_fold = standardised(x)[order], []
        for left_out in range(4):
            here = fold == left_out
            fit = fitted(values[~here], y[~here])
            scores = values @ fit[1:]
            pairs = [
                0.5 if np.allclose(values[i], values[j]) else float(scores[i] > scores[j])
                for i in np.flatnonzero(here & y)
                for j in np.flatnonzero(here & ~y)
            ]
            by_fold.append(np.mean(pairs))
        assert auc == pytest.approx(np.mean(by_fold))


@pytest.mark.parametrize(("auc", "null"), [(0.5, 0.0), (0.62, 0.02), (0.9, 0.02), (1.0, 0.02), (0.0, 0.0)])
def test_the_interval_of_an_auc_by_a_scan(auc: float, null: float) -> None:
    """All θ within 1.96 standard errors, by Hanley and McNeil's formula for ten folds of five and four."""
    kept = []
    for theta in np.linspace(0, 1, 2001):
        q1, q2 = theta / (2 - theta), 2 * theta**2 / (1 + theta)

        def variance(theta: float, q1: float, q2: float) -> float:
            # With both group sizes in place of their mean, as Newcombe simplifies it.
            return (theta * (1 - theta) + 3.5 * (q1 - theta**2 + q2 - theta**2)) / 20 / 10

        own, middle = variance(theta, q1, q2), variance(0.5, 1 / 3, 1 / 3)
        near = np.exp(-(max(theta - 0.5, 0) ** 2) / (2 * 1.5**2 * middle))
        if abs(auc - theta) <= 1.959964 * np.sqrt(own * (1 + max(null / middle - 1, 0) * near)):
            kept.append(theta)
    low, high = _auc_interval(auc, np.full(10, 5), np.full(10, 4), null)
    assert [low, high] == pytest.approx([min([*kept, auc]), max([*kept, auc])], abs=6e-4)
    assert low <= auc <= high
    assert high - low > 0.05


def called(found: CrossValidated) -> bool:
    return found.p <= 0.05 and found.auc.value > 0.5


@pytest.mark.parametrize(("positives", "negatives"), [(50, 50), (50, 8)])
def test_noise_does_not_tell_the_outcomes_apart(
    positives: int, negatives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 5 % of 200 sets of random labels are called, up to chance, and the AUC is ½ on average."""
    monkeypatch.setattr("arithscope.stats.classifiers.PERMUTATIONS", 99)
    random = np.random.default_rng(0)
    found = [cross_validated_auc(*groups(random, positives, negatives, 0.0), random) for _ in range(200)]
    assert sum(map(called, found)) <= stats.binom.ppf(0.99, 200, 0.05)
    areas = [each.auc.value for each in found]
    assert np.mean(areas) == pytest.approx(0.5, abs=3 * np.std(areas) / np.sqrt(200))
    covered = np.mean([each.auc.low <= 0.5 <= each.auc.high for each in found])
    assert covered >= 0.9


def test_a_planted_signal_is_found() -> None:
    random = np.random.default_rng(0)
    found = [cross_validated_auc(*groups(random, 50, 50, 1.5), random) for _ in range(5)]
    assert all(each.p == 1 / 1001 for each in found)
    truth = float(stats.norm.cdf(1.5 / np.sqrt(2)))
    assert np.mean([each.auc.value for each in found]) == pytest.approx(truth, abs=0.06)
    assert all(each.auc.low > 0.6 for each in found)


def test_an_outcome_that_occurs_once_cannot_be_cross_validated() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    for outcome in (np.arange(20) < 1, np.arange(20) < 19, np.ones(20, dtype=bool)):
        found = cross_validated_auc(x, outcome, np.random.default_rng(0))
        assert np.isnan([found.auc.value, found.auc.low, found.auc.high, found.p]).all()
        assert found.auc.n == 20

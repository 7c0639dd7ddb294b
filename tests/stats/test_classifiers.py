"""Logistic regression against a general optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from arithscope.stats.classifiers import RIDGE, logistic, standardised


def likelihood(b: Any, x: Any, y: Any, weights: Any = 1) -> float:
    z = b[0] + standardised(x) @ b[1:]
    return float(np.sum(weights * (np.logaddexp(0, z) - y * z)) + RIDGE / 2 * len(y) * np.sum(b[1:] ** 2))


@pytest.mark.parametrize("seed", range(4))
def test_logistic_against_a_general_optimiser(seed: int) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(0, 3, (80, 2)) + 5
    y = random.random(80) < 1 / (1 + np.exp(-(0.8 * x[:, 0] - 0.3 * x[:, 1] - 2)))
    found = logistic(x, y, random)
    want = minimize(likelihood, np.zeros(3), (x, y.astype(float)), tol=1e-10).x
    assert [mean.value for mean in found[:-1]] == pytest.approx(want.tolist(), abs=1e-4)
    for mean in found:
        assert mean.low <= mean.value <= mean.high
    z = standardised(x) @ want[1:]
    pairs = [(z[i] > z[j]) + 0.5 * (z[i] == z[j]) for i in np.flatnonzero(y) for j in np.flatnonzero(~y)]
    assert found[-1].value == pytest.approx(np.mean(pairs))


def test_logistic_with_a_separating_feature() -> None:
    """Coefficients stay finite, and that of a constant feature is 0."""
    x = np.column_stack([np.arange(40.0), np.ones(40)])
    _, separating, constant, auc = logistic(x, np.arange(40) >= 20, np.random.default_rng(0))
    assert auc.value == 1
    assert 2 < separating.value < 50
    assert separating.low > 1
    assert constant.value == 0
    for outcome in (np.ones(40, dtype=bool), np.zeros(40, dtype=bool)):
        nothing = logistic(x, outcome, np.random.default_rng(0))
        assert len(nothing) == 4
        for mean in nothing:
            assert np.isnan([mean.value, mean.low, mean.high]).all()
            assert mean.n == 40


@pytest.mark.parametrize("rare", [True, False])
def test_logistic_intervals_against_a_general_optimiser(rare: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits every resample again. The rarer outcome occurs once, so many resamples lack it and are left out."""
    monkeypatch.setattr("arithscope.stats.classifiers.RESAMPLES", 40)
    x = np.random.default_rng(2).normal(size=(9, 1)).round(1)
    x[8] = x[7]  # a tie
    y = (np.arange(9) == 8) == rare
    found = logistic(x, y, np.random.default_rng(1))
    fits = []
    for w in np.random.default_rng(1).multinomial(9, np.full(9, 1 / 9), size=40):
        ones, zeros = (np.repeat(np.arange(9), w * c) for c in (y, ~y))
        if len(ones) and len(zeros):
            fit = minimize(likelihood, np.zeros(2), (x, y.astype(float), w), tol=1e-12).x
            pairs = [np.sign(fit[1] * (x[i, 0] - x[j, 0])) / 2 + 0.5 for i in ones for j in zeros]
            fits.append([*fit, np.mean(pairs)])
    assert 15 < len(fits) < 35
    assert len(found) == 3
    for i, mean in enumerate(found):
        assert mean.n == 9
        assert [mean.low, mean.high] == pytest.approx(
            np.quantile(fits, [0.025, 0.975], axis=0)[:, i].tolist(), abs=1e-4
        )


def test_standardised_by_hand() -> None:
    x = np.array([[0.1, 10.0, 4.0], [0.3, 10.0, 12.0]])
    assert standardised(x) == pytest.approx(np.array([[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]]))


def test_intervals_of_coefficients_cover_zero_without_an_effect() -> None:
    """About as often as they promise."""
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(60):
        _, c, _ = logistic(random.normal(size=(60, 1)), random.random(60) < 0.5, random)
        inside += c.low <= 0 <= c.high
    assert inside >= 50

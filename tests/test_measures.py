from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arithscope.measures import RESAMPLES, bootstrap_mean, effect, log_probability, resampled_means

seeds = st.integers(0, 10_000)


def random_logits(seed: int, *shape: int, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


@given(seeds)
def test_effect_is_the_papers_formula(seed: int) -> None:
    before, after = random_logits(seed, 5, 9), random_logits(seed + 1, 3, 5, 9)
    r, r2 = torch.arange(5), torch.arange(5) + 2
    p, p2 = before.softmax(-1), after.softmax(-1)
    for v in range(3):
        for b in range(5):
            gain = (p2[v, b, r2[b]] - p[b, r2[b]]) / p[b, r2[b]]
            loss = (p[b, r[b]] - p2[v, b, r[b]]) / p2[v, b, r[b]]
            assert float(effect(before, after, r, r2)[v, b]) == pytest.approx(float(0.5 * (gain + loss)), rel=1e-9)


def test_effect_by_hand() -> None:
    """P = (.5, .25, .25) → P* = (.25, .5, .25): r′ doubles (+1), r halves ((.5−.25)/.25 = 1), so the effect is 1."""
    before, after = (torch.tensor([p]).log() for p in ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]))
    assert float(effect(before, after, torch.tensor([0]), torch.tensor([1]))) == pytest.approx(1.0)


@given(seeds)
def test_effect_range_and_invariance(seed: int) -> None:
    before, after = random_logits(seed, 4, 6), random_logits(seed + 1, 4, 6)
    r, r2 = torch.tensor([0, 1, 2, 3]), torch.tensor([5, 4, 0, 1])
    value = effect(before, after, r, r2)
    assert torch.allclose(value, effect(before + 3.5, after - 7.25, r, r2))
    assert float(value.min()) >= -1
    assert float(effect(before, before, r, r2).abs().max()) == 0


def test_effect_stays_finite_where_probabilities_underflow() -> None:
    before = torch.tensor([[0.0, -120.0, 0.0]])  # P(r′) is 1e-52: zero in single precision
    after = torch.tensor([[0.0, -119.0, 0.0]])
    value = effect(before, after, torch.tensor([0]), torch.tensor([1]))
    assert float(value) == pytest.approx(0.5 * (np.e - 1), rel=1e-4)


def test_log_probability() -> None:
    logits = random_logits(0, 2, 3, 7)
    tokens = torch.tensor([1, 6, 0])
    want = torch.stack([logits.log_softmax(-1)[:, i, t] for i, t in enumerate(tokens)], dim=1)
    assert torch.allclose(log_probability(logits, tokens), want)


def test_interval_of_a_share_is_the_binomial_one() -> None:
    values = np.repeat([0, 1], [300, 700])
    mean = bootstrap_mean(values, random=np.random.default_rng(0))
    half = 1.96 * np.sqrt(0.7 * 0.3 / 1000)
    assert (mean.value, mean.n) == (0.7, 1000)
    assert mean.low == pytest.approx(0.7 - half, abs=0.004)
    assert mean.high == pytest.approx(0.7 + half, abs=0.004)


def test_both_ways_of_resampling_agree() -> None:
    """Many distinct values are drawn one by one, few through their counts: the same distribution."""
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


def test_groups_weigh_the_same() -> None:
    mean = bootstrap_mean([1.0] * 10, [0.0] * 1000, random=np.random.default_rng(0))
    assert (mean.value, mean.low, mean.high, mean.n) == (0.5, 0.5, 0.5, 1010)


def test_nothing_to_average() -> None:
    mean = bootstrap_mean([], random=np.random.default_rng(0))
    assert mean.n == 0
    assert np.isnan([mean.value, mean.low, mean.high]).all()

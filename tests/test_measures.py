from __future__ import annotations

import sys
from math import comb
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from arithscope.stats.measures import (
    BOOTSTRAP_ROWS,
    EFFECTS,
    RESAMPLES,
    RIDGE,
    Mean,
    average,
    bootstrap_mean,
    bootstrap_means,
    bootstrap_ratios,
    difference,
    effect,
    effects,
    faithfulness,
    log_probability,
    logistic,
    normalized_logit,
    resampled_means,
    sign_test,
    standardised,
)

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
    certain = torch.tensor([[0.0, -200.0, -200.0]])
    opposite = torch.tensor([[-200.0, 0.0, -200.0]])
    cut_off = float(effect(certain, opposite, torch.tensor([0]), torch.tensor([1])))
    assert cut_off == pytest.approx(np.exp(80.0), rel=1e-5)


@given(seeds)
def test_log_ratio_effect_is_its_formula_and_antisymmetric(seed: int) -> None:
    before, after = random_logits(seed, 5, 9), random_logits(seed + 1, 5, 9)
    r, r2 = torch.arange(5), torch.arange(5) + 2
    found = effects(before, after, r, r2)
    p, q = before.softmax(-1), after.softmax(-1)
    for b in range(5):
        want = 0.5 * (torch.log(q[b, r2[b]] / p[b, r2[b]]) + torch.log(p[b, r[b]] / q[b, r[b]]))
        assert float(found["log_ratio"][b]) == pytest.approx(float(want), rel=1e-9)
    assert torch.allclose(found["log_ratio"], -effects(after, before, r, r2)["log_ratio"])
    near = effects(before, before + 1e-6 * after, r, r2)
    assert torch.allclose(near["log_ratio"], near["probability"], rtol=1e-3, atol=1e-9)


def test_logit_effect_by_hand() -> None:
    """Centred logits (4, −2, −2) → (2.5, 1, −3.5): r′ rises by 3 of size 2, r falls by 1.5 to a size of 2.5: ½ (1.5 + 0.6)."""
    before, after = torch.tensor([[4.0, -2.0, -2.0]]), torch.tensor([[2.5, 1.0, -3.5]])
    answer, other = torch.tensor([0]), torch.tensor([1])
    for shift in (0.0, 5.0):
        found = effects(before + shift, after - shift, answer, other)["logit"]
        assert float(found) == pytest.approx(1.05)


@given(seeds)
def test_every_effect_is_zero_where_nothing_changes_and_ignores_constants(seed: int) -> None:
    before, after = random_logits(seed, 4, 6), random_logits(seed + 1, 2, 4, 6)
    r, r2 = torch.tensor([0, 1, 2, 3]), torch.tensor([5, 4, 0, 1])
    shifted, plain = effects(before + 1.5, after - 2.25, r, r2), effects(before, after, r, r2)
    assert tuple(plain) == EFFECTS
    assert torch.equal(plain["probability"], effect(before, after, r, r2))
    for measure in EFFECTS:
        assert float(effects(before, before, r, r2)[measure].abs().max()) == 0
        assert torch.allclose(shifted[measure], plain[measure])


@given(seeds)
def test_normalized_logit(seed: int) -> None:
    logits, answer = random_logits(seed, 3, 4, 7), torch.tensor([0, 6, 2, 3])
    found = normalized_logit(logits, answer)
    for v in range(3):
        for b in range(4):
            z = logits[v, b] - logits[v, b].mean()
            assert float(found[v, b]) == pytest.approx(float(z[answer[b]] / z.max()))
    assert torch.equal(found == 1, logits.argmax(-1) == answer)
    assert float(found.max()) <= 1
    assert torch.allclose(normalized_logit(2.5 * logits + 3, answer), found)
    raw = normalized_logit(logits, answer, centre=False)
    assert torch.allclose(raw, logits.gather(-1, answer.expand(3, 4)[..., None])[..., 0] / logits.amax(-1))


def test_faithfulness_by_hand() -> None:
    """Prompt 1 goes half of the way, prompt 2 all of it, prompt 3 has no way to go and is left out."""
    empty, model = np.array([0.2, 0.0, 0.9999]), np.array([1.0, 1.0, 1.0])
    circuit = np.array([[0.6, 1.0, 0.5]])
    [mean] = faithfulness(circuit, empty, model, np.random.default_rng(0))
    assert mean.value == pytest.approx(0.75)
    assert mean.n == 2
    assert (mean.low, mean.high) == pytest.approx((0.5, 1.0))
    [ratio] = faithfulness(circuit, empty, model, np.random.default_rng(0), ratio_of_means=True)
    assert ratio.value == pytest.approx((0.4 + 1.0 - 0.4999) / (0.8 + 1.0 + 0.0001))
    assert ratio.n == 3


def test_faithfulness_where_the_way_is_short_or_leads_down() -> None:
    """A way of SMALLEST_SPAN, 0.001, is just long enough, one half as long is not; a model below nothing has a way too."""
    empty, model = np.array([0.0, 0.0, 0.5]), np.array([1e-3, 5e-4, 0.0])
    [mean] = faithfulness(np.array([[5e-4, 0.0, 0.25]]), empty, model, np.random.default_rng(0))
    assert (mean.value, mean.n) == (pytest.approx(0.5), 2)


@given(seeds)
def test_faithfulness_of_nothing_and_of_everything(seed: int) -> None:
    random = np.random.default_rng(seed)
    empty, model = random.uniform(-1, 0.5, 9), random.uniform(0.6, 1, 9)
    circuits = np.stack([empty, model, 0.5 * (empty + model)])
    for ratio_of_means in (False, True):
        nothing, everything, half = faithfulness(
            circuits, empty, model, np.random.default_rng(0), ratio_of_means=ratio_of_means
        )
        assert [m.value for m in (nothing, everything, half)] == pytest.approx([0, 1, 0.5])
        assert [m.low for m in (nothing, everything, half)] == pytest.approx([0, 1, 0.5])
        again = faithfulness(3 * circuits - 1, 3 * empty - 1, 3 * model - 1, np.random.default_rng(0))
        assert [m.value for m in again] == pytest.approx([0, 1, 0.5])


def test_faithfulness_without_a_prompt() -> None:
    [mean] = faithfulness(np.array([[1.0]]), np.array([1.0]), np.array([1.0]), np.random.default_rng(0))
    assert mean.n == 0
    assert np.isnan([mean.value, mean.low, mean.high]).all()


def test_log_probability() -> None:
    logits = random_logits(0, 2, 3, 7)
    tokens = torch.tensor([1, 6, 0])
    want = torch.stack([logits.log_softmax(-1)[:, i, t] for i, t in enumerate(tokens)], dim=1)
    assert torch.allclose(log_probability(logits, tokens), want)


def test_where_there_is_a_kernel_for_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers from its sums; it is for float32, and has no gradient."""
    before, after = random_logits(0, 3, 7).float(), random_logits(1, 2, 3, 7).float()
    r, r2 = torch.tensor([1, 6, 0]), torch.tensor([2, 0, 5])
    plain, probability = effects(before, after, r, r2), log_probability(after, r)
    asked: list[torch.Size] = []

    def sums(logits: torch.Tensor) -> torch.Tensor:
        asked.append(logits.shape)
        return torch.stack([logits.logsumexp(-1), logits.mean(-1)])

    monkeypatch.setattr("arithscope.stats.measures.runs_kernels", lambda device: device == torch.device("cpu"))
    monkeypatch.setitem(sys.modules, "arithscope.stats.triton_sums", SimpleNamespace(sums=sums))
    again = effects(before, after, r, r2)
    assert asked == [before.shape, after.shape]
    for measure in EFFECTS:
        assert torch.allclose(again[measure], plain[measure], rtol=1e-4)
    assert torch.allclose(log_probability(after, r), probability)
    assert len(asked) == 3
    log_probability(after.double(), r)
    log_probability(after.clone().requires_grad_(), r).sum().backward()
    assert len(asked) == 3


def test_interval_of_a_share_is_the_binomial_one() -> None:
    values = np.repeat([0, 1], [300, 700])
    mean = bootstrap_mean(values, random=np.random.default_rng(0))
    half = 1.96 * np.sqrt(0.7 * 0.3 / 1000)
    assert (mean.value, mean.n) == (0.7, 1000)
    assert mean.low == pytest.approx(0.7 - half, abs=0.004)
    assert mean.high == pytest.approx(0.7 + half, abs=0.004)


def test_the_interval_is_that_of_the_resampled_means() -> None:
    for values in (np.repeat([0, 1], [30, 70]), np.random.default_rng(1).exponential(1.0, 30)):
        mean = bootstrap_mean(values, np.random.default_rng(0))
        want = np.quantile(resampled_means(values, np.random.default_rng(0)), [0.025, 0.975])
        assert [mean.low, mean.high] == pytest.approx(want.tolist())


@pytest.mark.parametrize("at", [0, 1, 19])
def test_every_value_is_drawn_as_often_as_any_other(at: int) -> None:
    x = np.arange(20) / 1000
    x[at] = 20.0  # so that the mean of a resample is about the number of times it was drawn
    times = resampled_means(x, np.random.default_rng(0)).round()
    shares = [float(np.mean(times == k)) for k in range(3)]
    assert shares == pytest.approx([comb(20, k) * 0.05**k * 0.95 ** (20 - k) for k in range(3)], abs=0.05)


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


def test_nothing_to_average() -> None:
    mean = bootstrap_mean([], random=np.random.default_rng(0))
    assert mean.n == 0
    assert np.isnan([mean.value, mean.low, mean.high]).all()


def test_rows_are_resampled_as_one_by_one() -> None:
    values = np.random.default_rng(0).exponential(1.0, (3, 80))
    together = bootstrap_means(values, np.random.default_rng(1))
    for row, mean in zip(values, together, strict=True):
        alone = bootstrap_mean(row, random=np.random.default_rng(2))
        assert mean.value == pytest.approx(alone.value)
        assert mean.n == alone.n
        assert mean.low == pytest.approx(alone.low, abs=0.03)
        assert mean.high == pytest.approx(alone.high, abs=0.03)


def test_rows_share_their_resamples() -> None:
    """So two rows that differ by a constant have intervals that differ by just that."""
    values = np.random.default_rng(0).normal(size=50)
    a, b = bootstrap_means(np.stack([values, values + 2]), np.random.default_rng(1))
    assert [b.low - a.low, b.high - a.high] == pytest.approx([2, 2])


def test_ratios_of_means_against_a_loop() -> None:
    random = np.random.default_rng(0)
    above, below = random.uniform(1, 2, (5000, 4)), random.uniform(2, 3, (5000, 4))
    found = bootstrap_ratios(above, below, np.random.default_rng(1))
    assert len(found) == 5000 > BOOTSTRAP_ROWS  # more than are resampled at a time
    counts = np.random.default_rng(1).multinomial(4, np.full(4, 1 / 4), size=RESAMPLES)
    for i in (0, BOOTSTRAP_ROWS - 1, BOOTSTRAP_ROWS, 4999):
        resampled = [np.average(above[i], weights=c) / np.average(below[i], weights=c) for c in counts]
        assert found[i].value == pytest.approx(above[i].mean() / below[i].mean())
        assert [found[i].low, found[i].high] == pytest.approx(np.quantile(resampled, [0.025, 0.975]))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_ratios_where_a_resample_may_have_nothing_below() -> None:
    """0 ÷ 0 has no quantiles; the ratio of all, and other rows, have theirs."""
    above, below = np.array([[1.0, 0.0, 2.0], [1.0, 1.0, 2.0]]), np.array([[2.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    some, sound = bootstrap_ratios(above, below, np.random.default_rng(0))
    assert some.value == pytest.approx(1.0)
    assert np.isnan([some.low, some.high]).all()
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


def test_the_interval_of_a_difference_covers() -> None:
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
    assert [found.intercept.value, *(c.value for c in found.coefficients)] == pytest.approx(want.tolist(), abs=1e-4)
    for mean in (found.intercept, *found.coefficients, found.auc):
        assert mean.low <= mean.value <= mean.high
    z = standardised(x) @ want[1:]
    pairs = [(z[i] > z[j]) + 0.5 * (z[i] == z[j]) for i in np.flatnonzero(y) for j in np.flatnonzero(~y)]
    assert found.auc.value == pytest.approx(np.mean(pairs))


def test_logistic_where_one_feature_tells_everything() -> None:
    """Coefficients stay finite, and a constant feature says nothing."""
    x = np.column_stack([np.arange(40.0), np.ones(40)])
    found = logistic(x, np.arange(40) >= 20, np.random.default_rng(0))
    assert found.auc.value == 1
    assert 2 < found.coefficients[0].value < 50
    assert found.coefficients[0].low > 1
    assert found.coefficients[1].value == 0
    for outcome in (np.ones(40, dtype=bool), np.zeros(40, dtype=bool)):
        nothing = logistic(x, outcome, np.random.default_rng(0))
        assert len(nothing.coefficients) == 2
        for mean in (nothing.intercept, *nothing.coefficients, nothing.auc):
            assert np.isnan([mean.value, mean.low, mean.high]).all()
            assert mean.n == 40


@pytest.mark.parametrize("rare", [True, False])
def test_logistic_intervals_against_a_general_optimiser(rare: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every resample fitted anew. The rarer outcome occurs once, so many resamples lack it and are left out."""
    monkeypatch.setattr("arithscope.stats.measures.RESAMPLES", 40)
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
    for i, mean in enumerate((found.intercept, *found.coefficients, found.auc)):
        assert mean.n == 9
        assert [mean.low, mean.high] == pytest.approx(
            np.quantile(fits, [0.025, 0.975], axis=0)[:, i].tolist(), abs=1e-4
        )


def test_standardised_by_hand() -> None:
    x = np.array([[0.1, 10.0, 4.0], [0.3, 10.0, 12.0]])
    assert standardised(x) == pytest.approx(np.array([[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]]))


def test_intervals_of_coefficients_cover() -> None:
    """Without any effect the interval of a coefficient contains 0 about as often as it says."""
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(60):
        c = logistic(random.normal(size=(60, 1)), random.random(60) < 0.5, random).coefficients[0]
        inside += c.low <= 0 <= c.high
    assert inside >= 50


def test_intervals_of_very_many_values() -> None:
    """Neighbours are put together: the mean is the same, and the interval that of the central limit theorem."""
    x = np.random.default_rng(0).exponential(2.0, 90_001) ** 2
    found = bootstrap_mean(x, np.random.default_rng(1))
    assert found.value == x.mean()
    half = 1.96 * x.std() / len(x) ** 0.5
    assert [found.low, found.high] == pytest.approx([x.mean() - half, x.mean() + half], abs=0.1 * half)
    means = resampled_means(x, np.random.default_rng(2))
    assert means.std() == pytest.approx(x.std() / len(x) ** 0.5, rel=0.08)

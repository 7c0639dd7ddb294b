"""Effects against the paper's formulas and by hand."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arithscope.stats.effects import EFFECTS, effect, effects, log_probability

seeds = st.integers(0, 10_000)


def random_logits(seed: int, *shape: int, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


@given(seeds)
def test_effect_is_the_papers_formula(seed: int) -> None:
    before, after = random_logits(seed, 5, 9), random_logits(seed + 1, 3, 5, 9)
    r, r2 = torch.arange(5), torch.arange(5) + 2
    p, p2 = before.softmax(-1), after.softmax(-1)
    found = effect(before, after, r, r2)
    for v in range(3):
        for b in range(5):
            gain = (p2[v, b, r2[b]] - p[b, r2[b]]) / p[b, r2[b]]
            loss = (p[b, r[b]] - p2[v, b, r[b]]) / p2[v, b, r[b]]
            assert float(found[v, b]) == pytest.approx(float(0.5 * (gain + loss)), rel=1e-9)


def test_effect_by_hand() -> None:
    """P = (.5, .25, .25) → P* = (.25, .5, .25): r′ doubles (+1), r halves ((.5−.25)/.25 = 1), so the effect is 1."""
    before, after = (torch.tensor([p]).log() for p in ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]))
    assert float(effect(before, after, torch.tensor([0]), torch.tensor([1]))) == pytest.approx(1.0)


@given(seeds)
def test_effect_is_at_least_minus_one_and_ignores_constants(seed: int) -> None:
    before, after = random_logits(seed, 4, 6), random_logits(seed + 1, 4, 6)
    r, r2 = torch.tensor([0, 1, 2, 3]), torch.tensor([5, 4, 0, 1])
    value = effect(before, after, r, r2)
    assert torch.allclose(value, effect(before + 3.5, after - 7.25, r, r2))
    assert float(value.min()) >= -1
    assert float(effect(before, before, r, r2).abs().max()) == 0


def test_effect_stays_finite_when_probabilities_underflow() -> None:
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
    """Centred logits (4, −2, −2) → (2.5, 1, −3.5): r′ rises by 3 ÷ 2, r falls by 1.5 ÷ 2.5: ½ (1.5 + 0.6)."""
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


def test_log_probability() -> None:
    logits = random_logits(0, 2, 3, 7)
    tokens = torch.tensor([1, 6, 0])
    want = torch.stack([logits.log_softmax(-1)[:, i, t] for i, t in enumerate(tokens)], dim=1)
    assert torch.allclose(log_probability(logits, tokens), want)


def test_the_kernel_path_gives_the_same_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is used for float32 without gradients only."""
    before, after = random_logits(0, 3, 7).float(), random_logits(1, 2, 3, 7).float()
    r, r2 = torch.tensor([1, 6, 0]), torch.tensor([2, 0, 5])
    plain, probability = effects(before, after, r, r2), log_probability(after, r)
    shapes: list[torch.Size] = []

    def sums(logits: torch.Tensor) -> torch.Tensor:
        shapes.append(logits.shape)
        return torch.stack([logits.logsumexp(-1), logits.mean(-1)])

    monkeypatch.setattr("arithscope.stats.effects.runs_kernels", lambda device: device == torch.device("cpu"))
    monkeypatch.setitem(sys.modules, "arithscope.stats.triton_sums", SimpleNamespace(sums=sums))
    again = effects(before, after, r, r2)
    assert shapes == [before.shape, after.shape]
    for measure in EFFECTS:
        assert torch.allclose(again[measure], plain[measure], rtol=1e-4)
    assert torch.allclose(log_probability(after, r), probability)
    assert len(shapes) == 3
    log_probability(after.double(), r)
    log_probability(after.clone().requires_grad_(), r).sum().backward()
    assert len(shapes) == 3

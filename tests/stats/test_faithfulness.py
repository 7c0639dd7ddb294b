"""Normalised logits and faithfulness against their formulas and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given

from arithscope.stats.faithfulness import faithfulness, normalized_logit
from arithscope.stats.intervals import unit_mean
from tests.stats.test_effects import random_logits, seeds


@given(seeds)
def test_normalized_logit_is_its_formula(seed: int) -> None:
    logits, answer = random_logits(seed, 3, 4, 7), torch.tensor([0, 6, 2, 3])
    found = normalized_logit(logits, answer)
    for v in range(3):
        for b in range(4):
            z = logits[v, b] - logits[v, b].mean()
            assert float(found[v, b]) == pytest.approx(float(z[answer[b]] / z.max()))
    assert torch.equal(found == 1, logits.argmax(-1) == answer)
    assert float(found.max()) <= 1
    assert torch.allclose(normalized_logit(2.5 * logits + 3, answer), found)


def test_faithfulness_by_hand() -> None:
    """The circuit goes half of the way on prompt 1 and all of it on prompt 2; prompt 3 has no span and is left out."""
    empty, model = np.array([0.2, 0.0, 0.9999]), np.array([1.0, 1.0, 1.0])
    circuit = np.array([[0.6, 1.0, 0.5]])
    [mean] = faithfulness(circuit, empty, model)
    assert mean.value == pytest.approx(0.75)
    assert mean.n == 2
    assert mean == unit_mean([0.5, 1.0])


def test_faithfulness_where_the_span_is_small_or_negative() -> None:
    """A span of SMALLEST_SPAN, 0.001, is just large enough and half of it is not; a negative span counts."""
    empty, model = np.array([0.0, 0.0, 0.5]), np.array([1e-3, 5e-4, 0.0])
    [mean] = faithfulness(np.array([[5e-4, 0.0, 0.25]]), empty, model)
    assert (mean.value, mean.n) == (pytest.approx(0.5), 2)


@given(seeds)
def test_faithfulness_of_the_empty_circuit_and_the_whole_model(seed: int) -> None:
    random = np.random.default_rng(seed)
    empty, model = random.uniform(-1, 0.5, 9), random.uniform(0.6, 1, 9)
    circuits = np.stack([empty, model, 0.5 * (empty + model)])
    nothing, everything, half = faithfulness(circuits, empty, model)
    assert [m.value for m in (nothing, everything, half)] == pytest.approx([0, 1, 0.5])
    assert all(m.low <= m.value <= m.high <= 1 for m in (nothing, everything, half))
    assert everything.low < 1
    again = faithfulness(3 * circuits - 1, 3 * empty - 1, 3 * model - 1)
    assert [m.value for m in again] == pytest.approx([0, 1, 0.5])


def test_faithfulness_without_a_prompt() -> None:
    [mean] = faithfulness(np.array([[1.0]]), np.array([1.0]), np.array([1.0]))
    assert mean.n == 0
    assert np.isnan([mean.value, mean.low, mean.high]).all()

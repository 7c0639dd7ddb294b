"""Counting against Python sets: every kind of heuristic, every operator, random and tied activations."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from arithscope.heuristics.neuron_matching import NeuronBatch
from arithscope.heuristics.overlaps import count_overlaps, histogram, is_match, top_prompts
from tests.heuristics import brute
from tests.heuristics.catalogues import CATALOGUES, LIMITS, MAX_OPERAND, activation_maps, operators, pairs_of


@operators
def test_every_overlap_against_sets(operator: str) -> None:
    sets = CATALOGUES[operator]
    prompts = pairs_of(sets)
    assert sorted(prompts) == brute.legal(operator, MAX_OPERAND, LIMITS[operator])
    tie_order = {p: i for i, p in enumerate(prompts)}
    logits = np.random.default_rng(1).integers(-2, 3, (7, 130)).astype(np.float32)
    neurons = NeuronBatch(activation_maps(), logits)
    activations, on_answer = neurons.on_prompts(range(7), sets)
    found = {
        False: count_overlaps(top_prompts(activations, sets.max_k), sets.indirect),
        True: count_overlaps(top_prompts(activations * on_answer, sets.max_k), sets.direct),
    }
    kinds = set()
    for direct, group in ((False, sets.indirect), (True, sets.direct)):
        for i, h in enumerate(group.heuristics):
            kinds.add((h.kind, h.on))
            assert h.direct is direct
            for row in {i % 7, (i + 3) % 7}:
                value = {
                    (a, b): float(neurons.activations[row, a, b])
                    * (float(logits[row, brute.answer(operator, a, b)]) if direct else 1.0)
                    for a, b in prompts
                }
                want = brute.overlap(str(h), operator, value, tie_order)
                assert (int(found[direct][row, i]), int(group.sizes[i])) == want
    places = [("range", on) for on in ("op1", "op2", "result", "op1, op2")]
    places += [("modulo", on) for on in ("op1", "op2", "result", "op1, op2")]
    assert kinds == {*places, *(("pattern", on) for on in ("op1", "op2", "result")), ("identical", "op1, op2")}


@operators
def test_the_top_prompts_suffice_for_small_heuristics(operator: str) -> None:
    sets = CATALOGUES[operator]
    noise = torch.randn(5, len(sets), generator=torch.Generator().manual_seed(2))
    for group in sets.groups:
        every = count_overlaps(top_prompts(noise), group)
        for largest in group.sizes.unique().tolist():
            small = group.sizes <= largest
            assert (count_overlaps(top_prompts(noise, largest), group)[:, small] == every[:, small]).all()


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50), st.integers(1, 60))
def test_top_prompts_is_a_stable_sort(values: list[float], k: int) -> None:
    want = sorted(range(len(values)), key=lambda i: (-values[i], i))
    rows = torch.tensor([values, values[::-1]], dtype=torch.float32)
    assert top_prompts(rows)[0].tolist() == want
    assert top_prompts(rows, k)[0].tolist() == want[:k]


def test_three_of_five_match() -> None:
    overlap, size = torch.tensor([3, 2, 6, 59, 60, 12]), torch.tensor([5, 4, 10, 100, 100, 20])
    assert is_match(overlap, size).tolist() == [True, False, True, False, True, True]


def test_histograms_by_hand() -> None:
    """Integers, since very many bins are summed."""
    found = histogram(torch.tensor([[0, 2, 2], [1, 1, 1]]), 4)
    assert found.tolist() == [[1, 0, 2, 0], [0, 3, 0, 0]]
    assert found.dtype is torch.int32

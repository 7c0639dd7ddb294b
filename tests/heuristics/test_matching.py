"""Counting against Python sets: every kind of heuristic, every operator, random and tied patterns."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from arithscope.heuristics.classification import NeuronBatch
from arithscope.heuristics.matching import histogram, is_match, order, overlaps
from tests.heuristics import brute
from tests.heuristics.catalogues import CATALOGUES, LIMITS, MAX_OPERAND, operators, pairs_of, patterns


@operators
def test_every_overlap_against_sets(operator: str) -> None:
    sets = CATALOGUES[operator]
    prompts = pairs_of(sets)
    assert sorted(prompts) == brute.legal(operator, MAX_OPERAND, LIMITS[operator])
    tie_order = {p: i for i, p in enumerate(prompts)}
    logits = np.random.default_rng(1).integers(-2, 3, (7, 130)).astype(np.float32)
    neurons = NeuronBatch(patterns(sets), logits)
    activations, on_answer = neurons.on_prompts(range(7), sets)
    found = {
        False: torch.maximum(*(overlaps(order(x, sets.depth), sets.indirect) for x in (activations, -activations))),
        True: overlaps(order(activations * on_answer, sets.depth), sets.direct),
    }
    kinds = set()
    for direct, side in ((False, sets.indirect), (True, sets.direct)):
        for i, h in enumerate(side.heuristics):
            kinds.add((h.kind, h.on))
            assert h.direct is direct
            for row in {i % 7, (i + 3) % 7}:
                value = {
                    (a, b): float(neurons.activations[row, a, b])
                    * (float(logits[row, brute.answer(operator, a, b)]) if direct else 1.0)
                    for a, b in prompts
                }
                want = brute.overlap(str(h), operator, value, tie_order, both_signs=not direct)
                assert (int(found[direct][row, i]), int(side.sizes[i])) == want
    places = [("range", on) for on in ("op1", "op2", "result", "op1, op2")]
    places += [("modulo", on) for on in ("op1", "op2", "result", "op1, op2")]
    assert kinds == {*places, *(("pattern", on) for on in ("op1", "op2", "result")), ("identical", "op1, op2")}


@operators
def test_the_foremost_prompts_suffice_for_small_heuristics(operator: str) -> None:
    sets = CATALOGUES[operator]
    noise = torch.randn(5, len(sets), generator=torch.Generator().manual_seed(2))
    for side in (sets.indirect, sets.direct):
        every = overlaps(order(noise), side)
        for largest in side.sizes.unique().tolist():
            small = side.sizes <= largest
            assert (overlaps(order(noise, largest), side)[:, small] == every[:, small]).all()


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50), st.integers(1, 60))
def test_order_is_a_stable_sort(values: list[float], first: int) -> None:
    want = sorted(range(len(values)), key=lambda i: (-values[i], i))
    rows = torch.tensor([values, values[::-1]], dtype=torch.float32)
    assert order(rows)[0].tolist() == want
    assert order(rows, first)[0].tolist() == want[:first]


def test_three_of_five_match() -> None:
    overlap, size = torch.tensor([3, 2, 6, 59, 60, 12]), torch.tensor([5, 4, 10, 100, 100, 20])
    assert is_match(overlap, size).tolist() == [True, False, True, False, True, True]


def test_histograms_by_hand() -> None:
    """In integers, as sums over very many cells are taken of them."""
    found = histogram(torch.tensor([[0, 2, 2], [1, 1, 1]]), 4)
    assert found.tolist() == [[1, 0, 2, 0], [0, 3, 0, 0]]
    assert found.dtype is torch.int32

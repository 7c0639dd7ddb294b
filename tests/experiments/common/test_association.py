"""Which neurons are associated with which prompts, against enumeration from the text of the heuristics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arithscope.experiments.classify import CALIBRATED, RAW
from arithscope.experiments.common.association import (
    NO_RANK,
    Association,
    association,
    matched_random_neurons,
)
from arithscope.prompts import OPERATORS, Prompts, legal_prompts, random_source, sample
from tests.experiments.bags import Match, made_up
from tests.families import small
from tests.heuristics import brute

TEXTS = [
    "op1 in [0, 10]",
    "op2 mod 3 = 1",
    "result ~ .1.",
    "result in [5, 15]",
    "op1 = op2",
    "result in {2, 3}",
    "op1, op2 mod 2 = 0",
]
TOP = [(1, 4), (1, 0), (1, 7), (3, 2), (3, 9)]


@st.composite
def bags(draw: Any) -> tuple[str, list[Match]]:
    pairs = draw(st.lists(st.tuples(st.sampled_from(TOP), st.sampled_from(TEXTS)), max_size=20, unique=True))
    scores = draw(st.lists(st.sampled_from([0.6, 0.7, 0.85, 1.0]), min_size=len(pairs), max_size=len(pairs)))
    kept = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    operator = draw(st.sampled_from(OPERATORS))
    return operator, [(*n, t, s, c) for (n, t), s, c in zip(pairs, scores, kept, strict=True)]


def some_prompts(operator: str, n: int, seed: int) -> Prompts:
    return sample(legal_prompts(operator, 30, 1000), n, random_source(seed, "test"))


@given(bags(), st.integers(0, 1000), st.sampled_from([RAW, CALIBRATED]))
def test_associations_equal_enumeration(drawn: tuple[str, list[Match]], seed: int, criterion: str) -> None:
    operator, matches = drawn
    bag = association(made_up(operator, TOP, matches), operator, criterion)
    prompts = some_prompts(operator, 6, seed)
    used = [m for m in matches if criterion == RAW or m[4]]
    scores = bag.best_scores(prompts)
    for column, (a, b) in enumerate(zip(prompts.op1.tolist(), prompts.op2.tolist(), strict=True)):
        for row, neuron in enumerate(TOP):
            held = [
                s for *n, t, s, _ in used if tuple(n) == neuron and brute.rule(t)(a, b, brute.answer(operator, a, b))
            ]
            assert scores[row, column] == max(held, default=0)
    assert bag.classified.tolist() == [any((layer, n) == neuron for layer, n, *_ in used) for neuron in TOP]
    for i, h in enumerate(bag.heuristics):
        assert bag.members(i).tolist() == [any(m[:3] == (*neuron, str(h)) for m in used) for neuron in TOP]
    assert {str(h) for h in bag.heuristics} == {t for *_, t, _, _ in used}


def plain_bag(layers: list[int]) -> Association:
    top = [(layer, n) for n, layer in enumerate(sorted(layers))]
    return association(made_up("+", top, []), "+", RAW)


@given(st.data())
def test_ranks_are_per_layer_and_prompt(data: st.DataObject) -> None:
    bag = plain_bag(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=12)))
    values = st.sampled_from([np.nan, 0.0, 0.5, 0.5, 1.0])
    preference = np.array([data.draw(st.lists(values, min_size=len(bag), max_size=len(bag))) for _ in range(2)]).T
    ranks = bag.ranks(preference)
    for column in range(2):
        for layer in set(bag.layers.tolist()):
            rows = [i for i in range(len(bag)) if bag.layers[i] == layer]
            order = sorted(
                (i for i in rows if not np.isnan(preference[i, column])), key=lambda i: -preference[i, column]
            )
            assert [ranks[i, column] for i in order] == list(range(len(order)))
            assert all(ranks[i, column] == NO_RANK for i in rows if i not in order)


@given(st.data())
def test_random_neurons_are_matched_by_layer(data: st.DataObject) -> None:
    bag = plain_bag(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=12)))
    flags = st.lists(st.booleans(), min_size=len(bag), max_size=len(bag))
    members, candidates = (np.array(data.draw(flags)) for _ in range(2))
    found = matched_random_neurons(bag, members, candidates, np.random.default_rng(0))
    assert not (found & ~candidates).any()
    for layer in set(bag.layers.tolist()):
        here = bag.layers == layer
        assert found[here].sum() == min(members[here].sum(), candidates[here].sum())


@settings(max_examples=20)
@given(st.data())
def test_zero_ablation_masks_the_chosen_neurons(data: st.DataObject) -> None:
    model = small("llama", "sdpa")
    bag = association(made_up("+", [(0, 5), (0, 1), (2, 40)], []), "+", RAW)
    flags = st.lists(st.booleans(), min_size=12, max_size=12)
    chosen = np.array(data.draw(flags)).reshape(2, 2, 3)
    edits = {e.layer: e for e in bag.zero_ablation(model, chosen)}
    assert set(edits) == {layer for layer, rows in ((0, [0, 1]), (2, [2])) if chosen[..., rows].any()}
    for layer, e in edits.items():
        want = torch.zeros(2, 2, model.sizes.neurons, dtype=torch.bool)
        for row, (at, neuron) in enumerate([(0, 5), (0, 1), (2, 40)]):
            if at == layer:
                want[..., neuron] = torch.from_numpy(chosen[..., row])
        assert e.mask.equal(want)
        assert list(e.positions) == [4]
        assert float(e.values.abs().sum()) == 0


def test_an_empty_bag() -> None:
    bag = association(made_up("+", TOP, []), "+", RAW)
    prompts = some_prompts("+", 3, 0)
    assert bag.holds(prompts).shape == (0, 3)
    assert bag.best_scores(prompts) == pytest.approx(np.zeros((5, 3)))
    assert not bag.classified.any()

"""Discriminants in closed form against generic least squares, and on states in which something is planted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from arithscope.stats.discriminants import FAINT, RIDGE, classified

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def counted(of_item: Ints, values: Ints, states: int) -> torch.Tensor:
    table = np.zeros((states, values.max() + 1))
    np.add.at(table, (of_item, values), 1)
    return torch.from_numpy(table)


def found(states: Floats, of_item: Ints, *variables: Ints) -> list[Ints]:
    return classified(torch.from_numpy(states), [counted(of_item, values, len(states)) for values in variables])


def plain_scores(states: Floats, of_item: Ints, values: Ints) -> Floats:
    """δ of each state and value, item by item, with W⁻¹μ by least squares: W = AᵀA, where A holds each item's distance from the
    mean of its value, and below √λ times the unit matrix."""
    x, n, width = states[of_item], len(of_item), states.shape[1]
    centre = x.mean(0)
    ridge = (RIDGE * np.square(x - centre).sum() + FAINT * np.square(x).sum()) / width
    means = np.stack([x[values == k].mean(0) for k in range(values.max() + 1)]) - centre
    a = np.concatenate([x - centre - means[values], np.sqrt(ridge) * np.eye(width)])
    # The smallest y with Aᵀy = μ is AW⁻¹μ.
    y = np.linalg.lstsq(a.T, means.T, rcond=None)[0]
    solved = np.linalg.lstsq(a, y, rcond=None)[0]
    shares = np.bincount(values) / n
    return n * ((states - centre) @ solved - 0.5 * (means.T * solved).sum(0)) + np.log(shares)


@pytest.mark.parametrize(("items", "width"), [(400, 12), (40, 60)])  # fewer items than dimensions, too
def test_they_equal_generic_least_squares(items: int, width: int) -> None:
    random = np.random.default_rng(items)
    states = random.normal(size=(items // 2, width)) * random.uniform(0.01, 3, width) + random.normal(size=width)
    of_item = random.integers(
        0, len(states) - 10, items
    )  # some states are no training item's, and others are of several
    variables = [np.append(np.arange(k), random.integers(0, k, items - k)) for k in (2, 3, 10)]
    for values, own in zip(variables, found(states, of_item, *variables), strict=True):
        scores = plain_scores(states, of_item, values)
        np.testing.assert_array_equal(own, scores.argmax(1))
        assert len(np.unique(own)) > values.max() / 2


def test_rotations_and_scales_change_nothing() -> None:
    random = np.random.default_rng(0)
    states, values = random.normal(size=(300, 9)) * np.arange(1, 10), random.integers(0, 4, 300)
    rotation = np.linalg.qr(random.normal(size=(9, 9)))[0]
    [before] = found(states, np.arange(200), values[:200])
    [after] = found(100 * states @ rotation, np.arange(200), values[:200])
    np.testing.assert_array_equal(before, after)


def test_what_is_planted_is_found_and_nothing_else() -> None:
    random = np.random.default_rng(1)
    digits = random.integers(0, 10, 2000)
    states = random.normal(size=(2000, 64))
    states += 4 * random.normal(size=(10, 64))[digits] / 8
    planted, shuffled = found(states, np.arange(1600), digits[:1600], random.permutation(digits[:1600]))
    assert (planted == digits)[1600:].mean() > 0.9
    assert (shuffled == digits)[1600:].mean() < 0.16  # four standard errors above 0.1


def test_digits_on_a_line_are_all_found() -> None:
    """Regression on indicators, which is as cheap, gives hardly any but the outermost."""
    random = np.random.default_rng(2)
    digits = random.integers(0, 10, 1000)
    states = np.outer(digits, random.normal(size=8)) + 0.05 * random.normal(size=(1000, 8))
    [own] = found(states, np.arange(800), digits[:800])
    assert (own == digits)[800:].mean() > 0.95
    x = np.column_stack([states, np.ones(1000)])
    fit = np.linalg.lstsq(x[:800], np.eye(10)[digits[:800]], rcond=None)[0]
    assert ((x @ fit).argmax(1) == digits)[800:].mean() < 0.5


def test_where_all_states_are_the_same_the_most_frequent_value_is_given() -> None:
    states = np.full((3, 5), 0.1)  # 0.1 is not exact in binary
    frequent = np.array([0, 1, 1, 2, 1])
    tied = np.array([2, 1, 0, 2, 1])  # the first of the most frequent
    own = found(states, np.array([0, 1, 2, 0, 1]), frequent, tied)
    assert [x.tolist() for x in own] == [[1, 1, 1], [1, 1, 1]]


def test_directions_in_which_states_hardly_differ_count_as_noise() -> None:
    """A digit written with a thousandth of the other entries' deviation is not found, though a classifier without a ridge would
    be exact; nor where the other entries are large, but the same for all."""
    random = np.random.default_rng(3)
    digits = random.integers(0, 10, 1000)
    for others in (random.normal(size=(1000, 30)), np.full((1000, 30), 30.0) + 0.1 * random.normal(size=(1000, 30))):
        for written, low, high in ((1e-3, 0.0, 0.3), (1.0, 0.99, 1.0)):
            states = np.concatenate([written * np.eye(10)[digits], others], axis=1)
            [own] = found(states, np.arange(800), digits[:800])
            assert low <= (own == digits)[800:].mean() <= high

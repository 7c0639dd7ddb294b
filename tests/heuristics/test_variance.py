"""Variance explained, against plain regression and plain grouping."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arithscope.heuristics.catalogue import catalogue
from arithscope.heuristics.kinds import parse
from arithscope.heuristics.variance import Coverage, Spread, _explained
from arithscope.prompts import OPERATORS


def test_rounding_explains_nothing() -> None:
    """The indicator of a constant, and all but the first direction of two equal indicators, are rounding errors."""
    assert _explained(np.array([1e-12]), np.array([[1e-17]])) == 0.0
    nearly = np.array([[1e6 + 1e-5, 1e6], [1e6, 1e6 + 1e-5]])
    assert _explained(np.array([3e3, 3e3 + 0.1]), nearly) == pytest.approx(9.0, rel=1e-4)


@pytest.mark.parametrize("operator", OPERATORS)
def test_coverage_is_the_r_squared_of_a_regression(operator: str) -> None:
    sets = catalogue(operator, 40, 1000, both_operands=True)
    cover, random = Coverage(sets), np.random.default_rng(0)
    known = [h for group in sets.groups for h in group.heuristics]
    several = [parse("result in {1, 3}"), parse("result in {0, 2, 5}")]
    for size in (1, 3, 12, 40):
        chosen = [known[i] for i in random.choice(len(known), size, replace=False)] + several * (operator == "/")
        members = np.stack([h.holds(sets.prompts) for h in chosen]).astype(float)
        pattern = (
            random.standard_normal(size + 2 * (operator == "/")) @ members + random.standard_normal(len(sets))
        ).astype(np.float32)
        design = np.column_stack([members.T, np.ones(len(sets))])
        fitted = design @ np.linalg.lstsq(design, pattern.astype(float), rcond=None)[0]
        want = 1 - np.var(pattern - fitted) / np.var(pattern)
        whole = np.ones(len(chosen), dtype=bool)
        assert cover(pattern, chosen, whole) == [pytest.approx(want, abs=1e-6)]
        one = np.arange(len(chosen)) == 0
        assert cover(pattern, chosen, one, ~whole) == [pytest.approx(cover(pattern, chosen[:1], one[:1])[0]), 0.0]
    # The same heuristic twice, or a heuristic and its complement, explains no more than one of them.
    odd, even = parse("op1 mod 2 = 1"), parse("op1 mod 2 = 0")
    three, one = np.ones(3, dtype=bool), np.ones(1, dtype=bool)
    assert cover(pattern, [odd, odd, even], three) == [pytest.approx(cover(pattern, [odd], one)[0])]
    assert cover(pattern, [], one[:0]) == cover(np.ones_like(pattern), [odd], one) == [0.0]
    assert cover(odd.holds(sets.prompts).astype(np.float32), [odd], one) == [pytest.approx(1)]


def test_variance_explained_by_a_number() -> None:
    random = np.random.default_rng(0)
    op1, op2 = (x.ravel() for x in np.indices((60, 60)))
    noise = random.standard_normal((200, 3600))
    rows = torch.from_numpy(
        np.stack([np.sin(op1), np.sin(op1) + np.cos(op2), np.ones(3600), noise[0] + 3 * np.sin(op1)])
    )
    by_op1, by_op2 = (Spread(rows).variance_explained(torch.from_numpy(x)).tolist() for x in (op1, op2))
    assert by_op1[0] == pytest.approx(1)
    one, two = np.var(np.sin(np.arange(60))), np.var(np.cos(np.arange(60)))
    assert by_op1[1] == pytest.approx(one / (one + two), abs=0.01)
    assert by_op1[2] == 0
    assert by_op1[3] == pytest.approx(9 * one / (9 * one + 1), abs=0.03)
    assert by_op2[1] == pytest.approx(two / (one + two), abs=0.01)
    # Nothing explains noise, on average, however many groups there are.
    for groups in (op1, op1 * 30 + op2 // 2):
        share = Spread(torch.from_numpy(noise)).variance_explained(torch.from_numpy(groups))
        assert abs(float(share.mean())) < 0.01


@pytest.mark.filterwarnings("error")
def test_an_empty_set_explains_nothing() -> None:
    sets = catalogue("/", 5, 1000)
    odd, never = parse("op1 mod 2 = 1"), parse("result in {6, 7}")
    pattern = sets.prompts.op1.astype(np.float32)
    only_odd, only_never, both = np.array([[True, False], [False, True], [True, True]])
    [one, nothing, together] = Coverage(sets)(pattern, [odd, never], only_odd, only_never, both)
    assert (nothing, together) == (0.0, pytest.approx(one))


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_variance_explained_by_hand(scale: float) -> None:
    """1, 2 and 4 in groups of two and one: SS within is 0.5 with one degree of freedom, SS total 14/3 with two."""
    rows = torch.tensor([[1.0, 2.0, 4.0], [3.0, 3.0, 5.0]], dtype=torch.float64) * scale
    before, spread = rows.clone(), Spread(rows)
    assert torch.equal(rows, before)
    assert spread.variance_explained(torch.tensor([0, 0, 2])).tolist() == pytest.approx([1 - 0.5 / (14 / 3) * 2, 1])
    assert spread.variance_explained(torch.tensor([0, 1, 2])).tolist() == pytest.approx([1, 1])
    assert spread.variance_explained(torch.tensor([1, 1, 1])).tolist() == pytest.approx([0, 0])
    # 1, 2 and 4 with 0, 0 and 1: sums of squares of 14/3 and 2/3, and 5/3 of products, around means of 7/3 and 1/3.
    function = torch.tensor([[0.0, 1.0], [1.0, 0.0]]) * scale
    found = spread.correlation(torch.tensor([0, 0, 1]), function)
    assert found.tolist() == pytest.approx([5 / 28**0.5, -1])


def test_correlation_with_a_function_of_a_number() -> None:
    random = np.random.default_rng(3)
    number = random.integers(0, 20, 500)
    rows, values = random.standard_normal((4, 500)).astype(np.float16), random.standard_normal((4, 25))
    rows[1] += 5 * values[1][number].astype(np.float16)
    rows[2], values[3] = 7.0, 2.0  # constants
    before = rows.copy()
    found = Spread(torch.from_numpy(rows)).correlation(torch.from_numpy(number), torch.from_numpy(values)).tolist()
    for i in (0, 1):
        want = np.corrcoef(rows[i].astype(float), values[i][number])[0, 1]
        assert found[i] == pytest.approx(want, abs=1e-12)
    assert found[1] > 0.9
    assert found[2:] == [0.0, 0.0]
    assert (rows == before).all()

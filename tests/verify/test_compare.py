"""Comparing stored with recomputed numbers: what is allowed, and how differences are reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.verify.compare import EXACT, Noise, Tally, noise_of

SOME = Noise("some", 0.1, 0.01)
numbers = st.floats(-1e6, 1e6)


@given(stored=st.lists(numbers, min_size=1), data=st.data())
def test_numbers_outside_the_tolerance_are_reported(stored: list[float], data: st.DataObject) -> None:
    a = np.array(stored)
    allowed = 0.1 * np.abs(a) + 0.01
    share = np.array(data.draw(st.lists(st.floats(-0.99, 0.99), min_size=len(a), max_size=len(a))))
    tally = Tally(SOME)
    tally.close("x", a, a + share * allowed, SOME)
    assert not tally.differences
    assert tally.numbers == len(a)
    assert tally.largest <= tally.allowed
    place, way = data.draw(st.integers(0, len(a) - 1)), data.draw(st.sampled_from([-1.1, 1.1]))
    share[place] = way
    tally.close("x", a, a + share * allowed, SOME, lambda i: f"number {i}")
    assert len(tally.differences) == 1
    assert tally.differences[0].startswith(f"x of number {place} (stored ")


@pytest.mark.parametrize(
    ("stored", "now", "agree"),
    [
        ([np.nan], [np.nan], True),
        ([np.nan], [1.0], False),
        ([1.0], [np.nan], False),
        ([np.inf], [np.inf], True),
        ([np.inf], [1e300], False),
        ([-np.inf], [np.inf], False),
        ([], [], True),
        ([1.0], [1.0, 1.0], False),
    ],
)
def test_nan_infinity_and_missing_numbers(stored: list[float], now: list[float], agree: bool) -> None:
    tally = Tally(SOME)
    tally.close("x", stored, now, SOME)
    assert (not tally.differences) == agree


TABLE = pd.DataFrame({"operator": ["+", "-", "+"], "layer": [0, 0, 1], "value": [1.0, 2.0, 3.0], "right": [1, 0, 1]})


def test_rows_are_found_by_their_keys() -> None:
    tally = Tally(SOME)
    now = TABLE.iloc[[2, 0]].reset_index(drop=True)
    tally.rows("x", TABLE, now, ["operator", "layer"], EXACT)
    assert (tally.differences, tally.numbers) == ([], 4)
    tally.rows("x", TABLE, now.assign(value=[3.0, 1.2]), ["operator", "layer"], EXACT)
    assert tally.differences == ["x, value of operator +, layer 0 (stored 1, now 1.2)"]
    by_row = replace(EXACT, extra=np.array([0.0, 0.3]))
    tally.rows("x", TABLE, now.assign(value=[3.0, 1.2]), ["operator", "layer"], by_row)
    tally.rows("x", TABLE, now.assign(right=[1, 2]), ["operator", "layer"], EXACT)
    tally.rows("x", TABLE, now.assign(layer=[7, 0]), ["operator", "layer"], EXACT)
    assert tally.differences[1:] == [
        "x, right of operator +, layer 0 (stored 1, now 2)",
        "x of operator +, layer 7 (stored no such row, now a row)",
    ]


def test_whole_tables() -> None:
    for changed, message in (
        (TABLE, None),
        (TABLE.iloc[::-1], "layer of row 0 (stored 0, now 1"),
        (TABLE.iloc[:2], "the number of rows of x (stored 3, now 2)"),
        (TABLE.drop(columns="right"), "the columns of x"),
        (TABLE.assign(value=[1.0, 2.0, np.nan]), "value of row 2"),
    ):
        tally = Tally(SOME)
        tally.table("x", TABLE, changed)
        assert (tally.differences == []) if message is None else (message in tally.differences[0])


def test_lists_in_tables_and_plain_values() -> None:
    lists = pd.DataFrame({"tokens": [[1, 2], []], "logit_differences": [[0.5], [1.0, 2.0]]})
    for changed, agree in (
        (lists.assign(logit_differences=[[0.5 + 1e-15], [1.0, 2.0]]), True),
        (lists.assign(logit_differences=[[0.6], [1.0, 2.0]]), False),
        (lists.assign(tokens=[[1], []]), False),
    ):
        tally = Tally(SOME)
        tally.table("x", lists, changed)
        assert (not tally.differences) == agree
    tally = Tally(SOME)
    tally.same("x", {"a": [1.0, None], "b": "y"}, {"a": (np.float64(1.0) + 1e-15, np.nan), "b": "y"})
    assert not tally.differences
    tally.same("x", {"a": 1}, {"a": 1, "b": 2})
    assert tally.differences == ["x (stored {'a': 1}, now {'a': 1, 'b': 2})"]


def test_half_precision_allows_more() -> None:
    allowed = [noise_of(name).relative for name in ("float64", "float32", "float16", "bfloat16", "something new")]
    assert allowed[0] < allowed[1] < allowed[2] < allowed[3] == allowed[4]

"""Heuristics: which prompts they hold for, and their text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.errors import UserError
from arithscope.heuristics.digits import Borrow, Carry, Digit, DigitDifference, DigitPair, DigitSum
from arithscope.heuristics.kinds import (
    BOTH,
    TARGETS,
    VARIABLES,
    DigitPattern,
    Identical,
    Modulo,
    MultiResult,
    Range,
    Rule,
    all_heuristics,
    kind_name,
    parse,
)
from arithscope.prompts import OPERATORS, Prompts
from tests.heuristics import brute

numbers = st.integers(0, 1200)
digits, places = st.integers(0, 9), st.integers(0, 18)
about_digits = st.one_of(
    st.builds(Digit, st.sampled_from(["op1", "op2", "answer"]), places, digits),
    st.builds(DigitPair, places, digits, digits),
    *(st.builds(kind, places, digits) for kind in (DigitSum, DigitDifference)),
    *(st.builds(kind, st.integers(1, 18), st.integers(0, 1)) for kind in (Carry, Borrow)),
)
templates = st.text("0123456789.", min_size=3, max_size=3).filter(lambda t: t != "...")
heuristics = st.one_of(
    st.builds(lambda on, ends: Range(on, *sorted(ends)), st.sampled_from(TARGETS), st.tuples(numbers, numbers)),
    st.builds(lambda on, n, m: Modulo(on, n, m % n), st.sampled_from(TARGETS), st.integers(2, 20), st.integers(0, 19)),
    st.builds(DigitPattern, st.sampled_from(VARIABLES), templates),
    st.just(Identical()),
    st.builds(MultiResult, st.sets(numbers, min_size=2, max_size=4).map(tuple)),
    about_digits,
)


@given(heuristics)
def test_text_round_trip(heuristic: Rule) -> None:
    assert parse(str(heuristic)) == heuristic
    assert str(parse(str(heuristic))) == str(heuristic)


def test_canonical_forms() -> None:
    for text in (
        "op1 in [100, 200]",
        "result mod 5 = 2",
        "result ~ .64",
        "op1 = op2",
        "result in {1, 2, 7, 8}",
        "op1, op2 in [0, 10]",
        "op1, op2 mod 2 = 0",
        "op1 tens = 4",
        "answer hundreds = 1",
        "ten thousands of op1, op2 = 4, 3",
        "tens of op1 + op2 mod 10 = 7",
        "tens of op1 - op2 mod 10 = 7",
        "carry into 10^18 = 1",
        "borrow into tens = 0",
    ):
        assert str(parse(text)) == text
    assert str(MultiResult((8, 1, 8))) == "result in {1, 8}"


@pytest.mark.parametrize("text", ["op1 in [0, {}]", "op1 mod {} = 0", "result in {{1, {}}}"])
def test_the_largest_number_that_an_array_holds(text: str) -> None:
    largest = text.format(2**63 - 1)
    assert str(parse(largest)) == largest


@pytest.mark.parametrize(
    "text",
    ["", "op3 in [1, 2]", "op1 in [1,2]", "op1 in [01, 2]", "op1 ~ 12", "op1 ~ ...", "result in {1}", "op2 in {1, 2}",
     "op1 mod 5 = 2 ", "op1 mod 0 = 0", "op1 mod 5 = 5", "op1 in [2, 1]", f"op1 mod {10**30} = 1", "op1 in [1, 1९]",
     "result in {1, 2, 3, 4, 5}", "op1, op2 ~ 1..", " in [1, 2]", "op1 in [, 2]", "op1 in [1, 2", " mod 5 = 2",
     "op1 mod  = 2", "op1 mod 5 =2", "op1 mod 5 = ", " ~ 1..", "op1 ~ ", "result in {1, 2", "result in {1, }",
     "op1 mod5 = 2", "op1 in 1, 2]", "op1in [1, 2]", "op1~ 1..", "result in {1,2}", "result in 1, 2}", f"op1 in [0, {2**63}]",
     f"op1 mod {2**63} = 0", f"result in {{1, 2, {2**63}}}", "op1 ones = 4", "op1 tens = 10", "result tens = 4", "op1 tens = ٤",
     "op1 10^19 = 1", "op1 10^6 = 1", "tens of op1, op2 = 4,3", "tens of op1, op2 = 4", "tens of op2, op1 = 4, 3",
     "tens of op1 * op2 mod 10 = 7", "tens of op1 + op2 mod 10 = 12", "carry into tens = 2", "borrow into tens = 9",
     "carry into units = 0", "carry into = 1", "carry into tens of op1 = 1", "op1, op2 tens = 4", "op1 tens =4"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a heuristic"):
        parse(text)


@given(heuristics, st.sampled_from(range(4)), st.lists(st.tuples(numbers, st.integers(1, 1200)), min_size=1))
def test_a_heuristic_holds_where_its_text_says(heuristic: Rule, operator: int, pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(x) for x in zip(*pairs, strict=True))
    prompts = Prompts(a, np.full(len(a), operator), b)
    prompts = prompts[(prompts.answer >= 0) & (prompts.answer < 1000)]
    prompts = prompts[(prompts.op1 < 1000) & (prompts.op2 < 1000)]
    rows = zip(prompts.op1.tolist(), prompts.op2.tolist(), prompts.answer.tolist(), strict=True)
    assert heuristic.holds(prompts).tolist() == [brute.rule(str(heuristic))(*row) for row in rows]


def test_all_heuristics_are_the_papers() -> None:
    texts = {
        o: [str(h) for h in all_heuristics(o, 300, {"+": 600, "-": 300, "*": 999, "/": 300}[o])] for o in OPERATORS
    }
    for o in OPERATORS:
        assert len(set(texts[o])) == len(texts[o])
        assert "op1 = op2" in texts[o]
        for on in VARIABLES:
            assert sum(t.startswith(f"{on} ~ ") for t in texts[o]) == 11**3 - 1
            assert sum(t.startswith(f"{on} mod ") for t in texts[o]) == 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 11 + 13 + 15
    # Lengths 10 and 30 start every 10, 50 every 16, 100 every 33, below the largest value.
    starts = [t for t in texts["+"] if t.startswith("op1 in [")]
    assert len(starts) == 30 + 30 + 19 + 10
    assert "op1 in [290, 300]" in starts
    assert "op1 in [297, 397]" in starts
    assert "op1 in [300, 310]" not in starts
    assert sum(t.startswith("result in [") for t in texts["+"]) == 60 + 60 + 38 + 19
    assert sum(t.startswith("result in [") for t in texts["*"]) == 100 + 100 + 63 + 31
    # Results of a division: length 2 every 2, 10 every 10, 100 every 33.
    assert sum(t.startswith("result in [") for t in texts["/"]) == 150 + 30 + 10
    assert "result in [4, 6]" in texts["/"]
    assert "op1 in [30, 60]" in texts["/"]
    more = [str(h) for h in all_heuristics("+", 300, 600, both_operands=True)]
    assert set(more) - set(texts["+"]) == {
        t.replace("op1 ", "op1, op2 ", 1) for t in texts["+"] if "op1 in" in t or "op1 mod" in t
    }


def test_ranges_by_hand() -> None:
    """Ranges of operands and of quotients up to 40; none about both operands by default."""
    operand = ((10, 10), (30, 10), (50, 16), (100, 33))  # lengths and steps
    of_each = {"op1": operand, "op2": operand, "result": ((2, 2), (10, 10), (100, 33))}
    found = all_heuristics("/", 40, 40)
    assert [str(h) for h in found if h.kind == "range"] == [
        f"{on} in [{low}, {low + length}]"
        for on, lengths in of_each.items()
        for length, step in lengths
        for low in range(0, 40, step)
    ]
    assert [h for h in found if h.on == BOTH] == [Identical()]


def test_names_of_kinds() -> None:
    assert kind_name("range", "op1") == "range of op1"
    assert kind_name("modulo", "result") == "modulo of result"
    assert kind_name("pattern", "op2") == "pattern of op2"
    assert [kind_name(h.kind, h.on) for h in (Identical(), MultiResult((1, 2)))] == ["identical", "multi-result"]
    texts = [
        "op1 tens = 4",
        "answer tens = 4",
        "tens of op1, op2 = 4, 3",
        "units of op1 + op2 mod 10 = 7",
        "borrow into tens = 0",
    ]
    names = ["digit of op1", "digit of answer", "digit pair", "digit sum", "borrow"]
    assert [kind_name(h.kind, h.on) for h in map(parse, texts)] == names


def test_invalid_heuristics_are_refused() -> None:
    with pytest.raises(ValueError, match="op1, op2, result or both operands, not 'op3'"):
        Range("op3", 1, 2)
    with pytest.raises(ValueError, match="not 'op3'"):
        Modulo("op3", 5, 2)
    with pytest.raises(ValueError, match="not 'op3'"):
        DigitPattern("op3", "1..")
    for template, on in (("12", "op1"), ("1234", "op1"), ("...", "op1"), ("a12", "op1"), ("1..", "op1, op2")):
        with pytest.raises(ValueError, match="not a pattern of three digits"):
            DigitPattern(on, template)
    for results in ((1,), (1, 1), (1, 2, 3, 4, 5)):
        with pytest.raises(ValueError, match="two to four"):
            MultiResult(results)
    with pytest.raises(ValueError, match="non-negative"):
        MultiResult((-1, 2))
    with pytest.raises(ValueError, match="not of 'result'"):
        Digit("result", 1, 2)
    for place, digit in ((-1, 0), (19, 0), (0, -1), (0, 10)):
        with pytest.raises(ValueError, match="is not a digit at a place"):
            Digit("op1", place, digit)
        with pytest.raises(ValueError, match="is not a digit at a place"):
            DigitPair(place, 0, digit)
        with pytest.raises(ValueError, match="is not a digit at a place"):
            DigitPair(place, digit, 0)
        with pytest.raises(ValueError, match="is not a digit at a place"):
            DigitSum(place, digit)
    for place, value in ((0, 0), (1, 2)):
        with pytest.raises(ValueError, match="can never hold"):
            Carry(place, value)
    assert MultiResult((4, 1, 3, 2)).results == (1, 2, 3, 4)
    assert DigitPattern("op1", "00.").admits(np.array([0, 9, 10, 999, 1000])).tolist() == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert DigitPattern("op1", "9..").admits(np.array([999, 1999])).tolist() == [True, False]
    assert DigitPattern("op1", ".1.").admits(np.array([-990, 10, 12, 110, 1010, 100])).tolist() == [
        False, True, True, True, False, False
    ]  # fmt: skip


def test_both_ends_of_a_range_belong_to_it() -> None:
    assert Range("op1", 3, 5).admits(np.arange(8)).tolist() == [False, False, False, True, True, True, False, False]
    assert Modulo("op1", 3, 2).admits(np.arange(6)).tolist() == [False, False, True, False, False, True]


def test_heuristics_about_results_are_direct() -> None:
    for text, direct in (
        ("op1 in [1, 2]", False), ("op2 mod 2 = 1", False), ("result ~ 1..", True), ("op1 = op2", False),
        ("result in {1, 2}", True), ("op1, op2 mod 2 = 1", False), ("answer tens = 8", False), ("carry into tens = 1", False),
    ):  # fmt: skip
        assert parse(text).direct is direct


@given(about_digits, st.lists(st.tuples(st.integers(0, 10**18), st.integers(0, 10**18)), min_size=1, max_size=5))
def test_digits_and_carries_are_those_of_written_calculation(heuristic: Rule, pairs: list[tuple[int, int]]) -> None:
    """Sums and differences of large numbers, and of a number and one that differs in a few digits."""
    larger = [(max(a, b), min(a, b)) for a, b in pairs] + [(a, a - a % 1000) for a, _ in pairs]
    a, b = np.array(larger).T
    for operator in range(2):
        prompts = Prompts(a, np.full(len(a), operator), b)
        rows = zip(a.tolist(), b.tolist(), prompts.answer.tolist(), strict=True)
        assert heuristic.holds(prompts).tolist() == [brute.rule(str(heuristic))(*row) for row in rows]


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_digits_and_carries_make_the_answer(a: int, b: int) -> None:
    """Each digit of a sum is the digits' sum modulo 10 plus the carry; of a difference, minus the borrow."""
    a, b = max(a, b), min(a, b)
    for operator, written, across in ((0, DigitSum, Carry), (1, DigitDifference, Borrow)):
        prompts = Prompts([a], [operator], [b])
        answer = a + (-b if operator else b)
        for place in range(1, 8):
            [digit] = [d for d in range(10) if written(place, d).holds(prompts)[0]]
            [carried] = [c for c in range(2) if across(place, c).holds(prompts)[0]]
            assert (digit + (-carried if operator else carried)) % 10 == answer // 10**place % 10
            assert Digit("answer", place, answer // 10**place % 10).holds(prompts)[0]

"""Carries and the counterfactuals built on them, against schoolbook column arithmetic and enumeration of whole strata."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.prompts import (
    OPERATORS,
    Layout,
    Prompts,
    Stratum,
    carry_counterfactuals,
    carry_into,
    chain_length,
    changed_digits,
    concatenate_prompts,
    digit_counterfactuals,
    random_source,
    same_carry_controls,
    sample,
    whole_numbers,
)

TWO, THREE = (1, 0), (2, 1, 0)
LONG_SUMS = Stratum((10, 99), (10, 99), (100, 198), Layout(TWO, TWO, THREE))
SHORT_SUMS = Stratum((10, 99), (10, 99), (20, 99), Layout(TWO, TWO, TWO))
ODD_RANGES = Stratum((15, 87), (3, 9), (23, 91), Layout(TWO, (0,), TWO))
STRATA = [(LONG_SUMS, 1), (LONG_SUMS, 2), (LONG_SUMS, 3), (SHORT_SUMS, 1), (SHORT_SUMS, 2), (ODD_RANGES, 1)]
HUNDREDS = Stratum((100, 999), (100, 999), (200, 999), Layout(THREE, THREE, THREE))
CHUNKS = Stratum((1000, 1999), (1000, 1999), (2000, 3998), Layout((3, 0), (3, 0), (3, 0)))

Pair = tuple[int, int]


def columns(a: int, sign: str, b: int) -> list[tuple[int, bool]]:
    """By schoolbook, from the units up: the carry (or borrow) into each place, and whether that place passes one on."""
    places, carry = [], 0
    for x, y in zip(reversed(f"{a:07}"), reversed(f"{b:07}"), strict=True):
        total = int(x) + int(y) if sign == "+" else int(x) - int(y)
        places.append((carry, total == (9 if sign == "+" else 0)))
        carry = int(total + carry > 9 if sign == "+" else total - carry < 0)
    return places


def longest_chain(places: list[tuple[int, bool]]) -> int:
    longest = 0
    for start in range(1, len(places)):
        length = 0  # of the carry that arises below `start`
        if places[start][0] and not (places[start - 1][0] and places[start - 1][1]):
            length = 1
            while places[start + length - 1][1] and places[start + length][0]:
                length += 1
        longest = max(longest, length)
    return longest


def test_carries_of_some_prompts() -> None:
    prompts = Prompts([45, 45, 45, 45, 995, 87, 100], [0, 0, 1, 1, 0, 0, 1], [78, 32, 38, 12, 7, 68, 1])
    assert carry_into(prompts, 0).tolist() == [0] * 7
    assert carry_into(prompts, 1).tolist() == [1, 0, 1, 0, 1, 1, 1]
    assert carry_into(prompts, 2).tolist() == [1, 0, 0, 0, 1, 1, 1]
    assert chain_length(prompts).tolist() == [1, 0, 1, 0, 3, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 99_999), st.integers(0, 1), st.integers(0, 99_999)), max_size=50))
def test_carries_equal_schoolbook_arithmetic(rows: list[tuple[int, int, int]]) -> None:
    rows = [(max(a, b), o, min(a, b)) if o else (a, o, b) for a, o, b in rows]  # so that no answer is negative
    prompts = Prompts(*np.array(rows).reshape(-1, 3).T)
    want = [columns(a, OPERATORS[o], b) for a, o, b in rows]
    for exponent in range(6):
        assert carry_into(prompts, exponent).tolist() == [places[exponent][0] for places in want]
    assert chain_length(prompts).tolist() == [longest_chain(places) for places in want]


@pytest.mark.parametrize("operator", [2, 3])
def test_other_operators_have_no_carries(operator: int) -> None:
    prompts = Prompts([45, 12], [0, operator], [12, 3])
    for function in (lambda: carry_into(prompts, 1), lambda: chain_length(prompts)):
        with pytest.raises(ValueError, match="only"):
            function()
    with pytest.raises(ValueError, match="only"):
        carry_counterfactuals(prompts, LONG_SUMS.at_step(2), random_source(0))


@given(st.integers(0, 9999), st.integers(0, 9999), st.integers(0, 9999), st.integers(0, 9999))
def test_changed_digits_are_counted(a: int, b: int, c: int, d: int) -> None:
    written = zip(f"{a:04}{b:04}", f"{c:04}{d:04}", strict=True)
    assert changed_digits(Prompts([a], [0], [b]), Prompts([c], [0], [d])).tolist() == [sum(x != y for x, y in written)]


def token(stratum: Stratum, answer: int, step: int) -> str:
    """The digits that a token of an answer holds, cut from its text."""
    text, ends = str(answer), (*stratum.tokens.answer, 0)
    start = 0 if step == 1 else len(text) - ends[step - 2]
    return text[start : len(text) - ends[step - 1]]


def tokens(stratum: Stratum, answer: int) -> list[str]:
    return [token(stratum, answer, step + 1) for step in range(stratum.steps)]


@cache
def legal_pairs(stratum: Stratum, sign: str) -> list[Pair]:
    (low1, high1), (low2, high2), (low, high) = stratum.op1, stratum.op2, stratum.answers
    answers = {(a, b): answer(a, sign, b) for a in range(low1, high1 + 1) for b in range(low2, high2 + 1)}
    return [pair for pair, result in answers.items() if low <= result <= high]


def answer(a: int, sign: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]


def differing(pair: Pair, other: Pair) -> list[tuple[int, int]]:
    """Operand and exponent of the digits in which two pairs differ."""
    return [
        (i, exponent)
        for i in range(2)
        for exponent in range(4)
        if pair[i] // 10**exponent % 10 != other[i] // 10**exponent % 10
    ]


def carry_candidates(stratum: Stratum, sign: str, pair: Pair) -> set[Pair]:
    """All carry counterfactuals of a pair, by enumeration of the stratum."""
    low, step = stratum.asked.low, stratum.step
    own, carry = tokens(stratum, answer(pair[0], sign, pair[1])), columns(pair[0], sign, pair[1])[low][0]
    found: dict[Pair, int] = {}
    for other in legal_pairs(stratum, sign):
        digits = differing(pair, other)
        if any(exponent >= low for _, exponent in digits):
            continue
        same_before = tokens(stratum, answer(other[0], sign, other[1]))[: step - 1] == own[: step - 1]
        if same_before and columns(other[0], sign, other[1])[low][0] != carry:
            found[other] = len(digits)
    return {other for other, count in found.items() if count == min(found.values())}


def control_candidates(stratum: Stratum, sign: str, pair: Pair, count: int) -> set[Pair]:
    low = stratum.asked.low
    carry = columns(pair[0], sign, pair[1])[low][0]
    found = set()
    for other in legal_pairs(stratum, sign):
        digits = differing(pair, other)
        lower = len(digits) == count and all(exponent < low for _, exponent in digits)
        if lower and columns(other[0], sign, other[1])[low][0] == carry:
            found.add(other)
    return found


def digit_candidates(stratum: Stratum, sign: str, pair: Pair) -> set[Pair]:
    own = tokens(stratum, answer(pair[0], sign, pair[1]))
    found = set()
    for other in legal_pairs(stratum, sign):
        theirs = tokens(stratum, answer(other[0], sign, other[1]))
        differs = [i + 1 for i, (x, y) in enumerate(zip(own, theirs, strict=True)) if x != y]
        if len(differing(pair, other)) == 1 and differs == [stratum.step]:
            found.add(other)
    return found


def pairs(prompts: Prompts) -> list[Pair]:
    return list(zip(prompts.op1.tolist(), prompts.op2.tolist(), strict=True))


def some(stratum: Stratum, sign: str, size: int = 20) -> Prompts:
    return sample(stratum.prompts(sign), size, random_source(1, "carries"))


@pytest.mark.parametrize(("stratum", "step"), STRATA)
@pytest.mark.parametrize("sign", ["+", "-"])
def test_counterfactuals_are_among_those_of_enumeration(stratum: Stratum, step: int, sign: str) -> None:
    stratum = stratum.at_step(step)
    if not len(prompts := some(stratum, sign)):
        return
    others, found = carry_counterfactuals(prompts, stratum, random_source(0, "carry"))
    want = [carry_candidates(stratum, sign, pair) for pair in pairs(prompts)]
    assert found.tolist() == [bool(candidates) for candidates in want]
    assert others.asked == stratum.asked
    assert (others.operator == prompts.operator[found]).all()
    chosen = [candidates for candidates in want if candidates]
    assert all(pair in candidates for pair, candidates in zip(pairs(others), chosen, strict=True))
    values = 10 ** ((stratum.asked.high or 9) - stratum.asked.low)
    assert set(((others.result - prompts[found].result) % values).tolist()) <= {1, values - 1}

    controls, controlled = same_carry_controls(prompts[found], others, stratum, random_source(0, "control"))
    own = zip(pairs(prompts[found]), changed_digits(prompts[found], others).tolist(), strict=True)
    want = [control_candidates(stratum, sign, pair, count) for pair, count in own]
    assert controlled.tolist() == [bool(candidates) for candidates in want]
    chosen = [candidates for candidates in want if candidates]
    assert all(pair in candidates for pair, candidates in zip(pairs(controls), chosen, strict=True))
    assert (controls.result == prompts[found][controlled].result).all()

    others, found = digit_counterfactuals(prompts, stratum, random_source(0, "digit"))
    want = [digit_candidates(stratum, sign, pair) for pair in pairs(prompts)]
    assert found.tolist() == [bool(candidates) for candidates in want]
    chosen = [candidates for candidates in want if candidates]
    assert all(pair in candidates for pair, candidates in zip(pairs(others), chosen, strict=True))


def test_which_prompts_have_carry_counterfactuals() -> None:
    """Those whose answer keeps its number of tokens, and the tokens before the step."""
    for stratum, step, a, b, expected in (
        (LONG_SUMS, 2, 45, 78, True),
        (LONG_SUMS, 2, 55, 47, False),  # 102 would be 9…
        (LONG_SUMS, 1, 45, 78, False),
        (LONG_SUMS, 3, 45, 78, False),  # nothing is carried into the units
        (SHORT_SUMS, 1, 45, 38, True),
        (SHORT_SUMS, 1, 39, 60, False),  # 99 would be 10…
        (HUNDREDS, 2, 345, 142, True),
        (HUNDREDS, 2, 345, 152, False),  # 497 would be 50…
        (HUNDREDS, 1, 345, 152, True),
        (CHUNKS, 1, 1345, 1152, True),
        (CHUNKS, 2, 1345, 1152, False),
    ):
        _, found = carry_counterfactuals(Prompts([a], [0], [b]), stratum.at_step(step), random_source(0, "which"))
        assert found.tolist() == [expected], (stratum, step, a, b)


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("sign", ["+", "-"])
def test_counterfactuals_of_three_digits(sign: str, step: int) -> None:
    """Too many to enumerate: what must hold of each."""
    stratum = HUNDREDS.at_step(step)
    prompts, low = some(stratum, sign, 400), stratum.asked.low
    others, found = carry_counterfactuals(prompts, stratum, random_source(0, "carry"))
    own = prompts[found]
    controls, controlled = same_carry_controls(own, others, stratum, random_source(0, "control"))
    assert controlled.all()
    assert (len(own) == 0) == (step == 3)
    changed = changed_digits(own, others)
    assert set(changed.tolist()) <= {1, 2}
    assert changed_digits(own, controls).tolist() == changed.tolist()
    for those, carry in ((others, 1), (controls, 0)):
        assert stratum.legal(those).all()
        assert (those.op1 // 10**low == own.op1 // 10**low).all()
        assert (those.op2 // 10**low == own.op2 // 10**low).all()
        assert (carry_into(those, low) ^ carry_into(own, low) == carry).all()
        assert ((those.result != own.result) == carry).all()
        if step > 1:
            assert (those.answer // 10 ** (low + 1) == own.answer // 10 ** (low + 1)).all()
    for i in np.flatnonzero(changed == 2)[:10]:  # one digit is never enough
        one = [(a, b) for a, b in one_digit_changes(own.op1[i], own.op2[i], low) if legal(stratum, sign, a, b)]
        carries = [columns(a, sign, b)[low][0] for a, b in one]
        assert set(carries) <= {int(carry_into(own[[i]], low)[0])}


def one_digit_changes(a: int, b: int, below: int) -> list[Pair]:
    changes = [(e, digit) for e in range(below) for digit in range(10)]
    changed = [[n + (digit - n // 10**e % 10) * 10**e for e, digit in changes] for n in (int(a), int(b))]
    return [(x, int(b)) for x in changed[0]] + [(int(a), x) for x in changed[1]]


def legal(stratum: Stratum, sign: str, a: int, b: int) -> bool:
    return bool(stratum.legal(Prompts([a], [OPERATORS.index(sign)], [b]))[0])


def test_draws_are_uniform_and_depend_on_the_source_only() -> None:
    stratum, n = SHORT_SUMS.at_step(1), 20_000
    prompts = Prompts(np.full(n, 42), np.zeros(n), np.full(n, 35))  # 48, 49 +35, 42 +38, +39
    drawn, found = carry_counterfactuals(prompts, stratum, random_source(0, "uniform"))
    assert found.all()
    counts = Counter(pairs(drawn))
    assert (
        set(counts)
        == carry_candidates(stratum, "+", (42, 35))
        == {(45, 35), *[(x, 35) for x in (46, 47, 48, 49)], (42, 38), (42, 39)}
    )
    assert all(abs(count / n - 1 / 7) < 0.02 for count in counts.values())
    again, _ = carry_counterfactuals(prompts, stratum, random_source(0, "uniform"))
    assert pairs(again) == pairs(drawn)


def test_blocks_do_not_change_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, stratum = some(HUNDREDS, "+", 50), HUNDREDS.at_step(1)

    def drawn() -> list[list[Pair]]:
        others, found = carry_counterfactuals(prompts, stratum, random_source(0, "blocks"))
        controls, _ = same_carry_controls(prompts[found], others, stratum, random_source(1, "blocks"))
        return [pairs(others), pairs(controls)]

    whole = drawn()
    monkeypatch.setattr("arithscope.prompts.carries._TRIED", 100)
    assert drawn() == whole


def test_operators_can_be_mixed() -> None:
    stratum = Stratum((10, 99), (10, 99), (10, 99), Layout(TWO, TWO, TWO))
    prompts = concatenate_prompts([some(stratum, sign, 20) for sign in "+-"])
    others, found = carry_counterfactuals(prompts, stratum, random_source(0, "mixed"))
    assert set(others.operator.tolist()) == {0, 1}
    assert (carry_into(others, 1) != carry_into(prompts[found], 1)).all()


@pytest.mark.parametrize("sign", ["*", "/"])
@pytest.mark.parametrize("step", [1, 2])
def test_digit_counterfactuals_of_any_operator(sign: str, step: int) -> None:
    stratum = Stratum((10, 99), (2, 9), (10, 99), Layout(TWO, (0,), TWO)).at_step(step)
    prompts = some(stratum, sign)
    others, found = digit_counterfactuals(prompts, stratum, random_source(0, "digit"))
    want = [digit_candidates(stratum, sign, pair) for pair in pairs(prompts)]
    assert found.tolist() == [bool(candidates) for candidates in want]
    chosen = [candidates for candidates in want if candidates]
    assert all(pair in candidates for pair, candidates in zip(pairs(others), chosen, strict=True))


def test_whole_numbers_and_empty_tables_have_no_carry_counterfactuals() -> None:
    whole = whole_numbers(30, 100)
    for prompts in (whole.prompts("+"), whole.prompts("+")[:0]):
        others, found = carry_counterfactuals(prompts, whole, random_source(0))
        assert len(others) == 0
        assert not found.any()
        assert found.shape == (len(prompts),)
        assert len(same_carry_controls(others, others, whole, random_source(0))[0]) == 0
    others, found = digit_counterfactuals(whole.prompts("+"), whole, random_source(0))
    assert found.all()

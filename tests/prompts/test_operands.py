"""Operands as people type them."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arithscope.errors import UserError
from arithscope.prompts import Operands, checked_operands, operands_of_digits, parse_operands
from arithscope.prompts.operands import MOST_DIGITS
from tests.fuzz.effort import refused

numbers = st.integers(0, 10**MOST_DIGITS - 1)
ranges = st.tuples(numbers, numbers).map(lambda ends: (min(ends), max(ends)))
digits = st.integers(1, MOST_DIGITS)
white = st.sampled_from(["", "", " ", "  "])
typed = st.one_of(
    st.text(max_size=8),
    st.lists(
        st.sampled_from(["1", "9", "10", "99", "0", "00", "-", "-", ",", ",", " ", "\n", "٣", "²", "\x00", "\ud800", "1" * 50]),
        max_size=9,
    ).map("".join),
)  # fmt: skip


def refusal(text: str | None) -> str:
    """One sentence that shows at most the beginning of a long text."""
    assert text is not None
    assert text[-1] == "."
    assert "\n" not in text
    assert len(text) < 300
    return text


@given(digits, digits, white)
def test_numbers_of_some_digits(first: int, second: int, space: str) -> None:
    (low, high), own = operands_of_digits(f"{space}{first}{space},{space}{second}{space}")
    assert (len(str(low)), len(str(high))) == (first, first)
    assert (low == 0) if first == 1 else (len(str(low - 1)) < first)
    assert len(str(high + 1)) > first
    assert own == operands_of_digits(str(second))[0] == operands_of_digits(str(second))[1]


@given(ranges, ranges, white)
def test_ranges(op1: tuple[int, int], op2: tuple[int, int], space: str) -> None:
    first, second = (f"{low}{space}-{space}{high}" for low, high in (op1, op2))
    assert parse_operands(f"{space}{first}{space},{second}") == checked_operands((op1, op2)) == (op1, op2)
    assert parse_operands(first) == (op1, op1)


@given(typed)
@example("2\n")
@example("0")
@example("10")
@example("1,2,3")
@example(" ")
def test_other_digits_are_refused(text: str) -> None:
    found: list[Operands] = []
    message = refused(lambda: found.append(operands_of_digits(text)))
    if re.fullmatch("[1-9](,[1-9])?", text.replace(" ", "")):
        assert found == [checked_operands(found[0])]
    else:
        assert refusal(message).startswith("--digits ")


@given(typed)
@example("10-99\n")
@example("99-10")
@example("-5-5")
@example("010-99")
@example("1-9,2")
@example("0-1000000000")
@example("0-" + "9" * 5000)
def test_other_ranges_are_refused(text: str) -> None:
    found: list[Operands] = []
    message = refused(lambda: found.append(parse_operands(text)))
    if message is not None:
        assert "operands" in refusal(message)
        return
    [operands] = found
    written = [f"{low}-{high}" for low, high in operands]
    assert text.replace(" ", "") in (",".join(written), written[0])
    assert all(0 <= low <= high < 10**MOST_DIGITS for low, high in operands)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10", "--operands '10' is not a range of numbers of at most 9 digits; write 10-99, or 10-99,1-9 for op1 and op2."),
        ("99-10", "There is no range of operands 99-10; use numbers from 0 to 999999999, the smaller one first."),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        parse_operands(text)


@pytest.mark.parametrize("operands", [((-1, 5), (0, 5)), ((0, 5), (6, 5)), ((0, 10**9), (0, 5))])
def test_ranges_are_checked(operands: tuple[tuple[int, int], tuple[int, int]]) -> None:
    with pytest.raises(UserError, match="no range of operands"):
        checked_operands(operands)

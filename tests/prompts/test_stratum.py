"""Which prompts a stratum has, and which token of the answer it asks for."""

from __future__ import annotations

import json
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arithscope.errors import UserError
from arithscope.prompts import (
    OPERATORS,
    Layout,
    Place,
    Prompts,
    Stratum,
    legal_prompts,
    operand_grid,
    parse_in_stratum,
    place_name,
    power_name,
    stratum_from_json,
    whole_numbers,
)
from arithscope.prompts.stratum import MOST_OPERANDS
from tests.fuzz.effort import refused

# 45+78=123 with a token a digit, and 1234 as 123, 4 or as 1, 234.
DIGITS = Layout((1, 0), (1, 0), (2, 1, 0))
SUMS = Stratum((10, 99), (10, 99), (100, 198), DIGITS)
LONG = Stratum((1000, 99_999), (7, 5000), (0, 10**6), Layout((3, 0), (3, 0), (6, 3, 0)))

small_ranges = st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda x: (x[0], x[0] + x[1]))
ranges = st.tuples(st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1)).map(lambda x: (min(x), max(x)))
places = st.sets(st.integers(1, 8), max_size=4).map(lambda x: (*sorted(x, reverse=True), 0))
layouts = st.builds(Layout, places, places, places)
operator_sets = st.sets(st.sampled_from(OPERATORS), min_size=1).map("".join)


@st.composite
def strata(draw: st.DrawFn, between: st.SearchStrategy[tuple[int, int]] = ranges) -> Stratum:
    layout = draw(layouts)
    step = draw(st.integers(1, len(layout.answer)))
    return Stratum(draw(between), draw(between), draw(between), layout, step)


def plain_answer(a: int, operator: str, b: int) -> int | None:
    """The oracle: Python's exact integers."""
    if operator == "/":
        return a // b if b else None
    return {"+": a + b, "-": a - b, "*": a * b}[operator]


def triples(prompts: Prompts) -> list[tuple[int, str, int]]:
    signs = [OPERATORS[i] for i in prompts.operator]
    return list(zip(prompts.op1.tolist(), signs, prompts.op2.tolist(), strict=True))


@given(strata(small_ranges), operator_sets)
def test_prompts_are_the_legal_pairs_of_the_grid(stratum: Stratum, operators: str) -> None:
    def numbers(between: tuple[int, int]) -> range:
        return range(between[0], between[1] + 1)

    pairs = [
        (a, o, b) for o in OPERATORS if o in operators for a, b in product(numbers(stratum.op1), numbers(stratum.op2))
    ]
    right = [plain_answer(*pair) for pair in pairs]
    legal = [answer is not None and stratum.answers[0] <= answer <= stratum.answers[1] for answer in right]
    grid = stratum.grid(operators)
    assert triples(grid) == pairs
    assert stratum.legal(grid).tolist() == legal
    own = stratum.prompts(operators)
    assert (
        triples(own) == triples(stratum.run(operators)) == [pair for pair, ok in zip(pairs, legal, strict=True) if ok]
    )
    assert own.asked == grid.asked == stratum.asked
    assert stratum.shape == (len(numbers(stratum.op1)), len(numbers(stratum.op2)))
    for o in operators:
        cells = stratum.cells(stratum.grid(o))
        assert cells.tolist() == list(range(len(cells)))
        row, column = stratum.indices(stratum.prompts(o))
        assert (stratum.sides[0][row] == stratum.prompts(o).op1).all()
        assert (stratum.sides[1][column] == stratum.prompts(o).op2).all()


@given(strata(), operator_sets)
def test_of_large_ranges_some_operands_are_run(stratum: Stratum, operators: str) -> None:
    for side, (low, high) in zip(stratum.sides, (stratum.op1, stratum.op2), strict=True):
        assert len(side) == min(MOST_OPERANDS, high - low + 1)
        assert all(a < b for a, b in pairwise(side.tolist()))
        assert low <= side[0] <= side[-1] <= high
    again = stratum_from_json(stratum.as_json()).at_step(1)
    assert [side.tolist() for side in again.sides] == [side.tolist() for side in stratum.sides]


def test_large_ranges_are_sampled_evenly() -> None:
    side = Stratum((10_000, 99_999), (1, 9), (0, 9), DIGITS).sides[0]
    counts = np.histogram(side, bins=9, range=(10_000, 100_000))[0]
    assert counts.sum() == MOST_OPERANDS
    assert counts.min() > 15  # of 33 each


@given(strata(), st.data())
def test_operands_beside_the_grid_have_no_cell(stratum: Stratum, data: st.DataObject) -> None:
    op1, op2 = (data.draw(st.integers(low - 2, high + 2)) for low, high in (stratum.op1, stratum.op2))
    some = [(int(side[0]), int(side[-1])) for side in stratum.sides]
    on_sides = all(n in side for n, side in zip((op1, op2), stratum.sides, strict=True))
    prompts = Prompts([some[0][0], op1, some[0][1]], [0] * 3, [some[1][1], op2, some[1][0]])
    if on_sides:
        row, column = stratum.indices(prompts)
        assert (stratum.sides[0][row[1]], stratum.sides[1][column[1]]) == (op1, op2)
        assert stratum.cells(prompts)[1] == row[1] * stratum.shape[1] + column[1]
        return
    for cells in (stratum.cells, stratum.indices):
        with pytest.raises(ValueError, match="not on the side of the operand grid"):
            cells(prompts)


def test_an_operand_between_two_sampled_ones_has_no_cell() -> None:
    side = LONG.sides[0].tolist()
    absent = next(n for n in range(side[0], side[-1]) if n not in side)
    with pytest.raises(ValueError, match=f"operand {absent} is not"):
        LONG.indices(Prompts([absent], [0], [int(LONG.sides[1][0])]))


@given(st.integers(1, 60), st.integers(2, 150), operator_sets)
def test_whole_numbers_are_the_papers_study(max_operand: int, limit: int, operators: str) -> None:
    stratum = whole_numbers(min(max_operand, limit - 1), limit)
    assert stratum.whole
    assert (stratum.limit, stratum.steps, stratum.asked) == (limit, 1, Place())
    assert (stratum.tokens, stratum.layout_name, stratum.step_name) == (Layout(), "1-1-1", "number")
    assert triples(stratum.run(operators)) == triples(operand_grid(operators, stratum.op1[1]))
    assert triples(stratum.prompts(operators)) == triples(legal_prompts(operators, stratum.op1[1], limit))
    assert stratum.described() == f"0…{stratum.op1[1]}"


def test_descriptions() -> None:
    assert whole_numbers(300, 1000).described() == "0…300"
    assert SUMS.described() == "10…99 and 10…99, answers 100…198"


def test_a_layout_says_what_each_token_holds() -> None:
    assert DIGITS.counts == (2, 2, 3)
    assert [DIGITS.token("answer", i) for i in range(3)] == [Place(2), Place(1, 2), Place(0, 1)]
    assert [LONG.tokens.token("op1", i) for i in range(2)] == [Place(3), Place(0, 3)]
    assert (SUMS.layout_name, SUMS.steps) == ("2-2-3", 3)


@pytest.mark.parametrize(
    ("step", "name", "limit", "results"),
    [(1, "hundreds", 2, [1, 1]), (2, "tens", 10, [2, 9]), (3, "units", 10, [3, 8])],
)
def test_the_steps_of_a_sum_in_digits(step: int, name: str, limit: int, results: list[int]) -> None:
    stratum = SUMS.at_step(step)
    assert (stratum.step_name, stratum.limit) == (name, limit)
    assert Prompts([45, 99], [0, 0], [78, 99], stratum.asked).result.tolist() == results  # 123 and 198


@pytest.mark.parametrize(
    ("places", "digits", "names"),
    [
        ((0,), 1, ["number"]),
        ((0,), 3, ["number"]),
        ((1, 0), 2, ["tens", "units"]),
        ((2, 1, 0), 3, ["hundreds", "tens", "units"]),
        ((1, 0), 4, ["tens and up", "units"]),  # 123, 4
        ((2, 0), 5, ["hundreds and up", "last 2 digits"]),  # 123, 45
        ((3, 0), 6, ["thousands and up", "last 3 digits"]),
        ((4, 1, 0), 7, ["ten thousands and up", "tens to thousands", "units"]),  # 123, 456, 7
        ((6, 3, 0), 9, ["millions and up", "thousands to hundred thousands", "last 3 digits"]),
    ],
)
def test_names_of_places(places: tuple[int, ...], digits: int, names: list[str]) -> None:
    layout = Layout(answer=places)
    stratum = Stratum((0, 9), (0, 9), (10 ** (digits - 1), 10**digits - 1), layout)
    assert [stratum.at_step(i + 1).step_name for i in range(len(places))] == names
    assert [place_name(places, i, digits) for i in range(len(places))] == names


def test_names_of_powers() -> None:
    assert [power_name(i) for i in (0, 6, 7)] == ["units", "millions", "10^7"]
    assert [place_name((1, 0), i) for i in range(2)] == ["tens", "units"]


@given(strata(), st.integers(0, 10**9))
def test_results_are_the_digits_that_the_token_holds(stratum: Stratum, answer: int) -> None:
    """By cutting the written answer."""
    text, tokens = str(answer).zfill(12), stratum.tokens.answer
    ends = [12 - low for low in tokens]
    parts = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    [result] = Prompts([answer], [0], [0], stratum.asked).result
    assert result == int(parts[stratum.step - 1])
    if answer <= stratum.answers[1]:
        assert result < stratum.limit
    if stratum.step > 1:
        assert stratum.limit == 10 ** len(parts[stratum.step - 1])


@given(st.one_of(strata(), st.builds(whole_numbers, st.integers(1, 300), st.integers(2, 1000))))
def test_a_stratum_survives_json(stratum: Stratum) -> None:
    again = stratum_from_json(json.loads(json.dumps(stratum.as_json())))
    assert again == stratum
    assert hash(again) == hash(stratum)
    assert again.described() == stratum.described()


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=4,
)


@given(st.sampled_from(["op1", "op2", "answers", "layout", "step", None]), values)
@example("layout", [1])
@example("layout", {"op1": [float("inf")]})
@example("step", float("inf"))
def test_records_that_are_no_strata_raise_the_documented_errors(name: str | None, value: object) -> None:
    record = {**SUMS.as_json(), name: value} if name else value
    try:
        found = stratum_from_json(record)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, OverflowError):
        return
    assert isinstance(found, Stratum)


two_strata = (Stratum((10, 99), (10, 99), (20, 99), Layout((1, 0), (1, 0), (1, 0))), SUMS.at_step(2))


@given(st.integers(0, 120), st.sampled_from(OPERATORS), st.integers(0, 120), st.sampled_from(["", "="]))
def test_typed_prompts_ask_for_what_their_stratum_asks(a: int, operator: str, b: int, end: str) -> None:
    answer = plain_answer(a, operator, b)
    legal = 10 <= a <= 99 and 10 <= b <= 99 and operator in "+-" and answer is not None and 20 <= answer <= 198
    found: list[Prompts] = []
    message = refused(lambda: found.append(parse_in_stratum(f" {a}{operator} {b}{end}", "+-", *two_strata)))
    if not legal:
        assert message is not None
        assert message[-1] == "."
        assert "\n" not in message
        return
    [prompt] = found
    assert triples(prompt) == [(a, operator, b)]
    # 45 is asked for its tens and what is above them: 4; 123 for its tens alone: 2.
    assert prompt.result.tolist() == [answer // 10 if answer < 100 else answer // 10 % 10]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9+10", "9 is below 10, the smallest operand here; choose larger ones."),
        ("10+100", "100 is beyond 99, the largest operand here; choose smaller ones."),
        ("10*10", "The operator * was not studied in this run; choose from + -."),
        ("15-12", "'15-12' gives 3, but answers from 20 to 99 and 100 to 198 were studied; choose other operands."),
        ("12-15", "'12-15' gives -3, but answers from 20 to 99 and 100 to 198 were studied; choose other operands."),
        ("100-x", "100 is beyond 99, the largest operand here; choose smaller ones."),
    ],
)
def test_refusals_say_what_was_studied(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_in_stratum(text, "+-", *two_strata)
    assert str(caught.value) == message


def test_a_prompt_beside_the_sampled_grid_can_be_typed() -> None:
    absent = next(n for n in range(1000, 2000) if n not in LONG.sides[0])
    assert triples(parse_in_stratum(f"{absent}+7", "+", LONG)) == [(absent, "+", 7)]

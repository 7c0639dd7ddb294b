"""Heuristics as text: a parsed heuristic means what the text says, and is written as it was read."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from arithscope.errors import UserError
from arithscope.heuristics.kinds import parse
from arithscope.prompts import OPERATORS, Prompts, operand_grid
from tests.fuzz.effort import check_sentence, fuzz, twice
from tests.heuristics.brute import answer, rule
from tests.heuristics.schoolbook import PLACES

MAX = 6
PROMPTS = {o: operand_grid(o, MAX) for o in OPERATORS}
BIG = Prompts([0, 999, 1000, 12345], [0, 0, 0, 2], [0, 1, 999, 2])

numbers = st.one_of(
    st.integers(0, 30).map(str),
    st.integers(0, 30).map(str),
    st.sampled_from(
        ["00", "01", "-1", "+1", "1.0", "1_0", "９", "1९", "²", " 1", "", str(2**63), "9" * 30, "9" * 5000]
    ),
)
on = st.sampled_from(["op1", "op2", "result", "op1, op2", "op1,op2", "op3", "Op1", "answer", ""])
digits = st.text("0123456789.", min_size=3, max_size=3)
places = st.sampled_from([*PLACES, "ones", "Tens", "10^6", "10^19", ""])
digit = st.sampled_from(["0", "1", "2", "9", "10", "٣", "-1", ""])
good = st.one_of(
    st.builds("{} in [{}, {}]".format, on, numbers, numbers),
    st.builds("{} mod {} = {}".format, on, numbers, numbers),
    st.builds("{} ~ {}".format, on, st.one_of(digits, digits, st.text("0123456789.९x", max_size=4))),
    st.just("op1 = op2"),
    st.builds("result in {{{}}}".format, st.lists(numbers, max_size=5).map(", ".join)),
    st.builds("{} {} = {}".format, on, places, digit),
    st.builds("{} of op1, op2 = {}, {}".format, places, digit, digit),
    st.builds("{} of op1 {} op2 mod 10 = {}".format, places, st.sampled_from("+-*/"), digit),
    st.builds("{} into {} = {}".format, st.sampled_from(["carry", "borrow", "Carry"]), places, digit),
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    text = draw(st.one_of(good, good, good, good, st.text(max_size=20)))
    if draw(st.integers(0, 4)) == 4:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(["", " ", "\n", "\t", ",", "]", "\x00", "=", "é"])) + text[at + 1 :]
    return text


def is_heuristic(text: str) -> bool:
    """An independent definition of which texts are heuristics."""
    words = text.split(" ")
    if text == "op1 = op2" or is_about_digits(text):
        return True
    for start in ("op1, op2 ", "op1 ", "op2 ", "result "):
        if text.startswith(start):
            break
    else:
        return False
    rest = text[len(start) :]
    if rest.startswith("in [") and rest.endswith("]"):
        ends = rest[4:-1].split(", ")
        return len(ends) == 2 and all(map(is_number, ends)) and int(ends[0]) <= int(ends[1])
    if rest.startswith("mod "):
        found = rest[4:].split(" = ")
        return len(found) == 2 and all(map(is_number, found)) and int(found[1]) < int(found[0])
    if rest.startswith("~ ") and start != "op1, op2 ":
        return len(rest) == 5 and set(rest[2:]) <= set("0123456789.") and rest[2:] != "..."
    if rest.startswith("in {") and rest.endswith("}") and words[0] == "result":
        results = rest[4:-1].split(", ")
        return all(map(is_number, results)) and len(results) in (2, 3, 4) and len(set(results)) > 1
    return False


def is_about_digits(text: str) -> bool:
    says, equals, value = text.partition(" = ")
    if not equals or not set(value) <= set("0123456789, "):
        return False
    if says.endswith(" of op1, op2"):
        return says.removesuffix(" of op1, op2") in PLACES and len(value) == 4 and value[1:3] == ", "
    if len(value) != 1 or not value.isdecimal():
        return False
    for before, after in (
        ("op1 ", ""),
        ("op2 ", ""),
        ("answer ", ""),
        ("", " of op1 + op2 mod 10"),
        ("", " of op1 - op2 mod 10"),
    ):
        if says in {before + place + after for place in PLACES}:
            return True
    return value in "01" and says in {f"{kind} into {place}" for kind in ("carry", "borrow") for place in PLACES[1:]}


def is_number(text: str) -> bool:
    """A non-negative integer as Python writes it, small enough for an array."""
    return re.fullmatch("[0-9]{1,19}", text) is not None and str(int(text)) == text and int(text) < 2**63


def accepts(text: str) -> bool:
    try:
        found = parse(text)
    except UserError as error:
        check_sentence(str(error))
        assert not is_heuristic(text)
        return False
    assert is_heuristic(text)
    assert parse(str(found)) == found
    assert str(found) == text or text.startswith("result in {")  # whose results may be in any order
    says = rule(text)
    for operator, prompts in PROMPTS.items():
        for a, b, holds in zip(prompts.op1.tolist(), prompts.op2.tolist(), found.holds(prompts).tolist(), strict=True):
            if (result := answer(operator, a, b)) >= 0:
                assert holds == says(a, b, result)
    found.holds(BIG)
    return True


@twice
def test_heuristics_are_parsed_or_refused(full: bool) -> None:
    assert fuzz("heuristics", texts(), accepts, full).accepted

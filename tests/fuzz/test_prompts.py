"""Prompts as people type them, and templates."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import strategies as st

from arithscope.prompts import OPERATORS, Prompts, Template, parse_prompt
from tests.fuzz.effort import fuzz, refused, twice

ODD = [
    "",
    "00",
    "01",
    "-1",
    "+1",
    "1.0",
    "1e3",
    "1_0",
    "９",
    "1९",
    "²",
    "Ⅷ",
    "x",
    "1 2",
    "9" * 5000,
    str(2**63),
    "\x00",
]
SIGNS = ["%", "", "−", "×", "÷", "**", "//", "+-", "=", "^"]
WHITE = ["", "", "", " ", "  ", "\t", "\n", "\u3000", "\u200b", " " * 3000, " \n" * 1500]

operands = st.one_of(
    st.integers(0, 50).map(str), st.integers(0, 50).map(str), st.sampled_from(ODD), st.text(max_size=3)
)
signs = st.one_of(st.sampled_from(OPERATORS), st.sampled_from(OPERATORS), st.sampled_from(SIGNS))
white = st.sampled_from(WHITE)
prompts = st.one_of(
    st.tuples(
        white, operands, white, signs, white, operands, white, st.sampled_from(["", "=", "==", "= ", "=\n", "=5"])
    ).map("".join),
    st.tuples(operands, signs, operands).map("".join),
    st.tuples(st.integers(0, 20).map(str), st.sampled_from(OPERATORS), st.integers(0, 9).map(str)).map("".join),
    st.tuples(st.integers(0, 20).map(str), white, st.sampled_from(OPERATORS), white, st.integers(0, 9).map(str)).map(
        "".join
    ),
    st.text(max_size=12),
    st.builds(
        lambda text, times: text * times,
        st.sampled_from([" ", "=", "1", "+", "\n", " =", "1 "]),
        st.sampled_from([0, 1, 2, 5, 4000]),
    ),
)
limits = st.tuples(
    st.integers(1, 60).map(lambda n: 61 - n),
    st.integers(2, 3000),
    st.lists(st.sampled_from(OPERATORS), unique=True, min_size=1),
)


def meant(text: str, operators: list[str], most: int, limit: int) -> tuple[int, str, int] | None:
    """The prompt in a text, found by splitting it at its first operator instead of matching it as a whole."""
    at = next((i for i, sign in enumerate(text) if sign in OPERATORS), None)
    if at is None or text[at] not in operators:
        return None
    right = text[at + 1 :].strip()
    right = right[:-1].strip() if right.endswith("=") else right
    numbers = [text[:at].strip(), right]
    if not all(re.fullmatch("[0-9]{1,9}", n) and str(int(n)) == n and int(n) <= most for n in numbers):
        return None
    a, b = map(int, numbers)
    if text[at] == "/" and b == 0:
        return None
    result = {"+": a + b, "-": a - b, "*": a * b, "/": a // (b or 1)}[text[at]]
    return (a, text[at], b) if 0 <= result < limit else None


def accepts_prompt(case: tuple[str, tuple[int, int, list[str]]]) -> bool:
    text, (most, limit, operators) = case
    found: list[Prompts] = []
    refusal = refused(lambda: found.append(parse_prompt(text, operators, most, limit)))
    expected = meant(text, operators, most, limit)
    assert (refusal is None) == (expected is not None)
    if expected is not None:
        a, operator, b = expected
        [prompt] = found
        assert (prompt.op1.tolist(), prompt.operator.tolist(), prompt.op2.tolist()) == (
            [a],
            [OPERATORS.index(operator)],
            [b],
        )
    return expected is not None


@twice
def test_prompts_are_parsed_or_refused(full: bool) -> None:
    assert fuzz("prompts", st.tuples(prompts, limits), accepts_prompt, full).accepted


pieces = st.sampled_from(
    [
        *(
            "{op1}",
            "{operator}",
            "{op2}",
            "{op1}",
            "{operator}",
            "{op2}",
            " ",
            "=",
            "{{",
            "}}",
            "{",
            "}",
            "{}",
            "{0}",
            "%s",
        ),
        *(
            "{op1!r}",
            "{op1:>9}",
            "{op1:{op2}}",
            "{op1.real}",
            "{op2[0]}",
            "{answer}",
            "\n",
            "\\n",
            "\ud800",
            "\x00",
            "é",
        ),
        *("{op1:999999999}", "{operator!x}", "{op1", "op1}", "{op1:}", "{ op1}", "$op1"),
    ]
)
templates = st.one_of(
    st.lists(pieces, max_size=8).map("".join),
    st.tuples(*(st.sampled_from(["", "", " ", "=", "{{", "}}", "a", "\ud800", "{", "\n"]) for _ in range(4))).map(
        lambda between: between[0] + "{op1}" + between[1] + "{operator}" + between[2] + "{op2}" + between[3]
    ),
)


def slots(text: str) -> list[str] | None:
    """The slots of a template in order, read character by character; None if it is invalid."""
    found, at = [], 0
    while at < len(text):
        if text[at : at + 2] in ("{{", "}}"):
            at += 2
        elif text[at] == "{":
            end = text.find("}", at)
            name = text[at + 1 : end] if end > 0 else ""
            if name.rstrip(":") not in ("op1", "operator", "op2") or name.count(":") > 1:
                return None
            found.append(name.rstrip(":"))
            at = end + 1
        elif text[at] == "}":
            return None
        else:
            at += 1
    return found


def accepts_template(case: tuple[str, str]) -> bool:
    text, prefix = case
    made: list[Template] = []
    refusal = refused(lambda: made.append(Template(text, prefix)))
    can_be_stored = not any("\ud800" <= letter <= "\udfff" for letter in text + prefix)
    assert (refusal is None) == (slots(text) == ["op1", "operator", "op2"] and can_be_stored)
    if refusal is None:
        [template] = made
        [shown] = Prompts(np.array([17]), np.array([2]), np.array([5])).text(template)
        assert shown.startswith(prefix)
        assert [shown.count(x) - (prefix + text).count(x) for x in ("17", "*", "5")] == [1, 1, 1]
    return refusal is None


@twice
def test_templates_are_accepted_or_refused(full: bool) -> None:
    prefixes = st.one_of(st.just(""), st.sampled_from(["1+2=3\n", "{op1}", "{", "\udcff", "\x00"]), st.text(max_size=5))
    assert fuzz("templates", st.tuples(templates, prefixes), accepts_template, full).accepted

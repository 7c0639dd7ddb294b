"""Titles and captions of answer steps name the token that is asked for, and where; those of whole numbers do not change."""

from __future__ import annotations

import re

import pytest

from arithscope.figures.registry import FigureSpec, all_figures
from arithscope.figures.words import WHOLE_NUMBERS, Words, shown_prompt, words_for
from arithscope.prompts import Layout, Stratum, whole_numbers
from tests.strata import SUMS

# Terms that are about a step, too, and what is said of prompts.
ALLOWED = r"answer layers?|answer\.\d|answered|answers an operator correctly"


@pytest.mark.parametrize("spec", all_figures(), ids=lambda spec: spec.name)
def test_captions_of_steps_are_about_the_token(spec: FigureSpec) -> None:
    if spec.section in ("answers", "carries", "shared"):
        return
    own = spec.in_words(words_for(SUMS.at_step(2)))
    text = f"{own.title}. {own.caption}"
    assert "{" not in text
    assert "last position" not in text
    assert "answer" not in re.sub(ALLOWED, "", text)
    assert "226" not in text
    if "the tens digit" in text:
        assert text.replace("the tens digit", "the answer") != text


def test_words() -> None:
    assert words_for(whole_numbers(300, 1000)) == WHOLE_NUMBERS == Words()
    assert WHOLE_NUMBERS.fill("the {ANSWER} at {LAST}, {OP1}") == "the answer at the last position, op1"
    first, tens, units = (words_for(step) for step in SUMS.every_step())
    assert first.fill("the {ANSWER} at {LAST}") == "the hundreds digit at the last position"
    assert tens.fill("the {ANSWER} at {LAST}, {OP1}") == "the tens digit at answer.1, the last token of op1"
    assert units.fill("the {ANSWER} at {LAST}") == "the units digit at answer.2"


def test_tokens_of_several_digits_have_a_general_name() -> None:
    stratum = Stratum((100, 999), (100, 999), (1000, 1998), Layout((0,), (0,), (3, 0)))
    assert [words_for(step).answer for step in stratum.every_step()] == ["answer token", "answer token"]
    assert stratum.cut("answer", 1005) == ["1", "005"]
    assert shown_prompt(stratum.at_step(2), 500, "+", 505) == "500+505=1·"


def test_prompts_show_what_a_step_is_given() -> None:
    assert [shown_prompt(step, 45, "+", 78) for step in SUMS.every_step()] == ["45+78=", "45+78=1·", "45+78=1·2·"]
    assert shown_prompt(whole_numbers(300, 1000), 226, "-", 68) == "226−68="

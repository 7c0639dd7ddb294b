"""Properties of strata, for random operands, tokenizers and templates: prompts are what the tokenizer makes of their texts, and
every prompt is in the one stratum where it belongs."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arithscope.errors import UserError
from arithscope.models.layouts import FEWEST_PROMPTS, find_strata
from arithscope.models.tokenization import PromptEncoder
from arithscope.models.tokenizer_reader import digits_of
from arithscope.prompts import OPERATORS, Operands, Prompts, Stratum, Template, concatenate_prompts
from tests import tokenizers_for_tests as made

TOKENIZERS = {
    "digits": made.digit_splitting(),
    "left": made.three_chunks(),
    "right": made.right_grouped(),
    "pieces": made.sentence_piece(signs="+-*/="),  # as Llama 2: ▁ alone before a number, but ▁+ is one token
}
TEMPLATES = [
    Template(),
    Template("{op1}{operator}{op2}= "),
    Template("{op1} {operator} {op2} ="),
    Template("{op1} {operator} {op2} = ", prefix="12 + 34 = 46\n"),
]
# Lengths of operands that each tokenizer cuts alike.
ALIKE = {name: [(n, n) for n in range(1, 6)] for name in ("digits", "pieces")}
ALIKE |= {"left": [(1, 3), (4, 4), (5, 5)], "right": [(1, 3), (4, 6)]}


@cache
def encoder_of(name: str, template: Template) -> PromptEncoder:
    return PromptEncoder(TOKENIZERS[name], template)


@st.composite
def operands_of(draw: st.DrawFn, name: str, most: int) -> Operands:
    """Ranges of numbers that the tokenizer cuts alike, at most `most` numbers each."""

    def one() -> tuple[int, int]:
        shortest, longest = draw(st.sampled_from(ALIKE[name]))
        least, greatest = 0 if shortest == 1 else 10 ** (shortest - 1), 10**longest - 1
        low = draw(st.integers(least, greatest))
        return low, min(greatest, low + draw(st.integers(0, most - 1)))

    return one(), one()


def tokens_of(tokenizer: Any, text: str) -> list[int]:
    return [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]


def places_of_answer(tokenizer: Any, text: str, answer: int) -> tuple[int, ...]:
    """Exponent of the lowest digit of each token of the answer, read off the whole text from its end."""
    places: list[int] = []
    done = 0
    for token in reversed(tokens_of(tokenizer, f"{text}{answer}")):
        if done == len(str(answer)):
            break
        places.insert(0, done)
        done += len(digits_of(tokenizer.decode([token])))
    assert done == len(str(answer))
    return tuple(places)


def answered(ranges: Operands, operators: str) -> Prompts:
    """All prompts whose answers are 0 or more."""
    sides = [np.arange(low, high + 1) for low, high in ranges]
    op1, op2 = (side.ravel() for side in np.meshgrid(*sides, indexing="ij"))
    every = concatenate_prompts([Prompts(op1, np.full_like(op1, OPERATORS.index(o)), op2) for o in operators])
    return every[every.answer >= 0]


def strata_of(name: str, template: Template, operators: str, ranges: Operands) -> list[Stratum]:
    try:
        return find_strata(encoder_of(name, template), operators, ranges)
    except UserError as refusal:
        if f"There are no {FEWEST_PROMPTS} prompts" not in str(refusal):
            raise
        return []


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=25)
@given(data=st.data())
def test_every_prompt_is_in_its_stratum_alone(name: str, data: st.DataObject) -> None:
    """Prompts whose answers are cut alike share a stratum, if one of the operators has enough of them."""
    template = data.draw(st.sampled_from(TEMPLATES))
    operators = "".join(data.draw(st.sets(st.sampled_from(OPERATORS), min_size=1)))
    ranges = data.draw(operands_of(name, 25))
    prompts = answered(ranges, operators)
    rows = zip(prompts.text(template), prompts.answer.tolist(), strict=True)
    places = [places_of_answer(TOKENIZERS[name], text, answer) for text, answer in rows]
    sizes = Counter(zip(places, prompts.operator.tolist(), strict=True))
    large = sorted({cut for (cut, _), size in sizes.items() if size >= FEWEST_PROMPTS})
    strata = strata_of(name, template, operators, ranges)
    assert sorted(stratum.tokens.answer for stratum in strata) == large
    for stratum in strata:
        own = [cut == stratum.tokens.answer for cut in places]
        assert stratum.legal(prompts).tolist() == own
        assert len(stratum.prompts(operators)) == sum(own)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=15)
@given(data=st.data())
def test_prompts_have_the_tokens_of_their_whole_texts(name: str, data: st.DataObject) -> None:
    """Also where the operand grid is only a sample of the operands; with all steps of the answer."""
    template = data.draw(st.sampled_from(TEMPLATES))
    operators = "".join(data.draw(st.sets(st.sampled_from(OPERATORS), min_size=1)))
    ranges = data.draw(operands_of(name, data.draw(st.sampled_from([30, 3000]))))
    for first in strata_of(name, template, operators, ranges):
        stratum = first.at_step(first.steps)
        prompts = stratum.prompts(operators)
        assert (prompts.answer >= 0).all()
        some = prompts[data.draw(st.lists(st.integers(0, len(prompts) - 1), min_size=1, max_size=50))]
        texts = zip(some.text(template), some.answer.tolist(), strict=True)
        whole = [tokens_of(TOKENIZERS[name], f"{text}{answer}") for text, answer in texts]
        last = encoder_of(name, template).at(stratum)
        assert last.encode_answered(some).tolist() == whole
        assert last.encode(some).tolist() == [tokens[:-1] for tokens in whole]
        assert last.answers(some).tolist() == [tokens[-1] for tokens in whole]

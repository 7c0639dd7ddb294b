"""Prompts to tokens, for tokenizers that split them in different ways."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from arithscope.errors import UserError
from arithscope.models.tokenization import Positions, PromptEncoder
from arithscope.models.untrained import number_tokenizer
from arithscope.prompts import OPERATORS, Prompts, Template, operand_grid, random_source, sample
from tests import tokenizers_for_tests as made
from tests.families import small

SPACED = Template("{op1} {operator} {op2} = ", prefix="1 + 2 = 3\n")


def word_digits(digits: str) -> PreTrainedTokenizerFast:
    return made.word_tokenizer(".", [*digits, *"+-*/="])


def one(a: int, operator: int, b: int) -> Prompts:
    return Prompts(np.array([a]), np.array([operator]), np.array([b]))


def four_positions(op1: int, operator: int, op2: int, last: int) -> Positions:
    return Positions((("op1", op1), ("operator", operator), ("op2", op2), ("last", last)))


def test_whole_numbers() -> None:
    encoder = PromptEncoder(number_tokenizer(1000), Template())
    assert encoder.limit == 1000
    assert encoder.is_plain
    assert encoder.positions == four_positions(1, 2, 3, 4)
    assert encoder.tokens(encoder.encode(one(226, 1, 68))[0]) == ["<bos>", "226", "-", "68", "="]
    assert encoder.tokens(encoder.answers(one(226, 1, 68))) == ["158"]


def test_split_digits_leave_ten_numbers() -> None:
    encoder = PromptEncoder(made.digit_splitting(), Template())
    assert encoder.limit == 10
    with pytest.raises(UserError, match="--max-operand 9"):
        encoder.encode(one(10, 0, 1))


def test_spaces_and_prefix() -> None:
    """The digit splitter makes the last space a token; the other one joins it to the answer."""
    apart = PromptEncoder(made.digit_splitting(), SPACED)
    assert apart.tokens(apart.encode(one(4, 0, 5))[0])[-6:] == ["4", " +", " ", "5", " =", " "]
    assert apart.positions == four_positions(9, 10, 12, 14)
    assert not apart.is_plain
    joined = PromptEncoder(made.with_leading_spaces(30, 20), SPACED)
    assert joined.tokens(joined.encode(one(4, 0, 5))[0])[-4:] == ["4", " +", " 5", " ="]
    assert joined.tokens(joined.answers(one(4, 0, 5))) == [" 9"]
    assert joined.limit == 20  # op1 could go to 29, op2 and the answer to 19
    assert joined.positions.final == joined.length - 1


def test_a_tokenizer_without_bos() -> None:
    encoder = PromptEncoder(made.with_leading_spaces(30, 30, bos=None), Template())
    assert encoder.positions == four_positions(0, 1, 2, 3)
    assert encoder.is_plain


@pytest.mark.parametrize(
    ("tokenizer", "template"),
    [
        (number_tokenizer(25), Template()),
        (made.digit_splitting(), Template()),
        (made.digit_splitting(), SPACED),
        (made.with_leading_spaces(30, 20), SPACED),
        (made.with_leading_spaces(30, 20, bos=None), Template()),
        (made.byte_level(30), Template()),
        (made.byte_level(30), SPACED),
        (made.sentence_piece(), Template()),
        (made.sentence_piece(), SPACED),
        (made.sentence_piece(digits="13579"), Template()),
        (made.misreading(made.digit_splitting(), {"½": "1/2 "}), Template(prefix="½")),
        (made.misreading(word_digits("٠١٢٣٤٥٦٧٨٩"), dict(zip("0123456789", "٠١٢٣٤٥٦٧٨٩", strict=True))), Template()),
    ],
)
def test_tables_equal_encoding_whole_texts(tokenizer: object, template: Template) -> None:
    encoder = PromptEncoder(tokenizer, template)
    assert encoder.first_mismatch(operand_grid("+-*/", encoder.limit - 1)) is None


@pytest.mark.parametrize(
    ("letters", "message"),
    [
        ({"6": "7", "7": "6"}, "reads the number 6 as op1 as '7'"),
        (dict(zip("0123456789", "1234567890", strict=True)), "reads the number 0 as op1 as '1'"),
        ({"-": "+", "+": "-"}, r"reads the operator \+ as '-'"),
        ({"=": "-"}, "as '<bos>.*-"),
    ],
)
def test_misread_numbers_and_operators_are_refused(letters: dict[str, str], message: str) -> None:
    """All tokens stay distinct, so tables and whole texts agree; only decoding shows it."""
    with pytest.raises(UserError, match=message):
        PromptEncoder(made.misreading(number_tokenizer(100), letters), Template())


@given(st.integers(2, 400), st.sets(st.sampled_from(OPERATORS)))
def test_examples_are_legal_prompts(limit: int, operators: set[str]) -> None:
    encoder = copy.copy(small("llama").encoder)
    encoder.limit, encoder.operators = limit, tuple(sorted(operators))
    examples = encoder.examples()
    assert examples.legal(limit).all()
    assert {OPERATORS[i] for i in examples.operator} == operators
    assert len(examples) >= 4 or limit < 4 or not operators


@given(st.data())
def test_rows_are_encoded_independently(data: st.DataObject) -> None:
    encoder = PromptEncoder(number_tokenizer(50), Template())
    n = data.draw(st.integers(1, 20))
    pick = [data.draw(st.lists(st.integers(0, top), min_size=n, max_size=n)) for top in (49, 3, 49)]
    prompts = Prompts(*map(np.array, pick))
    batch = encoder.encode(prompts)
    for i in range(n):
        assert batch[i].tolist() == encoder.encode(prompts[[i]])[0].tolist()


def test_joined_tokens_are_refused() -> None:
    with pytest.raises(UserError, match="joins"):
        PromptEncoder(made.joining_the_equals_sign(20), Template())


def test_splits_that_depend_on_neighbours_lower_the_limit() -> None:
    """`7+` is one token, so 7 is not a single token as op1; the numbers below it are."""
    encoder = PromptEncoder(made.joining_some_pairs(20), Template())
    assert encoder.limit == 7
    assert encoder.first_mismatch(operand_grid("+-*/", 6)) is None


def test_splits_that_show_only_in_some_pairs_are_refused() -> None:
    """`5-8` is one token, which varying one slot at a time does not show."""
    words = [*map(str, range(9)), *(f"5-{n}" for n in range(9)), "+", "-", "*", "/", "="]
    with pytest.raises(UserError, match="neighbouring"):
        PromptEncoder(made.word_tokenizer(r"5-\d|\d|.", words), Template())


def test_a_missing_operator_is_named() -> None:
    encoder = PromptEncoder(made.without_star(20), Template())
    assert encoder.operators == ("+", "-", "/")
    assert len(encoder.encode(one(3, 0, 4))) == 1
    with pytest.raises(UserError, match=r"'\*' is not a single token"):
        encoder.encode(one(3, 2, 4))


def test_a_template_the_tokenizer_does_not_know() -> None:
    with pytest.raises(UserError, match="does not know every character"):
        PromptEncoder(number_tokenizer(20), Template("{op1} {operator} {op2} ="))


def test_labels_of_positions_are_distinct() -> None:
    assert small("llama").encoder.labels == ("<bos>", "op1", "operator", "op2", "last")
    labels = small("llama", prefix="1+2=3=4+5=9=").encoder.labels
    assert labels[:5] == ("<bos>", "1", "+:2", "2", "=:4")
    assert labels[-4:] == ("op1", "operator", "op2", "last")
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("tokenizer", [made.three_chunks(), made.right_grouped()])
@pytest.mark.parametrize("template", [Template(), SPACED])
def test_chunks_of_three_digits_leave_a_thousand_numbers(tokenizer: object, template: Template) -> None:
    encoder = PromptEncoder(tokenizer, template)
    assert encoder.limit == 1000
    assert encoder.first_mismatch(sample(operand_grid("+-*/", 999), 2000, random_source(0, "chunks"))) is None
    with pytest.raises(UserError, match="--max-operand 999"):
        encoder.encode(one(1000, 0, 1))


def test_a_number_without_known_tokens_has_no_places() -> None:
    """None of the numbers asked about has a token."""
    encoder = PromptEncoder(number_tokenizer(50), Template())
    assert encoder.places("op1", np.array([7, 50, 0])) == [(0,), None, (0,)]
    assert encoder.places("answer", np.array([50, 51])) == [None, None]

"""Operator words and conversations: what is encoded, where its positions are, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.errors import UserError
from arithscope.models.tokenization import PromptEncoder
from arithscope.models.untrained import number_tokenizer
from arithscope.prompts import OPERATORS, Prompts, Template, legal_prompts, operand_grid
from tests import tokenizers_for_tests as made

WORDS = {"+": "plus", "-": "minus", "*": "times"}
QUESTION = Template("What is {op1} {operator} {op2}? Answer: ", words=WORDS)
SPACED = "{op1} {operator} {op2} = "

TOKENIZERS: dict[str, Callable[[], Any]] = {
    "words": lambda: made.reading_words(30),
    "no BOS": lambda: made.reading_words(30, bos=None),
    "bytes": lambda: made.byte_level(30),
}
CHATS = {"ChatML": made.CHATML, "Llama 3": made.LLAMA_3, "Gemma": made.GEMMA}
CONVERSATIONS = [
    Template(chat=True),
    Template(SPACED, chat=True),
    Template(SPACED, "1 + 2 = 3\n", chat=True),
    Template("{op1} {operator} {op2}?", chat=True, reply="The answer is "),
    Template("\n{op1}{operator}{op2}", chat=True, reply="="),
]


def library_tokens(tokenizer: Any, message: str, reply: str) -> list[int]:
    """The oracle: the library renders the whole conversation; BOS is put in front if there is one and it has not done so."""
    conversation = [{"role": "user", "content": message}]
    rendered = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    rendered = re.sub(r"Today: \d\d \w{3} \d{4}", "Today: 26 Jul 2024", rendered)
    tokens: list[int] = tokenizer(rendered + reply, add_special_tokens=False)["input_ids"]
    bos = tokenizer.bos_token_id
    return tokens if bos is None or tokens[0] == bos else [bos, *tokens]


@pytest.mark.parametrize("template", CONVERSATIONS, ids=str)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_conversations_are_encoded_as_the_library_renders_them(name: str, chat: str, template: Template) -> None:
    tokenizer = made.with_chat(TOKENIZERS[name](), CHATS[chat])
    encoder = PromptEncoder(tokenizer, template)
    assert encoder.operators == OPERATORS
    prompts = operand_grid("+-*/", encoder.limit - 1)[:: encoder.limit // 3]
    ids = encoder.encode(prompts)
    for row, message in zip(ids.tolist(), prompts.text(template), strict=True):
        whole = library_tokens(tokenizer, message, template.reply + "7")
        assert row == whole[: len(row)]
        assert whole[len(row) :] == [int(encoder.answer_tokens[7])]
    first = legal_prompts("+", 1, encoder.limit)[:1]
    assert encoder.tokens(encoder.encode(first)[0]).count("<bos>") == (tokenizer.bos_token is not None)
    assert encoder.first_mismatch(prompts) is None


@pytest.mark.parametrize("chat", CHATS)
def test_positions_of_a_conversation(chat: str) -> None:
    """The question mark and the markers of turns lie between op2 and last."""
    template = Template("What is {op1} {operator} {op2}?", words=WORDS, chat=True, reply="The answer is")
    encoder = PromptEncoder(made.with_chat(made.reading_words(30), CHATS[chat]), template)
    at = encoder.positions
    tokens = encoder.tokens(encoder.encode(Prompts([12], [1], [7]))[0])
    assert [tokens[i] for _, i in at.names] == [" 12", " minus", " 7", " is"]
    assert [name for name, _ in at.names] == ["op1", "operator", "op2", "last"]
    assert at.final == encoder.length - 1
    between = tokens[at.op2 + 1 : at.final]
    assert between[0] == "?"
    assert set(between) & set(made.MARKERS)
    assert len(set(encoder.labels)) == encoder.length


def test_words_are_single_tokens_at_the_operators_position() -> None:
    encoder = PromptEncoder(made.reading_words(30), QUESTION)
    assert encoder.operators == OPERATORS
    words = [encoder.tokens(encoder.encode(Prompts([12], [i], [7]))[0])[encoder.positions.operator] for i in range(4)]
    assert words == [" plus", " minus", " times", " /"]
    assert encoder.first_mismatch(operand_grid("+-*/", 29)) is None


@pytest.mark.parametrize("word", ["divided by", "sum of", "grows"])
def test_a_word_of_several_tokens_cannot_be_asked_for(word: str) -> None:
    """`+` too: then another operator stands in the prompt that is compared with others."""
    for i, operator in enumerate(OPERATORS):
        words = {**WORDS, operator: word}
        encoder = PromptEncoder(made.reading_words(30), Template(QUESTION.text, words=words))
        assert encoder.operators == tuple(o for o in OPERATORS if o != operator)
        with pytest.raises(UserError, match=f"^The word '{word}' for the operator .* is not a single token"):
            encoder.encode(Prompts([3], [i], [4]))


def test_signs_keep_their_message() -> None:
    encoder = PromptEncoder(made.without_star(20), Template())
    with pytest.raises(UserError, match=r"^The operator '\*' is not a single token"):
        encoder.check("*", 5)


@given(st.permutations(["plus", "minus", "times"]), st.sets(st.sampled_from(OPERATORS), max_size=3))
def test_any_words_are_encoded_as_whole_texts(words: list[str], operators: set[str]) -> None:
    template = Template(QUESTION.text, words=dict(zip(operators, words, strict=False)))
    tokenizer = made.reading_words(12)
    encoder = PromptEncoder(tokenizer, template)
    prompts = operand_grid("+-*/", 11)[::7]
    texts = tokenizer([f"<bos>{text}" for text in prompts.text(template)], add_special_tokens=False)["input_ids"]
    # The answer's token has the last space.
    assert encoder.encode(prompts).tolist() == [tokens[:-1] for tokens in texts]


@pytest.mark.parametrize(
    ("letters", "message"),
    [
        ({"plus": "minus", "minus": "plus"}, r"reads the operator \+ as 'minus'"),
        ({"Answer": "="}, r"reads What is .*\? Answer: \d+ as"),
    ],
)
def test_misread_words_are_refused(letters: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PromptEncoder(made.misreading(made.reading_words(30), letters), QUESTION)


def test_misread_signs_around_a_message_are_refused() -> None:
    """The decoded text is compared up to the answer, also behind the message."""
    chat = made.CHATML.replace("assistant", "model=")
    assert PromptEncoder(made.with_chat(made.reading_words(30), chat), Template(chat=True)).limit == 30
    with pytest.raises(UserError, match=r"reads \d+\+\d+=\d+ as"):
        PromptEncoder(made.misreading(made.with_chat(made.reading_words(30), chat), {"l=": "l-"}), Template(chat=True))


def test_spaces_around_a_message_are_removed_if_the_template_does_so() -> None:
    template = Template("  {op1} {operator} {op2} = ", chat=True)
    kept, removed = (
        PromptEncoder(made.with_chat(made.reading_words(30), c), template) for c in (made.CHATML, made.GEMMA)
    )
    assert not kept.surroundings.trimmed
    assert removed.surroundings.trimmed
    assert not PromptEncoder(
        made.with_chat(made.reading_words(30), made.GEMMA), Template(chat=True)
    ).surroundings.trimmed


def test_dates_in_a_chat_template_are_always_the_same() -> None:
    encoder = PromptEncoder(made.with_chat(made.byte_level(30), made.LLAMA_3), Template(chat=True))
    assert "Today: 26 Jul 2024" in encoder.surroundings.before


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        (None, "has no chat template; leave out --chat"),
        ("{{ messages[0]['content'] | upper }} {{ 1 / 0 }}", r"cannot be used \(division by zero\)"),
        ("{{ messages[0]['content'] | replace('+', 'and') }}", "changes or repeats it"),
        ("{{ messages[0]['content'] | replace('45', '46') }}", "changes or repeats it"),
        ("{{ messages[0]['content'] }}{{ messages[0]['content'] }}", "changes or repeats it"),
        ("{{ messages[0]['content'][:2] }}", "changes or repeats it"),
        ("nothing", "changes or repeats it"),
        ("{{ raise_exception('no\n\nusers') }}", r"cannot be used \(no users\)"),
        ("{% bad", "cannot be used"),
    ],
)
def test_chat_templates_that_cannot_be_used(chat: str | None, message: str) -> None:
    tokenizer = number_tokenizer(30)
    tokenizer.chat_template = chat
    with pytest.raises(UserError, match=message) as error:
        PromptEncoder(tokenizer, Template(chat=True))
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)
    assert PromptEncoder(tokenizer, Template()).limit == 30


def test_a_prompt_without_conversation_is_encoded_as_before() -> None:
    """A chat template alone changes nothing."""
    plain = made.reading_words(30)
    before = PromptEncoder(plain, Template(SPACED)).encode(operand_grid("+-*/", 20))
    after = PromptEncoder(made.with_chat(made.reading_words(30), made.LLAMA_3), Template(SPACED))
    assert np.array_equal(before, after.encode(operand_grid("+-*/", 20)))

"""Wordings that doctor compares, and the options of the command line that give them."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.cli import wordings
from arithscope.cli.wordings import compare_wordings, wording_options
from arithscope.models import load as load_module
from arithscope.models.model import Identity, Model
from arithscope.models.untrained import untrained_model
from arithscope.prompts import OPERATORS, Template
from arithscope.settings import Settings
from tests import tokenizers_for_tests as made
from tests.command_line import call
from tests.families import CONFIGS, small

ALL = (*wordings.PLAIN, *wordings.IN_CHAT)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["C"], exclude_characters="{}\\"), max_size=6)
lines = st.lists(texts, max_size=3).map("\n".join)
words = st.dictionaries(st.sampled_from(OPERATORS), st.sampled_from(["plus", "ist'", "été", '"', "$x"]), max_size=4)


def given_to(options: str, monkeypatch: pytest.MonkeyPatch) -> Template:
    """The template with which a command line loads its model."""
    loaded: list[Template] = []

    def load(model: str, template: Template, options: Any) -> None:
        loaded.append(template)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(load_module, "load", load)
        call("doctor", *shlex.split(options))
    return loaded[0]


@pytest.mark.parametrize("template", ALL, ids=wording_options)
def test_options_give_each_wording(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    options = wording_options(template)
    assert given_to("" if template == Template() else options, monkeypatch) == template


@given(lines, lines, lines, words.filter(lambda words: len({*words.values()}) == len(words)))
def test_options_give_any_template(text: str, prefix: str, reply: str, words: dict[str, str]) -> None:
    template = Template(text + "{op1}{operator}{op2}=", prefix, words, True, reply)
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert given_to(wording_options(template), monkeypatch) == template


@cache
def conversing(chat: str | None, template: Template, positions: int = 128) -> Model:
    tokenizer = made.reading_words(30)
    if chat is not None:
        made.with_chat(tokenizer, chat)
    hf_model = untrained_model("llama", {**CONFIGS["llama"], "max_position_embeddings": positions}, tokenizer)
    return Model(hf_model, tokenizer, Identity("conversing", "", "weights", "words"), template)


def accuracy_by(template: Template) -> Any:
    """An accuracy that is 1 with this template and 0 with others."""
    return lambda model, prompts: dict.fromkeys("+-", float(model.encoder.template == template))


@pytest.mark.parametrize("in_use", [Template(), wordings.PLAIN[2], Template("{op1} {operator}{op2} =")])
@pytest.mark.parametrize("chat", [None, made.GEMMA])
def test_every_wording_has_a_line_and_the_best_is_named(
    chat: str | None, in_use: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, settings = conversing(chat, in_use), Settings(("+", "-"), 20)
    measured = list(compare_wordings(model, settings))
    expected = {wording_options(t) for t in (in_use, *wordings.PLAIN, *(wordings.IN_CHAT if chat else ()))}
    unknown = {line for line in measured if "cannot be used" in line}  # of its letters or words, `over` or `number`
    scores = [re.fullmatch(r"  ([ →]) \+ [01]\.\d\d  - [01]\.\d\d  (.*)", line) for line in measured]
    found = [match.groups() for match in scores if match]
    assert found[0] == ("→", wording_options(in_use))
    assert {mark for mark, _ in found[1:]} == {" "}
    assert len(found) + len(unknown) == len(expected)
    assert {options for _, options in found} <= expected
    assert measured[0].endswith("operands 0…20; → is in use")
    assert sum("(op1)" in line and "(last)" in line for line in measured) == len(found)
    for template in (in_use, *(t for t in ALL if wording_options(t) in {options for _, options in found})):
        monkeypatch.setattr(wordings, "_accuracy", accuracy_by(template))
        best = "the one in use" if template == in_use else wording_options(template)
        assert list(compare_wordings(model, settings))[-1] == f"best wording  {best}"


def test_wordings_that_cannot_be_used_are_explained() -> None:
    """The numbers' tokenizer knows no letters."""
    shown = "\n".join(compare_wordings(small("llama"), Settings(("+",), 9)))
    assert re.search("cannot be used: --template 'What is .*does not know every character", shown)
    shown = "\n".join(compare_wordings(conversing(None, Template(), positions=16), Settings(("+",), 9)))
    assert re.search(r"cannot be used: .*--prefix .*it takes \d+ tokens, but the model reads only 16\)", shown)


def test_a_word_of_several_tokens_is_not_asked() -> None:
    """`over` is no token here."""
    lines = list(compare_wordings(conversing(None, wordings.PLAIN[1]), Settings(("+", "/"), 9)))
    assert any("/ none" in line for line in lines)

"""Tokenizers that split prompts in the ways real ones do."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def word_tokenizer(pattern: str, words: list[str], bos: str | None = "<bos>") -> PreTrainedTokenizerFast:
    """Splits by a pattern and looks up each part whole."""
    vocabulary = dict.fromkeys([*words, "<bos>", "<unk>"])
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, unk_token="<unk>")


SIGNS = ["+", "-", "*", "/", "=", " ", "\n", " =", *(f" {o}" for o in "+-*/")]


def digit_splitting() -> PreTrainedTokenizerFast:
    """Each digit a token, as in Gemma, Mistral or SmolLM."""
    return word_tokenizer(r"\d| ?[-+*/=]|\s|.", [*map(str, range(10)), *SIGNS])


def with_leading_spaces(limit: int, spaced_limit: int, bos: str | None = "<bos>") -> PreTrainedTokenizerFast:
    """A space is part of the next number, and fewer of these numbers are single tokens, as in GPT-2."""
    numbers = [*map(str, range(limit)), *(f" {n}" for n in range(spaced_limit))]
    return word_tokenizer(r" ?\d+| ?[-+*/=]|\s|.", [*numbers, *SIGNS], bos)


def joining_the_equals_sign(limit: int) -> PreTrainedTokenizerFast:
    """`=3` is one token: no position holds `=` alone."""
    return word_tokenizer(r"=\d+|\d+|.", [*map(str, range(limit)), *(f"={n}" for n in range(limit)), *SIGNS])


def joining_some_pairs(limit: int) -> PreTrainedTokenizerFast:
    """`7+` is one token: the split depends on the neighbouring number."""
    words = [*map(str, range(limit)), *(f"7{o}" for o in "+-*/"), *SIGNS]
    return word_tokenizer(r"7[-+*/]|\d+|.", words)


def without_star(limit: int) -> PreTrainedTokenizerFast:
    return word_tokenizer(r"\d+|.", [*map(str, range(limit)), "+", "-", "/", "="])

"""Numbers of several tokens on the command line: every mistake ends with one sentence, and nothing is written."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from arithscope.models.untrained import number_tokenizer, untrained_model
from tests import tokenizers_for_tests as made
from tests.command_line import error_message
from tests.families import CONFIGS

NINES = "999999999"
DIGITS, WHOLE, WORDS = number_tokenizer(10, digits=True), number_tokenizer(1000), made.reading_words(10)
SUMS = ("--operators", "+")
JOINED = made.word_tokenizer(r"=\d\d+|\d|.", [*map(str, range(10)), *made.SIGNS, *(f"={n}" for n in range(10, 199))])
JOINED_DIGIT = made.word_tokenizer(r"=?\d|.", [*map(str, range(10)), *made.SIGNS, *(f"={n}" for n in range(10))])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Saves a random model with a tokenizer."""

    @cache
    def save(tokenizer: Any) -> Path:
        folder = tmp_path_factory.mktemp("model")
        untrained_model("llama", CONFIGS["llama"], tokenizer, seed=1).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


REFUSED: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "few prompts": (DIGITS, (*SUMS, "--operands", "98-99"), "There are no 30 prompts with operands 98…99 and 98…99"),
    "mixed lengths": (DIGITS, (*SUMS, "--operands", "5-12"), "different tokens; use --operands 5-9."),
    "backwards": (DIGITS, ("--operands", "9-1"), "no range of operands 9-1"),
    "letters": (DIGITS, ("--operands", "a-b"), "not a range of numbers"),
    "negative": (DIGITS, ("--operands", "-5-3"), "not a range of numbers"),
    "empty": (DIGITS, ("--operands", ""), "not a range of numbers"),
    "three ranges": (DIGITS, ("--operands", "1-2,3-4,5-6"), "not a range of numbers"),
    "huge": (DIGITS, ("--operands", f"0-{10**30}"), "not a range of numbers of at most 9 digits"),
    "ten digits": (DIGITS, ("--operators", "*", "--operands", f"1-1{NINES}"), "numbers of at most 9 digits"),
    "no digits": (DIGITS, ("--digits", "0"), "not a number of digits from 1 to 9"),
    "digits in letters": (DIGITS, ("--digits", "x"), "not a number of digits from 1 to 9"),
    "three numbers of digits": (DIGITS, ("--digits", "2,1,3"), "not a number of digits from 1 to 9"),
    "25 digits": (DIGITS, ("--digits", "25"), "not a number of digits from 1 to 9"),
    "both": (DIGITS, ("--digits", "2", "--operands", "10-99"), "exclude each other"),
    "operands and a largest one": (DIGITS, ("--operands", "10-99", "--max-operand", "9"), "takes its place; give one"),
    "digits and a largest operand": (DIGITS, ("--digits", "2", "--max-operand", "9"), "takes its place; give one"),
    "only negative answers": (DIGITS, ("--operators", "-", "--operands", "10-19,50-59"), "answers are 0 or more"),
    "division by zero alone": (DIGITS, ("--operators", "/", "--operands", "10-99,0-0"), "answers are 0 or more"),
    "answers that merge": (JOINED, (*SUMS, "--digits", "2"), "another template, such as --template '{op1}{operator}{op2}= '"),
    "a digit that merges": (JOINED_DIGIT, (*SUMS, "--digits", "2"), "such as --template '{op1}{operator}{op2}= '."),
    "unknown answers": (WHOLE, ("--operators", "*", "--digits", "3"), "does not cut the answers 10000…998001"),
    "words without a sign": (DIGITS, (*SUMS, "--digits", "2", "--operator-words", "+plus"), "as in +=plus,-=minus"),
    "words of no operator": (DIGITS, (*SUMS, "--digits", "2", "--operator-words", "%=plus"), "'%' is not an operator"),
    "an unknown word": (DIGITS, (*SUMS, "--digits", "2", "--operator-words", "+=plus"), "The word 'plus' for the operator"),
    "a word of two tokens": (
        WORDS,
        (*SUMS, "--digits", "1", "--template", "{op1} {operator} {op2} =", "--operator-words", "+=divided by"),
        "The word 'divided by' for the operator '+' is not a single token",
    ),
    "no chat template": (DIGITS, (*SUMS, "--digits", "2", "--chat"), "has no chat template; leave out --chat"),
    "a reply alone": (DIGITS, (*SUMS, "--digits", "2", "--reply", "It is "), "use --reply together with --chat"),
    "a stage of several steps": (WHOLE, ("--stages", "carries", "--max-operand", "9"), "choose operands with --digits"),
}  # fmt: skip


@pytest.mark.parametrize(("tokenizer", "options", "reason"), REFUSED.values(), ids=REFUSED)
def test_run_refuses(
    tokenizer: Any,
    options: tuple[str, ...],
    reason: str,
    saved: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert reason in error_message(capsys, "run", saved(tokenizer), *options, "--out", tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--digits", "0"), "not a number of digits"),
        (("--operands", "7"), "not a range of numbers"),
        (("--digits", "2", "--operands", "10-99"), "exclude each other"),
        (("--digits", "2", "--max-operand", "5"), "takes its place; give one"),
        (("--operators", "", "--digits", "2"), "No operator was given"),
    ],
)
def test_doctor_refuses(options: tuple[str, ...], reason: str, saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert reason in error_message(capsys, "doctor", saved(DIGITS), *options)

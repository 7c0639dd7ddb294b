"""Every text of every task is true, and is written as the tokenizer reads it."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arithscope.training.batches import IGNORED, Writer
from arithscope.training.corpus import TASKS, WORDS, Draw
from arithscope.training.recipe import DataRecipe

DIGIT_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
CPU = torch.device("cpu")
SIZE = 40


def data(numbers: int, digits: bool = False) -> DataRecipe:
    return DataRecipe({"+": 0.5}, 0.0, 0, numbers, 9, digits=digits, tasks=dict.fromkeys(TASKS, 0.1))


def spelled(words: list[str]) -> int:
    return int("".join(str(DIGIT_WORDS.index(word)) for word in words))


def is_true(text: str, places: int) -> bool:
    """Whether a text of any task is true, worked out in plain Python."""
    task, *words = text.split()
    before, _, after = " ".join(words).partition(" : ")
    given, answer = before.split(), after.split()
    if task == "count":
        numbers = [int(word) for word in given]
        steps = {b - a for a, b in pairwise(numbers)}
        return len(numbers) == 5 and len(steps) == 1 and abs(steps.pop()) in (1, 2, 3, 5, 10, 20, 50, 100)
    if task == "read":
        return len(given) == places and spelled(given) == int(answer[0])
    x = int(given[0])
    if task == "spell":
        return len(answer) == places and spelled(answer) == x
    if task == "compare":
        y = int(given[1])
        return answer == ["more" if x > y else "less" if x < y else "same"]
    if task == "parity":
        return answer == [("even", "odd")[x % 2]]
    if task == "place":
        return answer == [DIGIT_WORDS[int(str(x).zfill(3)[-1 - ("ones", "tens", "hundreds").index(given[1])])]]
    if task == "remainder":
        return 2 <= int(given[1]) <= 10 and answer == [DIGIT_WORDS[x % int(given[1])]]
    assert task == "round"
    unit = {"tens": 10, "hundreds": 100}[given[1]]
    rounded = int(answer[0])
    below_and_above = x - x % unit, x - x % unit + unit
    nearest = below_and_above[x % unit >= unit / 2]
    return rounded == (nearest if nearest < 10**places else below_and_above[0])


@pytest.mark.parametrize("task", TASKS)
@given(seed=st.integers(0, 2**32), places=st.integers(2, 3))
def test_texts_are_true_and_written_as_they_are_read(task: str, seed: int, places: int) -> None:
    writer = Writer(data(10**places))
    texts = TASKS[task](Draw(SIZE, 10**places, torch.Generator().manual_seed(seed)))
    batch = writer.write(texts, SIZE, CPU)
    for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        words = writer.tokenizer.convert_ids_to_tokens(row)
        assert words[0] == "<bos>"
        text = " ".join(words[1:])
        assert is_true(text, places), text
        assert writer.tokenizer(text, add_special_tokens=False)["input_ids"] == row[1:]
        # The model is to predict what follows the question, and nothing else.
        wanted = [writer.tokenizer.convert_ids_to_tokens(t) for t in targets if t != IGNORED]
        assert text.endswith(" ".join(wanted))
        assert len(wanted) == (3 if task == "count" else len(text.partition(" : ")[2].split()))
    assert not batch.penalised.any()


@pytest.mark.parametrize("task", TASKS)
def test_numbers_can_be_written_in_digits(task: str) -> None:
    whole, split = Writer(data(1000)), Writer(data(1000, digits=True))
    drawn = [TASKS[task](Draw(SIZE, 1000, torch.Generator().manual_seed(7))) for _ in range(2)]
    texts = [
        [" ".join(w.tokenizer.convert_ids_to_tokens(row)).replace(" <pad>", "") for row in w.write(t, SIZE, CPU).tokens]
        for w, t in zip((whole, split), drawn, strict=True)
    ]
    # Numbers of one or more digits: without the spaces between tokens both are the same letters.
    assert [re.sub(r"\s", "", text) for text in texts[0]] == [re.sub(r"\s", "", text) for text in texts[1]]
    assert all(re.fullmatch(r"\D*(\d\b\D*)*", text) for text in texts[1])


def test_every_word_is_used_and_every_example_is_a_text_of_its_task() -> None:
    used = set()
    for name, task in TASKS.items():
        batch = Writer(data(1000)).write(task(Draw(2000, 1000, torch.Generator().manual_seed(1))), 2000, CPU)
        used |= set(Writer(data(1000)).tokenizer.convert_ids_to_tokens(batch.tokens.unique().tolist()))
        example = (task.__doc__ or "").split(",")[0]
        assert example.startswith(f"{name} ")
        assert is_true(example, 3)
    assert set(WORDS) <= used


def test_draws_reach_both_ends() -> None:
    draw = Draw(20_000, 100, torch.Generator().manual_seed(3))
    for drawn, low, high in (
        (draw.number(), 0, 99),
        (draw.integers(-3, 4), -3, 3),
        (draw.below(torch.full((20_000,), 7)), 0, 6),
    ):
        assert (int(drawn.min()), int(drawn.max())) == (low, high)
    assert set(draw.choice((1, 5, 50)).tolist()) == {1, 5, 50}
    assert draw.share(0.3).double().mean() == pytest.approx(0.3, abs=0.02)

"""`ask` against full passes with plain hooks, one prompt at a time."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import arithscope
from arithscope.errors import UserError
from arithscope.models.load import load
from arithscope.prompts import parse_prompt
from tests.experiments import plain
from tests.families import small
from tests.hand_built import ADDING_LAYER, OPERANDS, copy_and_add


@torch.no_grad()
@pytest.mark.parametrize("without", [[], [(5, n) for n in range(0, 512, 3)] + [(4, 7), (4, 8)]])
def test_answers_equal_plain_passes(without: list[tuple[int, int]]) -> None:
    model = load("tiny-llama")
    texts = ["226-68=", "12+30=", "7*8=", "90/9="]
    found = arithscope.ask(model, texts, without)
    assert found.prompt.tolist() == texts
    assert found.answer.tolist() == [158, 42, 56, 10]
    for row, text in zip(found.itertuples(), texts, strict=True):
        prompt = parse_prompt(text, "+-*/", 999, 1000)
        z = plain.logits(model, prompt, plain.ablated(model, without, [model.positions.final]))
        assert row.predicted == int(z.argmax())  # tokens of numbers are the numbers here
        assert row.correct == (row.predicted == row.answer)
        assert row.p_answer == pytest.approx(float(z.softmax(-1)[row.answer]), abs=1e-5)


def test_the_adder_without_the_neuron_of_a_pair_loses_its_sum() -> None:
    own = (ADDING_LAYER, 7 * OPERANDS + 6)
    found = arithscope.ask(copy_and_add(), ["7+6=", "6 + 7"], without=[own])
    assert found.correct.tolist() == [False, True]
    assert arithscope.ask(copy_and_add(), "7+6=").correct.tolist() == [True]
    table = pd.DataFrame({"operator": "+", "layer": [own[0]], "neuron": [own[1]]})
    pd.testing.assert_frame_equal(arithscope.ask(copy_and_add(), ["7+6=", "6 + 7"], without=table), found)


def test_a_prefix_is_not_part_of_the_prompt() -> None:
    assert arithscope.ask(small("llama", prefix="1+2="), "3+4").prompt.tolist() == ["3+4="]


def test_prompts_can_be_a_table() -> None:
    model = small("llama", "sdpa")
    prompts = arithscope.legal_prompts("+-", 5, model.limit)
    found = arithscope.ask(model, prompts)
    assert found.answer.tolist() == prompts.answer.tolist()
    one_by_one = [arithscope.ask(model, text).predicted.item() for text in found.prompt]
    assert found.predicted.tolist() == one_by_one


@pytest.mark.parametrize(
    ("prompts", "without", "message"),
    [
        ("3%4=", [], "none of the operators"),
        ("40+1=", [], "beyond 39"),
        ([], [], "no prompt to ask"),
        ("3+4=", [(3, 0)], "no neuron L3N0; the model has layers 0 to 2 with neurons 0 to 47 each"),
        ("3+4=", [(0, 48)], "no neuron L0N48"),
        ("3+4=", [(-1, 0)], "no neuron L-1N0"),
    ],
)
def test_bad_prompts_and_neurons_are_refused(
    prompts: str | list[str], without: list[tuple[int, int]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        arithscope.ask(small("llama", "sdpa"), prompts, without)

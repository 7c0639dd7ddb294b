"""How answers are judged, and what a card says of a model that reads digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from arithscope.models.load import load
from arithscope.models.untrained import untrained_model
from arithscope.prompts import Prompts, Template, legal_prompts
from arithscope.training.batches import Writer
from arithscope.training.evaluation import model_card, predict
from arithscope.training.loop import train
from arithscope.training.pairs import carries
from arithscope.training.recipe import DataRecipe, ModelRecipe, Recipe, ScheduleRecipe
from arithscope.utils.progress import Silent
from tests.families import CONFIGS

DATA = DataRecipe({"+": [1.0, 0.5], "*": 0.5}, 0.0, 0, 10**4, 30, digits=True)
WRITER = Writer(DATA)
RECIPE = """
name = "toy"
seed = 5

[model]
family = "llama"

[model.config]
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 64
max_position_embeddings = 32

[data]
digits = true
numbers = 10000
max_operand = 30
noise = 0.0
noise_width = 0
seen = { "*" = [1.0, 0.5] }

[schedule]
steps = 150
batch_size = 128
learning_rate = 1e-2
warmup = 5
weight_decay = 0.0
"""


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_carries_are_those_of_column_addition(a: int, b: int) -> None:
    number, longest, chain, carry = 0, 0, 0, 0
    for x, y in zip(reversed(str(a).zfill(8)), reversed(str(b).zfill(8)), strict=True):
        caused = carry == 1 and int(x) + int(y) == 9
        carry = int(int(x) + int(y) + carry >= 10)
        chain = (chain + 1 if caused else 1) if carry else 0
        number, longest = number + carry, max(longest, chain)
    found = carries(np.array([a]), np.array([b]))
    assert [int(x[0]) for x in found] == [number, longest]


def test_carries_by_hand() -> None:
    sums = [(12, 34), (18, 34), (58, 67), (57, 48), (999, 1), (985, 905), (0, 0)]
    number, longest = carries(*np.array(sums).T)
    assert number.tolist() == [0, 1, 2, 2, 3, 2, 0]
    assert longest.tolist() == [0, 1, 1, 2, 3, 1, 0]


def test_an_answer_is_right_if_the_model_writes_it_by_itself(tmp_path: Path) -> None:
    """Against greedy decoding, one token at a time, without the right answer in sight."""
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    model: Any = load(str(train(path, tmp_path / "out", torch.device("cpu"), Silent()))).hf_model
    prompts = legal_prompts("*", 12, 10**4)
    correct, probability = predict(model, WRITER, prompts)
    decoded = []
    for text, answer in zip(prompts.text(Template()), prompts.answer.tolist(), strict=True):
        ids = [WRITER.tokenizer.bos_token_id, *WRITER.tokenizer(text, add_special_tokens=False)["input_ids"]]
        wanted = [*map(int, str(answer)), WRITER.tokenizer.eos_token_id]
        p = 1.0
        written = []
        for target in wanted:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids + written])).logits[0, -1]
            p *= logits.softmax(-1)[target].item() if written == wanted[: len(written)] else float("nan")
            written.append(int(logits.argmax()))
            if written[-1] != target:
                break
        decoded.append((written == wanted, p))
    assert correct.tolist() == [right for right, _ in decoded]
    assert 0 < correct.sum() < len(prompts)
    for right, p, (_, expected) in zip(correct, probability, decoded, strict=True):
        if right:
            assert abs(p - expected) < 1e-5


def test_the_card_counts_by_length_and_by_carries() -> None:
    recipe = Recipe("toy", 5, ModelRecipe("llama", CONFIGS["llama"]), DATA, ScheduleRecipe(1, 8, 1e-3, 1, 0.0))
    model = untrained_model("llama", CONFIGS["llama"], WRITER.tokenizer, seed=1)
    card = model_card(recipe, model, WRITER)
    correct, _ = predict(model.half().float(), WRITER, legal_prompts("+", 30, 10**4))
    assert f"| `+` | 961 | {correct.double().mean():.4f} |" in card
    short, _ = predict(model, WRITER, legal_prompts("*", 9, 10**4))
    rows = [line for line in card.splitlines() if line.startswith("| 1 and 1 |")]
    assert rows[0].endswith(f"{short.double().mean():.4f} |")
    chained = sum(a % 10 + b % 10 >= 10 and a // 10 + b // 10 == 9 for a in range(31) for b in range(31))
    assert chained == 0  # operands up to 30 have no chains, only single carries
    single = sum(a % 10 + b % 10 >= 10 for a in range(31) for b in range(31))
    assert f"| 1 | 1 | {single} |" in card
    assert "| 2 | 2 |" not in card
    assert "1 and 2" in card


def test_prompts_of_no_operator_can_be_predicted() -> None:
    none = Prompts([], [], [])
    assert [len(x) for x in predict(None, WRITER, none)] == [0, 0]

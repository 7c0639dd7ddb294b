"""The embedded models: good enough to study, small enough to ship, and as accurate as their cards say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from arithscope.errors import UserError
from arithscope.experiments.accuracy import measure_accuracy
from arithscope.models.load import load
from arithscope.models.model import Model
from arithscope.models.sources import (
    DEFAULT,
    FOLDER,
    checkpoint_folder,
    embedded_names,
    embedded_recipes,
    local_checkpoints,
)
from arithscope.pipeline.runner import run_stages
from arithscope.prompts import OPERATORS, legal_prompts, random_source, sample
from arithscope.settings import Settings
from arithscope.training.batches import Writer
from arithscope.training.evaluation import predict
from arithscope.training.pairs import digits, split_pairs
from arithscope.training.recipe import read_recipe
from arithscope.utils.progress import Silent
from tests.command_line import call

NAMES = ("tiny-digits", "tiny-gptj", "tiny-llama", "tiny-pythia")
SUBJECTS = NAMES[1:]  # numbers are single tokens
models = pytest.mark.parametrize("name", SUBJECTS)


def card(name: str) -> dict[str, list[float]]:
    """Operator → number of legal prompts, accuracy, accuracy on seen and on unseen pairs, wrong answers, P(answer)."""
    rows = re.findall(r"^\| `(.)` \| (.*) \|$", (FOLDER / name / "README.md").read_text(encoding="utf-8"), re.M)
    return {operator: [float(x.replace(",", "")) for x in cells.split(" | ")] for operator, cells in rows}


def answered_correctly(model: Model, operator: str, size: int) -> np.ndarray:  # type: ignore[type-arg]
    prompts = sample(legal_prompts(operator, 300, 1000), size, random_source(0, "embedded", operator))
    with torch.no_grad():
        return (model.logits(model.encode(prompts)).argmax(-1) == model.answers(prompts)).numpy()


def test_all_models_are_there_and_small() -> None:
    assert tuple(embedded_names()) == NAMES
    assert DEFAULT in NAMES
    assert sum(f.stat().st_size for f in FOLDER.rglob("*") if f.is_file()) <= 45e6
    for name in NAMES:
        for file in ("recipe.toml", "training_log.jsonl", "README.md", "tokenizer.json"):
            assert (FOLDER / name / file).is_file()


@models
def test_cards_meet_the_requirements(name: str) -> None:
    table = card(name)
    assert list(table) == list(OPERATORS)
    for operator, (_, share, _, unseen, wrong, confidence) in table.items():
        assert 0.9 <= share <= 0.99
        assert 0.6 <= confidence <= 0.95
        assert unseen > 0.5
        assert wrong >= (150 if operator == "*" else 200)


@models
def test_cards_state_the_true_accuracy(name: str) -> None:
    """On a sample; the slow test below checks every prompt."""
    model = load(name)
    for operator, (_, share, *_) in card(name).items():
        found = answered_correctly(model, operator, 1500)
        assert abs(found.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(found))


@models
def test_twins_lack_only_the_penalty(name: str) -> None:
    recipes = {key: read_recipe(path) for key, path in embedded_recipes().items()}
    subject, twin = recipes[name], recipes[f"{name}-twin"]
    assert subject.schedule.sparsity > 0
    assert twin.name == f"{name}-twin"
    schedule = replace(twin.schedule, sparsity=subject.schedule.sparsity, checkpoints=subject.schedule.checkpoints)
    assert replace(twin, name=name, schedule=schedule) == subject


def test_recipes_have_their_models_names() -> None:
    assert {key: read_recipe(path).name for key, path in embedded_recipes().items()} == {
        key: key for key in (*NAMES, *(f"{name}-twin" for name in SUBJECTS))
    }


def digits_card() -> dict[tuple[int, int], list[float]]:
    """Number of digits of op1 and op2 → accuracy for +, − and ×."""
    text = (FOLDER / "tiny-digits" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) and (\d) \| (.*) \|$", text, re.M)
    return {(int(a), int(b)): [float(x.replace("–", "nan")) for x in cells.split(" | ")] for a, b, cells in rows}


def test_tiny_digits_fails_where_carries_chain() -> None:
    assert all(0.85 <= share <= 0.99 for share in digits_card()[2, 2])
    text = (FOLDER / "tiny-digits" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d \| (\d) \| ([\d,]+) \| (\S+) \|$", text, re.M)
    wrong = {False: 0.0, True: 0.0}
    for chain, n, share in rows:
        wrong[int(chain) > 1] += int(n.replace(",", "")) * (1 - float(share))
    assert wrong[True] > 4 * wrong[False]


def test_the_card_of_tiny_digits_states_the_true_accuracy() -> None:
    recipe = read_recipe(FOLDER / "tiny-digits" / "recipe.toml")
    model, writer = load("tiny-digits").hf_model, Writer(recipe.data)
    prompts = legal_prompts("+-*", 999, recipe.data.numbers)
    length = {name: digits(operand) for name, operand in (("op1", prompts.op1), ("op2", prompts.op2))}
    for (a, b), shares in digits_card().items():
        for operator, share in zip("+-*", shares, strict=True):
            chosen = prompts.operator == OPERATORS.index(operator)
            rows = prompts[np.flatnonzero((length["op1"] == a) & (length["op2"] == b) & chosen)]
            if operator != "-" or a >= b:
                rows = sample(rows, 400, random_source(0, "digits", operator))
                found = predict(model, writer, rows)[0].double().mean().item()
                assert abs(found - share) < 4 * np.sqrt(max(share * (1 - share), 1e-3) / len(rows))


@pytest.mark.slow
@models
def test_cards_are_exact_over_every_prompt(name: str) -> None:
    model = load(name)
    result = measure_accuracy(model, legal_prompts(OPERATORS, 300, model.limit))
    recipe = read_recipe(FOLDER / name / "recipe.toml")
    pairs = split_pairs(recipe.data, recipe.seed)
    frame = result.prompts.set_index(["operator", "op1", "op2"])
    for operator, (n, share, seen, unseen, wrong, confidence) in card(name).items():
        rows = result.prompts[result.prompts.operator == operator]
        assert len(rows) == n
        assert abs((~rows.correct).sum() - wrong) <= 2  # a near tie may fall the other way on another machine
        assert rows.correct.mean() == pytest.approx(share, abs=4e-4)
        assert rows.p_answer[rows.correct].mean() == pytest.approx(confidence, abs=1e-3)
        for expected, prompts in zip((seen, unseen), pairs[operator], strict=True):
            chosen = frame.loc[list(zip([operator] * len(prompts), prompts.op1, prompts.op2, strict=True))]
            assert chosen.correct.mean() == pytest.approx(expected, abs=1e-3)


def test_checkpoints_improve_from_chance_to_over_90_percent() -> None:
    steps = local_checkpoints(FOLDER / "tiny-pythia")
    assert len(steps) >= 8
    learned = [
        float(np.mean([answered_correctly(load(f"tiny-pythia@{s}"), o, 150).mean() for o in OPERATORS]))
        for s in (steps[0], *steps[1::3])
    ]
    assert learned[0] < 0.02
    assert learned == sorted(learned)
    assert learned[-1] > 0.9


def test_unknown_checkpoints_are_refused() -> None:
    with pytest.raises(UserError, match=r"no checkpoint 'step-7'; it has: step-00000"):
        checkpoint_folder(FOLDER / "tiny-pythia", "step-7")
    with pytest.raises(UserError, match="it has: none"):
        load("tiny-llama@step-00000")


@pytest.mark.slow
@models
def test_a_whole_study(name: str, tmp_path: Path) -> None:
    """tiny-llama's circuits are small and far better than random ones; in the other two nearly every head takes part. Some top
    neurons of each operator implement a heuristic. The run agrees with its recomputation."""
    model = load(name)
    summary = run_stages(model, Settings(), tmp_path, None, Silent()).summary
    all_heads = model.sizes.layers * model.sizes.heads
    for operator in OPERATORS:
        found = summary["circuit"][operator]
        assert found["faithfulness"]["value"] >= 0.9
        if name == "tiny-llama":
            assert found["heads"] < all_heads / 2
            assert found["faithfulness"]["low"] > found["random_faithfulness"]["high"]
            assert found["accuracy"]["low"] > found["random_accuracy"]["high"]
        classes = summary["classify"][operator]
        assert 0 < classes["calibrated_share"]["value"] <= classes["raw_share"]["value"]
        assert summary["neurons"][operator]["atp_rank_correlation"] > 0.8
    assert summary["classify"]["*"]["raw_share"]["value"] == 1  # which is why there is a calibrated share
    assert summary["probe"]["all"]["best_layer"] == model.sizes.layers - 1
    assert summary["probe"]["all"]["best_accuracy"]["value"] > 2 * summary["probe"]["all"]["chance"]
    assert call("verify", tmp_path) == 0

"""Training a tiny model on the CPU: reproducible, resumable, and loadable like any other model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers.utils.logging import enable_progress_bar

from arithscope.errors import UserError
from arithscope.models.load import load
from arithscope.prompts import legal_prompts
from arithscope.training.batches import Batches, Writer
from arithscope.training.corpus import TASKS
from arithscope.training.evaluation import answer_logits
from arithscope.training.loop import Training, train
from arithscope.training.recipe import read_recipe
from arithscope.training.sparsity import Sparsity
from arithscope.utils.progress import Silent
from tests.command_line import call, error_message

RECIPE = """
name = "toy"
seed = 5

[model]
family = "gpt_neox"

[model.config]
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 64
max_position_embeddings = 16

[data]
numbers = 100
max_operand = 9
noise = 0.2
noise_width = 3
seen = { "+" = 0.5, "/" = 0.75 }
tasks = { parity = 0.1, spell = 0.1 }

[schedule]
steps = 60
batch_size = 64
learning_rate = 3e-3
warmup = 5
weight_decay = 0.1
sparsity = 0.3
early = 2.0
checkpoints = 3
"""
CPU = torch.device("cpu")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(RECIPE)
    return path


class StopAt:
    """Progress that interrupts after `step` steps."""

    def __init__(self, step: int):
        self.step = step

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        done = 0

        def advance(units: int) -> None:
            nonlocal done
            done += units
            if done >= self.step:
                raise KeyboardInterrupt

        yield advance

    def note(self, text: str) -> None:
        pass


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(a: Path, b: Path) -> bool:
    x, y = weights(a), weights(b)
    return x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)


def test_a_stopped_training_ends_with_the_same_weights(recipe: Path, tmp_path: Path) -> None:
    straight = train(recipe, tmp_path / "straight", CPU, Silent())
    for stop in (7, 33, 59):
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "stopped", CPU, StopAt(stop))
    stopped = train(recipe, tmp_path / "stopped", CPU, Silent())
    assert same(straight, stopped)
    assert (straight / "README.md").read_text() == (stopped / "README.md").read_text()
    logs = [
        [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "loss")} for line in f.open()]
        for f in (straight / "training_log.jsonl", stopped / "training_log.jsonl")
    ]
    assert logs[0] == logs[1]
    assert [row["step"] for row in logs[0]] == sorted({round(3 * i) for i in range(21)} | {0, 20, 40})
    files = {p.name for p in stopped.iterdir()}
    assert "resume.safetensors" not in files
    assert not any(name.endswith(".tmp") for name in files)


def test_training_without_checkpoints_resumes_at_the_last_evaluation(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.replace("checkpoints = 3\n", ""))
    straight = train(recipe, tmp_path / "straight", CPU, Silent())
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "stopped", CPU, StopAt(35))
    with safe_open(tmp_path / "stopped" / "resume.safetensors", "pt") as state:
        assert state.metadata() == {"step": "33"}  # of 60 steps, evaluated every 3
    assert same(straight, train(recipe, tmp_path / "stopped", CPU, Silent()))


def test_checkpoints_can_be_loaded(recipe: Path, tmp_path: Path) -> None:
    folder = train(recipe, tmp_path / "out", CPU, Silent())
    steps = sorted(p.name for p in (folder / "checkpoints").iterdir())
    assert steps == ["step-00000", "step-00020", "step-00040"]
    for place in (folder, *(folder / "checkpoints" / s for s in steps)):
        assert load(str(place)).limit == 100
    assert not same(folder / "checkpoints" / "step-00000", folder)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    train(recipe, folder, CPU, Silent())  # finished: nothing is repeated
    assert before == {p: p.stat().st_mtime_ns for p in folder.rglob("*")}


def test_the_card_states_the_accuracy_of_the_stored_model(recipe: Path, tmp_path: Path) -> None:
    folder = train(recipe, tmp_path / "out", CPU, Silent())
    model = load(str(folder))
    for operator in "+/":
        prompts = legal_prompts(operator, 9, 100)
        with torch.no_grad():
            right = model.logits(model.encode(prompts)).argmax(-1) == model.answers(prompts)
        expected = f"| `{operator}` | {len(prompts)} | {right.double().mean():.4f} |"
        assert expected in (folder / "README.md").read_text()


def test_the_train_command(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enable_progress_bar()  # of transformers, which has one for writing a model
    assert call("train", recipe, "--out", tmp_path / "out", "--device", "cpu") == 0
    output = capsys.readouterr()
    assert "Measured on all legal prompts" in output.out
    assert output.err.splitlines()[-1].startswith("training toy: done")
    assert "There is no recipe" in error_message(capsys, "train", tmp_path / "nothing.toml")


def test_another_seed_trains_another_model(recipe: Path, tmp_path: Path) -> None:
    a = train(recipe, tmp_path / "a", CPU, Silent())
    recipe.write_text(RECIPE.replace("seed = 5", "seed = 6"))
    assert not same(a, train(recipe, tmp_path / "b", CPU, Silent()))
    with pytest.raises(UserError, match="another recipe"):
        train(recipe, tmp_path / "a", CPU, Silent())
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "precious.txt").write_text("")
    with pytest.raises(UserError, match="not empty"):
        train(recipe, tmp_path / "c", CPU, Silent())


def test_the_penalty_makes_neurons_fire_less(recipe: Path, tmp_path: Path) -> None:
    costs = []
    for sparsity in ("0.0", "3.0"):
        recipe.write_text(RECIPE.replace("sparsity = 0.3", f"sparsity = {sparsity}"))
        folder = train(recipe, tmp_path / sparsity, CPU, Silent())
        model: Any = load(str(folder)).hf_model
        read = read_recipe(recipe)
        batch, measured = Batches(read, Writer(read.data), CPU)[0], Sparsity(model, "gpt_neox", 1.0)
        with measured, torch.no_grad():
            answer_logits(model, batch)
        costs.append(measured.penalty(batch).item())
        assert ("Neurons that had to choose" in (folder / "README.md").read_text()) == (sparsity != "0.0")
    assert costs[1] < 0.7 * costs[0]


def test_the_documented_recipe_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```toml\n(.*?)```", page, re.S)
    (tmp_path / "recipe.toml").write_text(text)
    recipe = read_recipe(tmp_path / "recipe.toml")
    assert set(recipe.data.tasks) == set(TASKS)
    assert recipe.schedule.sparsity > 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed = 5", "", "lacks the setting 'seed'"),
        ("steps = 60", 'steps = "many"', "must be of type int"),
        ("steps = 60", "steps = 0", "steps must lie between"),
        ("learning_rate = 3e-3", "learning_rate = nan", "must be positive"),
        ('name = "toy"', 'name = "../toy"', "name must be at most 100 letters"),
        ("seed = 5", f"seed = {10**30}", "seed must lie"),
        ("seed = 5", f"seed = {'9' * 5000}", "cannot be read as TOML"),
        ("seed = 5", f"seed = {'[' * 9000}", "cannot be read as TOML"),
        ("gpt_neox", "abacus", "the family must be one of"),
        ("noise = 0.2", "noise = 2.0", "from 0 to 1"),
        ("max_operand = 9", "max_operand = 100", "max_operand must lie"),
        ("seen = {", "seen = { x = 0.1,", "seen"),
        ('"+" = 0.5', '"+" = [0.5, 0.5]', "must have 1 shares"),
        ('"+" = 0.5', '"+" = ["half"]', "from 0 to 1"),
        ("parity = 0.1", "dance = 0.1", "some of spell, read, count"),
        ("parity = 0.1", "parity = 0.9", "leave some of the batch to arithmetic"),
        ("parity = 0.1", 'parity = "much"', "from 0 to 1"),
        ("numbers = 100", "numbers = 99", "need numbers of at least 100"),
        ("noise = 0.2", "noise = 0.2\nchains = 1.5", "from 0 to 1"),
        ("noise = 0.2", "noise = 0.2\nlargest = { '+' = 100 }", r"numbers from 0 to 99 for some of \+ /"),
        ("noise = 0.2", "noise = 0.2\nlargest = { '*' = 9 }", "largest"),
        ("sparsity = 0.3", "sparsity = -1.0", "sparsity must be"),
        ("early = 2.0", "early = 0.5", "early must be a number from 1"),
        ("[schedule]", "[schedule]\nspeed = 3", "unknown setting 'speed'"),
        ("[model.config]", "[model.config", "cannot be read as TOML"),
    ],
)
def test_bad_recipes_are_refused(recipe: Path, old: str, new: str, message: str) -> None:
    recipe.write_text(RECIPE.replace(old, new))
    with pytest.raises(UserError, match=message):
        read_recipe(recipe)


def test_models_that_cannot_be_built_are_refused(recipe: Path, tmp_path: Path) -> None:
    for old, new, message in (
        ("num_attention_heads = 2", "num_attention_heads = 0", "'gpt_neox' cannot be built"),
        ("hidden_size = 32", "hidden_size = 30000", "parameters and buffer entries, but at most"),
        ("num_hidden_layers = 1", "num_hidden_layers = 1000000000", "asks for 1000000000 layers"),
        ('seen = { "+" = 0.5, "/" = 0.75 }', 'seen = { "+" = 0 }', "nothing to train on"),
    ):
        assert old in RECIPE
        recipe.write_text(RECIPE.replace(old, new))
        with pytest.raises(UserError, match=message):
            train(recipe, tmp_path / "out", CPU, Silent())
        assert not (tmp_path / "out").exists()


def test_half_precision_trains_as_single_precision_does(recipe: Path) -> None:
    """Half precision keeps 8 bits, so losses differ by little; without it they would be equal."""
    losses = {}
    for half in (False, True):
        training = Training(read_recipe(recipe), CPU)
        training.half_precision = half
        losses[half] = [training.step(i).item() for i in range(20)]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)
    assert losses[True] != losses[False]
    assert losses[False][-1] < 0.9 * losses[False][0]


def test_attention_on_a_cpu_is_the_same_but_for_rounding(recipe: Path) -> None:
    losses = []
    for attention in ("eager", "sdpa"):
        training = Training(read_recipe(recipe), CPU)
        training.half_precision = False
        training.model.set_attn_implementation(attention)
        losses.append([training.step(i).item() for i in range(20)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)

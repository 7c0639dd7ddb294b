"""Recipes are read or refused; those of tiny models are also trained for a step or two."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from arithscope.models.load import load
from arithscope.prompts import OPERATORS
from arithscope.training.loop import train
from arithscope.training.recipe import read_recipe
from arithscope.utils.progress import Silent
from tests.families import CONFIGS
from tests.fuzz.damage import NESTED, corrupted, documents
from tests.fuzz.effort import fuzz, refused, twice

RECIPE: dict[str, Any] = {
    "name": "toy",
    "seed": 5,
    "model": {
        "family": "gpt_neox",
        "config": {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "max_position_embeddings": 16,
        },
    },
    "data": {
        "numbers": 110,
        "max_operand": 4,
        "noise": 0.2,
        "noise_width": 3,
        "seen": {"+": 0.5, "/": [0.75]},
        "digits": False,
        "chains": 0.5,
        "largest": {"+": 6},
        "tasks": {"count": 0.3, "parity": 0.1},
    },
    "schedule": {
        "steps": 2,
        "batch_size": 4,
        "learning_rate": 3e-3,
        "warmup": 1,
        "weight_decay": 0.1,
        "sparsity": 0.3,
        "early": 2.0,
        "checkpoints": 1,
    },
}


def toml(value: Any) -> str:
    """A value as TOML, or something similar if TOML cannot express it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(str(k))} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value.encode("utf-8", "replace").decode()).replace("\x7f", "\\u007f")
    return "2020-01-01" if value is None else repr(value)


def text_of(recipe: Any) -> bytes:
    lines = [f"{toml(str(k))} = {toml(v)}" for k, v in recipe.items()] if isinstance(recipe, dict) else [toml(recipe)]
    return "\n".join(lines).encode()


changed = documents(RECIPE).map(text_of)
recipes = st.one_of(
    changed,
    changed,
    changed,
    corrupted(text_of(RECIPE)),
    st.sampled_from(NESTED).map(lambda text: f"a = {text}".encode()),
)


def is_recipe(content: bytes) -> bool:
    """An independent definition of which texts are recipes."""
    try:
        raw = tomllib.loads(content.decode().replace("\r\n", "\n"))
    except (ValueError, RecursionError):
        return False
    tables = [raw, *(raw.get(name) for name in ("model", "data", "schedule"))]
    needed: list[dict[str, tuple[type, ...]]] = [
        {"name": (str,), "seed": (int,), "model": (dict,), "data": (dict,), "schedule": (dict,)},
        {"family": (str,), "config": (dict,)},
        {"seen": (dict,), "noise": (int, float), "noise_width": (int,)},
        {"steps": (int,), "batch_size": (int,), "learning_rate": (int, float), "warmup": (int,), "weight_decay": (int, float)},
    ]  # fmt: skip
    may: list[dict[str, tuple[type, ...]]] = [
        {},
        {},
        {
            "numbers": (int,),
            "max_operand": (int,),
            "digits": (bool,),
            "chains": (int, float),
            "tasks": (dict,),
            "largest": (dict,),
        },
        {"checkpoints": (int,), "sparsity": (int, float), "early": (int, float)},
    ]
    for table, must, can in zip(tables, needed, may, strict=True):
        if not isinstance(table, dict) or not must.keys() <= table.keys() <= must.keys() | can.keys():
            return False
        if not all(type(v) in (must | can)[k] for k, v in table.items()):
            return False
    data, schedule = raw["data"], raw["schedule"]
    numbers, top = data.get("numbers", 1000), data.get("max_operand", 300)
    largest = data.get("largest", {})
    tasks, by_length = data.get("tasks", {}), [s for s in data["seen"].values() if type(s) is list]
    seen = [share for s in data["seen"].values() for share in (s if type(s) is list else [s])]
    shares = [*seen, *tasks.values(), data["noise"], data.get("chains", 1)]
    return (
        re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{0,99}", raw["name"]) is not None
        and 0 <= raw["seed"] <= 10**9
        and raw["model"]["family"] in CONFIGS
        and len(data["seen"]) > 0
        and set(data["seen"]) <= set(OPERATORS)
        and all(type(s) in (int, float) and 0 <= s <= 1 for s in shares)
        and all(len(shares) == len(str(top)) for shares in by_length)
        and set(largest) <= set(data["seen"])
        and all(type(n) is int and 0 <= n < numbers for n in largest.values())
        and set(tasks) <= {"spell", "read", "count", "compare", "parity", "round", "place", "remainder"}
        and sum(tasks.values()) < 1
        and (not tasks or numbers >= 100)
        and 10 <= numbers <= (10**7 if data.get("digits") else 100_000)
        and 1 <= top < numbers
        and top <= 3000
        and 0 <= data["noise_width"] <= numbers
        and schedule["warmup"] >= 0
        and 0 <= schedule["weight_decay"] < math.inf
        and 0 <= schedule.get("sparsity", 0) < math.inf
        and 1 <= schedule.get("early", 1) <= 100
        and 1 <= schedule["steps"] <= 10**9
        and 1 <= schedule["batch_size"] <= 10**6
        and 0 < schedule["learning_rate"] < math.inf
        and 0 <= schedule.get("checkpoints", 0) <= schedule["steps"]
    )


@twice
def test_recipes(tmp_path: Path, full: bool) -> None:
    path = tmp_path / "recipe.toml"

    def accepts(content: bytes) -> bool:
        path.write_bytes(content)
        accepted = refused(lambda: read_recipe(path)) is None
        assert accepted == is_recipe(content)
        return accepted

    assert fuzz("recipes", recipes, accepts, full).accepted


def is_narrow(config: Any) -> bool:
    """Without a width, the default of the library makes a large, slow model."""
    return not isinstance(config, dict) or "hidden_size" in config


configurations = st.one_of(
    documents(RECIPE["model"]["config"])
    .filter(is_narrow)
    .map(lambda config: {**RECIPE, "model": {"family": "gpt_neox", "config": config}}),
    st.fixed_dictionaries({o: st.sampled_from([0, 0.0, 1e-9, 0.5, 1]) for o in ("+", "/")}).map(
        lambda seen: {**RECIPE, "data": {**RECIPE["data"], "seen": seen}}
    ),
    st.booleans().map(lambda digits: {**RECIPE, "data": {**RECIPE["data"], "digits": digits}}),
    st.sampled_from(sorted(CONFIGS)).map(
        lambda family: {**RECIPE, "model": {"family": family, "config": {**CONFIGS[family]}}}
    ),
)


@twice
def test_trainings(tmp_path: Path, full: bool) -> None:
    path, numbers = tmp_path / "recipe.toml", itertools.count()

    def accepts(recipe: dict[str, Any]) -> bool:
        path.write_bytes(text_of(recipe))
        out = tmp_path / f"trained-{next(numbers)}"
        accepted = refused(lambda: train(path, out, torch.device("cpu"), Silent())) is None
        if accepted:  # then it is a model, or the rare one that arithscope cannot study
            refused(lambda: load(str(out)))
        shutil.rmtree(out, ignore_errors=True)
        return accepted

    assert fuzz("trainings", configurations, accepts, full).accepted

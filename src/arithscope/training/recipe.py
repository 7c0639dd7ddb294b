"""What a subject is trained from: a TOML file read into frozen dataclasses, with every unknown or missing name refused."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arithscope.errors import UserError
from arithscope.models.families import FAMILIES
from arithscope.prompts import OPERATORS

LETTERS = 100  # of a name
MOST_NUMBERS, MOST_OPERAND, MOST_ROWS, MOST_STEPS = 100_000, 3000, 10**6, 10**9  # beyond which there is a mistake


@dataclass(frozen=True)
class ModelRecipe:
    family: str
    config: dict[str, Any]  # fields of the family's Hugging Face configuration


@dataclass(frozen=True)
class DataRecipe:
    """The training data: some of the legal prompts of each operator, their answers blurred now and then.

    A subject that saw every pair with clean answers is certain of everything: single neurons then have no effect and
    nothing ever fails. Unseen pairs make it fail here and there; noise keeps its probabilities below one.
    """

    seen: dict[str, float]  # per operator, the share of legal prompts that training may use
    noise: float  # share of training answers that are blurred
    noise_width: int  # a blurred answer is off by at most this much
    numbers: int = 1000  # the tokenizer's single-token limit
    max_operand: int = 300


@dataclass(frozen=True)
class ScheduleRecipe:
    steps: int
    batch_size: int
    learning_rate: float
    warmup: int
    weight_decay: float
    checkpoints: int = 0  # kept on the way, evenly spaced from step 0 on; the final weights come on top


@dataclass(frozen=True)
class Recipe:
    name: str
    seed: int
    model: ModelRecipe
    data: DataRecipe
    schedule: ScheduleRecipe

    def checkpoint_steps(self) -> list[int]:
        return [self.schedule.steps * i // self.schedule.checkpoints for i in range(self.schedule.checkpoints)]


def read_recipe(path: Path) -> Recipe:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no recipe at {path}; see the recipe.toml of an embedded subject.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"The recipe {path} cannot be read as TOML: {error}.") from None
    recipe = _build(Recipe, raw, str(path))
    _check(recipe, str(path))
    return recipe


_PLAIN: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str}
_NESTED = {"ModelRecipe": ModelRecipe, "DataRecipe": DataRecipe, "ScheduleRecipe": ScheduleRecipe}


def _build(kind: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise UserError(f"{where} must be a table of settings.")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(raw) - set(fields))
    required = [n for n, f in fields.items() if f.default is dataclasses.MISSING]
    missing = sorted(set(required) - set(raw))
    if unknown or missing:
        said = f"has an unknown setting {unknown[0]!r}" if unknown else f"lacks the setting {missing[0]!r}"
        raise UserError(f"{where} {said}; it takes {', '.join(fields)}.")
    values: dict[str, Any] = {}
    for name, value in raw.items():
        declared = str(fields[name].type)
        if declared in _NESTED:
            value = _build(_NESTED[declared], value, f"{where}, [{name}],")
        elif declared.startswith("dict"):
            if not isinstance(value, dict):
                raise UserError(f"{where}: {name} must be a table.")
        elif not isinstance(value, _PLAIN[declared]) or isinstance(value, bool):
            raise UserError(f"{where}: {name} must be of type {declared}, not {value!r}.")
        values[name] = value
    return kind(**values)


def _check(recipe: Recipe, where: str) -> None:
    data, schedule = recipe.data, recipe.schedule
    share = [*data.seen.values(), data.noise]
    problems = {
        f"[data.seen] must give a share for some of {' '.join(OPERATORS)}": not data.seen
        or not set(data.seen) <= set(OPERATORS),
        "shares and noise must be numbers from 0 to 1": not all(
            isinstance(s, int | float) and not isinstance(s, bool) and 0 <= s <= 1 for s in share
        ),
        f"name must be a word of letters, digits and . _ - that starts with a letter or digit, of at most {LETTERS}": (
            not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LETTERS - 1}}}", recipe.name)
        ),
        f"the family must be one of {', '.join(FAMILIES)}": recipe.model.family not in FAMILIES,
        f"numbers must lie between 10 and {MOST_NUMBERS}": not 10 <= data.numbers <= MOST_NUMBERS,
        f"max_operand must lie between 1 and numbers − 1, and not be beyond {MOST_OPERAND}": (
            not 1 <= data.max_operand < min(data.numbers, MOST_OPERAND + 1)
        ),
        "noise_width must lie between 0 and numbers": not 0 <= data.noise_width <= data.numbers,
        "warmup and weight_decay must not be negative": not (
            schedule.warmup >= 0 and 0 <= schedule.weight_decay < math.inf
        ),
        f"steps must lie between 1 and {MOST_STEPS}": not 1 <= schedule.steps <= MOST_STEPS,
        f"batch_size must lie between 1 and {MOST_ROWS}": not 1 <= schedule.batch_size <= MOST_ROWS,
        "learning_rate must be positive": not 0 < schedule.learning_rate < math.inf,
        "checkpoints must lie between 0 and steps": not 0 <= schedule.checkpoints <= schedule.steps,
        f"seed must lie between 0 and {MOST_STEPS}": not 0 <= recipe.seed <= MOST_STEPS,
    }
    for problem, holds in problems.items():
        if holds:
            raise UserError(f"The recipe {where} is wrong: {problem}.")

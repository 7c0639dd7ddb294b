"""Training recipes: TOML files read into frozen dataclasses. Unknown and missing settings are refused."""

import dataclasses
import math
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin

from arithscope.errors import UserError
from arithscope.models.families import FAMILIES
from arithscope.prompts import OPERATORS
from arithscope.training.corpus import TASKS

# Larger values can only be mistakes.
MAX_NAME, MAX_NUMBERS, MAX_OPERAND, MAX_BATCH, MAX_STEPS = 100, 100_000, 3000, 10**6, 10**9
MAX_DIGITS = 10**7  # numbers lie below this where they are written in digits
MAX_EARLY = 100
MIN_TASK_NUMBERS = 100  # so that there are tens


@dataclass(frozen=True)
class ModelRecipe:
    family: str
    config: dict[str, Any]  # fields of the family's Hugging Face configuration


@dataclass(frozen=True)
class DataRecipe:
    """Training data: a share of the legal prompts of each operator, with noise on some answers.

    A model trained on all pairs with clean answers is certain of everything: no single neuron has an effect and no prompt
    fails. Unseen pairs make it fail on some prompts; noise keeps its probabilities below one.
    """

    # Share of each operator's legal prompts used in training, or one for each number of digits of the longer operand.
    seen: dict[str, float | list[float]]
    noise: float  # share of training answers that get noise
    noise_width: int  # largest change of a noisy answer
    numbers: int = 1000  # operands and answers lie below this; each is one token
    max_operand: int = 300
    largest: dict[str, int] = field(default_factory=dict)  # an operator's largest result in training; default: any
    chains: float = 1.0  # share of the sums and differences with a chain of carries or borrows that training may use
    digits: bool = False  # whether numbers are written in digits, one token each, instead
    tasks: dict[str, float] = field(default_factory=dict)  # shares of a batch that other tasks about numbers take


@dataclass(frozen=True)
class ScheduleRecipe:
    steps: int
    batch_size: int
    learning_rate: float
    warmup: int
    weight_decay: float
    sparsity: float = 0.0  # weight of the penalty on active neurons
    early: float = 1.0  # how many times as much as in the next layer an activation costs at the last position
    checkpoints: int = 0  # number kept, evenly spaced from step 0, in addition to the final weights


@dataclass(frozen=True)
class Recipe:
    name: str
    seed: int
    model: ModelRecipe
    data: DataRecipe
    schedule: ScheduleRecipe


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe. Raises UserError if it cannot be read or a setting is wrong."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no recipe at {path}; see the recipe.toml of an embedded model.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"The recipe {path} cannot be read as TOML: {error}.") from None
    recipe = _build(Recipe, raw, str(path))
    _check(recipe, str(path))
    return recipe


def _build(kind: Any, raw: Any, where: str) -> Any:
    """A recipe dataclass from a TOML table, with names and types checked."""
    if not isinstance(raw, dict):
        raise UserError(f"{where} must be a table of settings.")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(raw) - set(fields))
    missing = sorted({n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING} - set(raw))
    if unknown or missing:
        problem = f"has an unknown setting {unknown[0]!r}" if unknown else f"lacks the setting {missing[0]!r}"
        raise UserError(f"{where} {problem}; it takes {', '.join(fields)}.")
    values: dict[str, Any] = {}
    for name, value in raw.items():
        declared: Any = get_origin(fields[name].type) or fields[name].type
        if dataclasses.is_dataclass(declared):
            value = _build(declared, value, f"{where}, [{name}],")
        elif type(value) is not declared and (declared, type(value)) != (float, int):
            expected = "a table" if declared is dict else f"of type {declared.__name__}"
            raise UserError(f"{where}: {name} must be {expected}, not {value!r}.")
        values[name] = value
    return kind(**values)


def _check(recipe: Recipe, where: str) -> None:
    data, schedule = recipe.data, recipe.schedule
    seen = [share for shares in data.seen.values() for share in (shares if isinstance(shares, list) else [shares])]
    shares = [*seen, *data.tasks.values(), data.noise, data.chains]
    numbers = [share for share in data.tasks.values() if type(share) in (int, float)]
    longest = len(str(data.max_operand))
    limits = {
        "numbers": (data.numbers, 10, MAX_DIGITS if data.digits else MAX_NUMBERS),
        "max_operand": (data.max_operand, 1, min(data.numbers - 1, MAX_OPERAND)),
        "noise_width": (data.noise_width, 0, data.numbers),
        "steps": (schedule.steps, 1, MAX_STEPS),
        "batch_size": (schedule.batch_size, 1, MAX_BATCH),
        "checkpoints": (schedule.checkpoints, 0, schedule.steps),
        "seed": (recipe.seed, 0, MAX_STEPS),
    }
    requirements: dict[str, Any] = {
        f"[data.seen] must give a share for some of {' '.join(OPERATORS)}": set() < set(data.seen) <= set(OPERATORS),
        f"[data.largest] must give numbers from 0 to {data.numbers - 1} for some of {' '.join(data.seen)}": (
            set(data.largest) <= set(data.seen)
            and all(type(x) is int and 0 <= x < data.numbers for x in data.largest.values())
        ),
        f"[data.tasks] must give shares for some of {', '.join(TASKS)}": set(data.tasks) <= set(TASKS),
        "the tasks' shares must leave some of the batch to arithmetic": sum(numbers) < 1,
        f"other tasks need numbers of at least {MIN_TASK_NUMBERS}": not data.tasks or data.numbers >= MIN_TASK_NUMBERS,
        f"a list in [data.seen] must have {longest} shares, one for each number of digits": all(
            len(shares) == longest for shares in data.seen.values() if isinstance(shares, list)
        ),
        "shares, noise and chains must be numbers from 0 to 1": all(
            type(s) in (int, float) and 0 <= s <= 1 for s in shares
        ),
        f"name must be at most {MAX_NAME} letters, digits and . _ -, and start with a letter or digit": (
            re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}", recipe.name)
        ),
        f"the family must be one of {', '.join(FAMILIES)}": recipe.model.family in FAMILIES,
        "warmup must not be negative": schedule.warmup >= 0,
        "weight_decay and sparsity must be numbers of 0 or more": (
            0 <= schedule.weight_decay < math.inf and 0 <= schedule.sparsity < math.inf
        ),
        f"early must be a number from 1 to {MAX_EARLY}": 1 <= schedule.early <= MAX_EARLY,
        "learning_rate must be positive": 0 < schedule.learning_rate < math.inf,
    }
    for name, (value, low, high) in limits.items():
        requirements[f"{name} must lie between {low} and {high}"] = low <= value <= high
    for requirement, holds in requirements.items():
        if not holds:
            raise UserError(f"The recipe {where} is wrong: {requirement}.")

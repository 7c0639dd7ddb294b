"""A study: which experiment needs which, and running them in order into a run folder, each only if it must be."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy, accuracy
from arithscope.experiments.result import Result
from arithscope.progress import Progress
from arithscope.prompts import OPERATORS, legal_prompts, operator_indices
from arithscope.store import RunWriter, claim, stage_key
from arithscope.subject.memory import budget, cache_bytes, row_bytes
from arithscope.subject.subject import Subject

PRESETS = ("quick", "paper")


@dataclass(frozen=True)
class Settings:
    """What to study. The template is the subject's own; a preset sets sample sizes."""

    operators: tuple[str, ...] = OPERATORS
    max_operand: int = 300
    preset: str = "quick"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", tuple(OPERATORS[i] for i in operator_indices(self.operators)))
        if self.preset not in PRESETS:
            raise UserError(f"There is no preset {self.preset!r}; choose from {', '.join(PRESETS)}.")
        if self.max_operand < 1:
            raise UserError(f"--max-operand {self.max_operand} leaves nothing to study; use at least 1.")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} is negative; use 0 or more.")


@dataclass(frozen=True)
class Stage:
    """One experiment in a study.

    reads    the settings its numbers depend on; it can read no others
    needs    earlier stages whose results it gets, by name
    memory   bytes it needs beside the weights, as an estimate
    """

    name: str
    result: type
    needs: tuple[str, ...]
    reads: tuple[str, ...]
    compute: Callable[[Subject, Any, dict[str, Any], Progress], Result]
    memory: Callable[[Subject, Settings], int]


def _accuracy(subject: Subject, settings: Any, results: dict[str, Any], progress: Progress) -> Accuracy:
    return accuracy(subject, settings.operators, settings.max_operand, settings.seed, progress)


def _accuracy_memory(subject: Subject, settings: Settings) -> int:
    prompts = len(legal_prompts(settings.operators, settings.max_operand, subject.limit))
    length = subject.encoder.length
    row = row_bytes(subject, length, length) + 2 * cache_bytes(subject, length)
    return min(budget(subject, row), row * prompts) + 64 * prompts


STAGES: tuple[Stage, ...] = (
    Stage("accuracy", Accuracy, (), ("operators", "max_operand", "seed"), _accuracy, _accuracy_memory),
)


class _Only:
    """The settings a stage said it reads. Reading any other is a mistake in the stage: its key would not cover it."""

    def __init__(self, settings: Settings, names: Sequence[str]):
        self.__dict__.update({name: getattr(settings, name) for name in names})


def chosen_stages(names: Sequence[str] | None) -> list[Stage]:
    """The named stages and all that they need, in order; all stages if none are named."""
    known = {stage.name: stage for stage in STAGES}
    wanted = set(known) if names is None else set(names)
    unknown = sorted(wanted - set(known))
    if unknown or not wanted:
        said = f"There is no stage {unknown[0]!r}" if unknown else "No stage was named"
        raise UserError(f"{said}; choose from {', '.join(known)}.")
    for stage in reversed(STAGES):
        if stage.name in wanted:
            wanted |= set(stage.needs)
    return [stage for stage in STAGES if stage.name in wanted]


def run(subject: Subject, settings: Settings, out: Path, stages: Sequence[str] | None, progress: Progress) -> RunWriter:
    """Run stages into a folder. A stage whose inputs have not changed since it was stored is not run again."""
    todo = chosen_stages(stages)
    subject.encoder.check(settings.operators, settings.max_operand)
    described = {**describe_subject(subject), "device": device_name(subject)}
    configuration = {**asdict(settings), **_template(subject)}
    with claim(out, described, configuration, _keys(subject, settings)) as folder:
        results: dict[str, Any] = {}
        for stage in todo:
            if folder.is_done(stage.name):
                progress.note(f"{stage.name}: nothing has changed, so it is not run again")
                results[stage.name] = folder.read(stage.name, stage.result)
                continue
            folder.start(stage.name)
            started = time.monotonic()
            try:
                inputs = {name: results[name] for name in stage.needs}
                result = stage.compute(subject, _Only(settings, stage.reads), inputs, progress)
            except BaseException as error:
                folder.fail(stage.name, type(error).__name__)
                raise
            folder.write(stage.name, result, time.monotonic() - started)
            results[stage.name] = result
        return folder


def describe_subject(subject: Subject) -> dict[str, Any]:
    """What the manifest says of a subject: everything that its numbers depend on, but for the device."""
    return {
        **asdict(subject.identity),
        "family": subject.family,
        "sizes": asdict(subject.sizes),
        "dtype": subject.dtype_name,
        "quantization": subject.quantization,
        "attention": subject.attention_implementation,
    }


def device_name(subject: Subject) -> str:
    if subject.device.type == "cuda":
        return torch.cuda.get_device_name(subject.device)
    return f"{subject.device} ({platform.machine()})"


def _template(subject: Subject) -> dict[str, str]:
    return {"template": subject.encoder.template.text, "prefix": subject.encoder.template.prefix}


def _keys(subject: Subject, settings: Settings) -> dict[str, str]:
    """For each stage a hash of all its inputs: subject, version, the settings it reads, and the stages it needs."""
    keys: dict[str, str] = {}
    for stage in STAGES:
        keys[stage.name] = stage_key(
            stage=stage.name,
            version=__version__,
            subject=describe_subject(subject),
            template=_template(subject),
            settings={name: getattr(settings, name) for name in stage.reads},
            needs={name: keys[name] for name in stage.needs},
        )
    return keys

"""A study: running stages in order into a run folder, each only if it must be."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.experiments.result import Result
from arithscope.progress import Progress
from arithscope.settings import Settings
from arithscope.stages import STAGES, Stage
from arithscope.store import RunWriter, claim, stage_key
from arithscope.subject.subject import Subject


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


def run(
    subject: Subject,
    settings: Settings,
    out: Path,
    stages: Sequence[str] | None,
    progress: Progress,
    after_stage: Callable[[RunWriter], None] = lambda folder: None,
) -> RunWriter:
    """Run stages into a folder. A stage whose inputs have not changed since it was stored is not run again.

    `after_stage` is called each time that a stage is there: to draw figures, say.
    """
    todo = chosen_stages(stages)
    settings.check(subject)
    described = {**describe_subject(subject), "device": device_name(subject)}
    configuration = {**asdict(settings), **_template(subject)}
    with claim(out, described, configuration, _keys(subject, settings)) as folder:
        results: dict[str, Any] = {}
        for stage in todo:
            if folder.is_done(stage.name):
                progress.note(f"{stage.name}: nothing has changed, so it is not run again")
                results[stage.name] = folder.read(stage.name, stage.result)
            else:
                results[stage.name] = _compute(stage, subject, settings, results, folder, progress)
            after_stage(folder)
        return folder


def _compute(
    stage: Stage, subject: Subject, settings: Settings, results: dict[str, Any], folder: RunWriter, progress: Progress
) -> Result:
    """Compute a stage from earlier results and store it."""
    folder.start(stage.name)
    started = time.monotonic()
    try:
        inputs = {name: results[name] for name in stage.needs}
        result = stage.compute(subject, _Only(settings, stage.reads), inputs, progress)
    except BaseException as error:
        folder.fail(stage.name, type(error).__name__)
        raise
    folder.write(stage.name, result, time.monotonic() - started)
    return result


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

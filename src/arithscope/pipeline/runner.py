"""A study: running stages in order into a run folder, each only if it must be."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.experiments.common.result import Result
from arithscope.models.checks import self_check, tokenisation
from arithscope.models.model import Model
from arithscope.pipeline import unit_cache
from arithscope.pipeline.registry import STAGES, Stage
from arithscope.pipeline.store import RunWriter, SchemaMismatch, claim, refuse_others, stage_key
from arithscope.prompts import legal_prompts
from arithscope.settings import Settings
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.out_of_memory import explain_out_of_memory
from arithscope.utils.progress import Progress

# What each subject in use was found to be sound for: operators and the largest operand.
_sound: WeakKeyDictionary[Model, set[tuple[tuple[str, ...], int]]] = WeakKeyDictionary()


class _Only:
    """The settings a stage said it reads. Reading any other is a mistake in the stage: its key would not cover it."""

    def __init__(self, settings: Settings, names: Sequence[str]):
        self.__dict__.update({name: getattr(settings, name) for name in names})


@dataclass(frozen=True)
class Given:
    """A result that stages need and that was found elsewhere, with the key of what it was computed from."""

    key: str
    result: Any


def chosen_stages(names: Sequence[str] | None, stages: Sequence[Stage] | None = None) -> list[Stage]:
    """The named stages and all that they need, in order; if none are named, all but those that must be asked for."""
    stages = STAGES if stages is None else stages
    known = {stage.name: stage for stage in stages}
    wanted = {name for name, stage in known.items() if not stage.asked} if names is None else set(names)
    unknown = sorted(wanted - set(known))
    if unknown or not wanted:
        said = f"There is no stage {unknown[0]!r}" if unknown else "No stage was named"
        raise UserError(f"{said}; choose from {', '.join(known)}.")
    for stage in reversed(stages):
        if stage.name in wanted:
            wanted |= set(stage.needs)
    return [stage for stage in stages if stage.name in wanted]


def run(
    model: Model,
    settings: Settings,
    out: Path,
    stages: Sequence[str] | None,
    progress: Progress,
    after_stage: Callable[[RunWriter], None] = lambda folder: None,
    known: Sequence[Stage] | None = None,
    given: Mapping[str, Given] | None = None,
    executor: Executor = LOCAL,
) -> RunWriter:
    """Run stages into a folder. A stage whose inputs have not changed since it was stored is not run again.

    `after_stage` is called each time that a stage is there: to draw figures, say. `known` are all stages that there are, and
    `given` are results from elsewhere that they need. `work` carries out the units of the stages; of a stage that was stopped,
    those that were done are not done again."""
    known, given = STAGES if known is None else known, given or {}
    todo = chosen_stages(stages, known)
    settings.check(model)
    found_at = {"source": model.identity.source, "limit": model.limit, "device": executor.where or device_name(model)}
    described = {**describe_model(model), **found_at}
    refuse_others(out, described)
    refuse_unsound(model, settings, progress, executor)
    configuration = {**asdict(settings), "sizes": asdict(settings.sizes), **_template(model)}
    kept = [stage for stage in known if stage in todo or not stage.asked or (out / stage.name).exists()]
    with claim(out, described, configuration, keys_of(model, settings, kept, given)) as folder:
        results: dict[str, Any] = {name: it.result for name, it in given.items()}
        for stage in todo:
            if folder.is_done(stage.name) and (stored := _read(folder, stage)) is not None:
                progress.note(f"{stage.name}: nothing has changed, so it is not run again")
                results[stage.name] = stored
            else:
                inputs = {name: results[name] for name in (*stage.needs, *given)}
                results[stage.name] = _compute(stage, model, settings, inputs, folder, progress, executor)
            unit_cache.clear_cache(folder.path, stage.name)
            after_stage(folder)
        return folder


def refuse_unsound(model: Model, settings: Settings, progress: Progress, executor: Executor) -> None:
    """Raise UserError if what arithscope takes for granted does not hold of a subject, or was not found out here yet."""
    known = _sound.setdefault(model, set())
    if (asked := (settings.operators, settings.max_operand)) in known:
        return
    with progress.task("self-check", 1) as advance:
        failed = executor.map(self_check, model, [()], advance)[0] if not known else []
        prompts = legal_prompts(settings.operators, settings.max_operand, model.limit)
        read = tokenisation(model, prompts)
        failed += [(read.name, read.wrong)] if read.wrong else []
        advance(1)
    if failed:
        raise unsound_model(model, failed)
    known.add(asked)


def unsound_model(model: Model, failed: Sequence[tuple[str, str]]) -> UserError:
    """In words: which checks failed, and why."""
    reasons = "; ".join(f"{name}: {wrong}" for name, wrong in failed)
    return UserError(
        f"Results about {model.identity.name} could not be trusted, so it is not studied ({reasons}). "
        "`arithscope doctor` shows all checks."
    )


def _read(folder: RunWriter, stage: Stage) -> Any | None:
    """A stage's stored result; None if it is not what this version writes, and must be computed again."""
    try:
        return folder.read(stage.name, stage.result)
    except SchemaMismatch:
        return None


def _compute(
    stage: Stage,
    model: Model,
    settings: Settings,
    inputs: dict[str, Any],
    folder: RunWriter,
    progress: Progress,
    executor: Executor,
) -> Result:
    """Compute a stage from earlier results and store it."""
    folder.start(stage.name)
    started = time.monotonic()
    try:
        stored = unit_cache.caching_executor(executor, folder.path, stage.name, folder.keys[stage.name])
        with explain_out_of_memory(f"the stage {stage.name}"):
            result = stage.compute(model, _Only(settings, stage.reads), inputs, progress, stored)
        folder.write(stage.name, result, time.monotonic() - started)
    except BaseException as error:
        with suppress(OSError):  # what went wrong first is what must be told
            folder.fail(stage.name, type(error).__name__)
        raise
    return result


def describe_model(model: Model) -> dict[str, Any]:
    """What the manifest says of a subject: everything that its numbers depend on, but for the device."""
    return {
        **{name: value for name, value in asdict(model.identity).items() if name != "source"},
        "family": model.family,
        "sizes": asdict(model.sizes),
        "dtype": model.dtype_name,
        "quantization": model.quantization,
        "attention": model.attention_implementation,
    }


def device_name(model: Model) -> str:
    if model.device.type == "cuda":
        return torch.cuda.get_device_name(model.device)
    return f"{model.device} ({platform.machine()})"


def _template(model: Model) -> dict[str, str]:
    return {"template": model.encoder.template.text, "prefix": model.encoder.template.prefix}


def keys_of(model: Model, settings: Settings, stages: Sequence[Stage], given: Mapping[str, Given]) -> dict[str, str]:
    """For each stage a hash of all its inputs: subject, version, the settings it reads, and the stages it needs."""
    keys: dict[str, str] = {}
    elsewhere = {name: it.key for name, it in given.items()}
    for stage in stages:
        keys[stage.name] = stage_key(
            stage=stage.name,
            version=__version__,
            model=describe_model(model),
            template=_template(model),
            settings={name: getattr(settings, name) for name in stage.reads},
            needs={name: keys.get(name) or elsewhere[name] for name in stage.needs},
        )
    return keys

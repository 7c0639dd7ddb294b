"""Runs stages in order into a run folder, except those that are up to date. Used by the command line and the library alike."""

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
from arithscope.experiments.common.stage import Context, Results, Stage
from arithscope.models.checks import self_check, tokenization_check
from arithscope.models.model import Identity, Model
from arithscope.pipeline import unit_cache
from arithscope.pipeline.configuration import encoding_of
from arithscope.pipeline.registry import all_stages, chosen_stages
from arithscope.pipeline.store import RunWriter, SchemaMismatch, check_writable, open_for_writing, stage_key
from arithscope.prompts import Stratum, Template
from arithscope.settings import Settings, stratum_of
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.out_of_memory import explain_out_of_memory
from arithscope.utils.progress import Progress

# By the loaded Hugging Face model, which answer steps share: what passed its self-check.
_passed: WeakKeyDictionary[Any, set[tuple[Identity, Template, tuple[str, ...], Stratum]]] = WeakKeyDictionary()

AfterStage = Callable[[RunWriter], None]


@dataclass(frozen=True)
class Given:
    """A result from another run that stages read, and its key, which becomes part of their keys unless it is empty."""

    key: str
    result: Any


class DeclaredSettings(Settings):
    """Only the settings that a stage declared. Reading any other fails, since the stage's key would not cover it."""

    def __init__(self, settings: Settings, names: Sequence[str]):
        object.__setattr__(self, "__dict__", {name: getattr(settings, name) for name in names})

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        if name not in self.__dict__:
            raise AttributeError(f"the stage reads the setting {name!r} without declaring it")
        return self.__dict__[name]


def run_stages(
    model: Model,
    settings: Settings,
    out: Path,
    stages: Sequence[str] | None,
    progress: Progress,
    after_stage: AfterStage = lambda folder: None,
    known: Sequence[Stage] | None = None,
    given: Sequence[Given] = (),
    executor: Executor = LOCAL,
    overwrite: bool = False,
    shared: Mapping[str, Callable[[], Result]] | None = None,
) -> RunWriter:
    """Run stages into a folder. A stage whose inputs have not changed since it was stored is not run again.

    Args:
        model: The model to study.
        settings: What to study, and how.
        out: The run folder: new, or with earlier stages of the same model in it.
        stages: Names of stages to run, with all that they need; None runs the default ones.
        progress: Where progress is shown.
        after_stage: Called whenever a stage is complete, for example to draw figures.
        known: Stages to choose from; by default all.
        given: Results from other runs that stages need.
        executor: Runs the stages' units of work. Finished units of an interrupted stage are not run again.
        overwrite: Whether results of other settings in the folder may be replaced.
        shared: Stages whose results were computed together with those of other runs, with a function that gives each.

    Returns:
        The run folder.

    Raises:
        UserError: If the model fails a check or does not fit the settings, the folder cannot be written, or it holds results
            of other settings.
    """
    known = all_stages() if known is None else known
    todo = chosen_stages(stages, known)
    about = check_folder(model, settings, out, todo, known, given, executor, overwrite)  # before anything is computed
    check_model(model, settings, progress, executor)
    results = Results(*(each.result for each in given))
    with open_for_writing(out, *about) as folder:
        for stage in todo:
            result = None
            if folder.is_done(stage.name):
                with suppress(SchemaMismatch):  # then it is computed again
                    result = folder.read(stage.result)
                    progress.note(f"{stage.name}: unchanged, not run again")
            if result is None:
                folder.start(stage.name)
                started = time.monotonic()
                try:
                    if shared and stage.name in shared:
                        result = shared[stage.name]()
                    else:
                        caching = unit_cache.caching_executor(executor, out, stage.name, folder.keys[stage.name])
                        result = compute_stage(stage, model, settings, results, progress, caching)
                    folder.write(stage.name, result, time.monotonic() - started)
                except BaseException as error:
                    with suppress(OSError):  # the first error is the one to report
                        folder.fail(stage.name, type(error).__name__)
                    raise
            results.add(result)
            unit_cache.clear_cache(folder.path, stage.name)
            after_stage(folder)
        return folder


def check_folder(
    model: Model,
    settings: Settings,
    out: Path,
    todo: Sequence[Stage],
    known: Sequence[Stage],
    given: Sequence[Given] = (),
    executor: Executor = LOCAL,
    overwrite: bool = False,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str], bool]:
    """Raise UserError if `run_stages` could not write these stages into this folder. Returns what it needs to open it: what the
    manifest says about the model, the configuration, the stages' keys, and whether to overwrite."""
    settings.check(model)
    location = {"source": model.identity.source, "limit": model.limit, "device": executor.where or device_name(model)}
    description = {**describe_model(model), **location}
    configuration = {**asdict(settings), "sizes": asdict(settings.sizes), **encoding_of(model)}
    if settings.operands is None:
        del configuration["operands"]
    kept = [stage for stage in known if stage in todo or not stage.on_request or (out / stage.name).exists()]
    about = description, configuration, keys_of(model, settings, kept, given), overwrite
    check_writable(out, *about)
    return about


def check_model(model: Model, settings: Settings, progress: Progress, executor: Executor) -> None:
    """Raise UserError if a self-check of the model fails. Each check is run once per loaded model, template and process; a
    study of several answer steps begins with the last one, whose prompts are the longest."""
    passed, about = _passed.setdefault(model.hf_model, set()), (model.identity, model.encoder.template)
    stratum = stratum_of(model, settings)
    if (wanted := (*about, settings.operators, stratum)) in passed:
        return
    checked = any(known[:2] == about for known in passed)
    with progress.task("self-check", 1) as advance:
        failed = executor.map(self_check, model, [()], advance)[0] if not checked else []
        tokenised = tokenization_check(model, stratum.prompts(settings.operators))
        failed += [(tokenised.name, tokenised.problem)] if tokenised.problem else []
        advance(1)
    if failed:
        raise failed_checks(model, failed)
    passed.add(wanted)


def failed_checks(model: Model, failed: Sequence[tuple[str, str]]) -> UserError:
    """The error for a model that failed checks, given as (name, reason)."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failed)
    problem = f"Results about {model.identity.name} could not be trusted, so it is not studied ({reasons})"
    return UserError(f"{problem}. `arithscope doctor` shows all checks.")


def compute_stage(
    stage: Stage, model: Model, settings: Settings, results: Results, progress: Progress, executor: Executor
) -> Result:
    """Compute a stage in memory from earlier results."""
    needed = results.only((*stage.needs, *stage.given))
    with explain_out_of_memory(f"the stage {stage.name}"):
        return stage.compute(Context(model, DeclaredSettings(settings, stage.reads), needed, progress, executor))


def describe_model(model: Model) -> dict[str, Any]:
    """What the manifest says about a model: everything its results depend on, except the device."""
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


def keys_of(model: Model, settings: Settings, stages: Sequence[Stage], given: Sequence[Given]) -> dict[str, str]:
    """Key of each stage: a hash of the model, the version, the settings it reads, and the keys of the results it reads."""
    keys: dict[str, str] = {}
    from_elsewhere = {type(each.result): each.key for each in given}
    by_result = dict(from_elsewhere)
    about = dict(version=__version__, model=describe_model(model), template=encoding_of(model))
    for stage in stages:
        earlier = {kind.__name__: by_result[kind] for kind in stage.needs}
        earlier |= {kind.__name__: from_elsewhere[kind] for kind in stage.given if from_elsewhere.get(kind)}
        read = {name: getattr(settings, name) for name in stage.reads}
        keys[stage.name] = by_result[stage.result] = stage_key(stage=stage.name, settings=read, needs=earlier, **about)
    return keys

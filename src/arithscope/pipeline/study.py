"""A whole study: the stages, then if wanted checkpoints of training and repetitions. Behind `arithscope run` and `run()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from arithscope.errors import UserError
from arithscope.models.load import LoadOptions
from arithscope.models.model import Model
from arithscope.models.sources import select_checkpoints
from arithscope.pipeline.checkpoints import TRAINING, follow_training
from arithscope.pipeline.ray_executor import open_executor
from arithscope.pipeline.registry import chosen_stages
from arithscope.pipeline.repeats import repeat_study, wants_repeats
from arithscope.pipeline.runner import AfterStage, run_stages
from arithscope.pipeline.store import RunWriter
from arithscope.prompts import Template
from arithscope.settings import Settings
from arithscope.utils.executor import Executor
from arithscope.utils.progress import Progress, Silent


def study(
    model: Model | str,
    settings: Settings,
    out: Path,
    stages: Sequence[str] | None = None,
    checkpoints: str | None = None,
    template: Template | None = None,
    options: LoadOptions | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
    on_load: Callable[[Model, Executor], None] = lambda model, executor: None,
    after_stage: AfterStage = lambda folder: None,
    before_repeats: AfterStage = lambda folder: None,
) -> RunWriter:
    """Study a model into a run folder.

    Args:
        model: A loaded model, or a name to load.
        settings: What to study, and how.
        out: The run folder.
        stages: Names of stages to run, with all that they need; None runs the default ones.
        checkpoints: `all`, or names of checkpoints of the model with commas between, to follow through training.
        template: How prompts are written, for a model that is loaded here.
        options: How the model is loaded.
        cluster: Address of a Ray cluster that does the work, or `local`.
        progress: Where progress is shown.
        on_load: Called with the loaded model and the executor before anything is computed.
        after_stage: Called whenever a stage is complete.
        before_repeats: Called once the study itself is complete, if it is going to be repeated.

    Returns:
        The run folder.

    Raises:
        UserError: If the model cannot be loaded or studied so, or the folder cannot be written.
    """
    progress, names = progress or Silent(), None if stages is None else list(stages)
    followed = _followed(model, checkpoints, names)
    if followed and names is not None:
        names.append(TRAINING)
    repeated = wants_repeats(settings, names)
    names = [stage.name for stage in chosen_stages(names) if not stage.on_request]
    with open_executor(cluster, template or Template(), options or LoadOptions(), progress) as (executor, load):
        loaded = load(model) if isinstance(model, str) else model
        on_load(loaded, executor)
        folder = run_stages(loaded, settings, out, names, progress, after_stage, executor=executor)
        if followed:
            folder = follow_training(
                loaded,
                followed,
                lambda name: load(f"{model}@{name}"),
                settings,
                folder,
                progress,
                after_stage,
                executor,
            )
        if repeated:
            before_repeats(folder)
            folder = repeat_study(loaded, settings, folder, progress, executor)
    return folder


def _followed(model: Model | str, checkpoints: str | None, stages: Sequence[str] | None) -> list[str]:
    """Names of the checkpoints to follow."""
    if checkpoints is not None:
        if not isinstance(model, str):
            raise UserError("To follow training, name the model instead of passing a loaded one.")
        return select_checkpoints(model, checkpoints)
    if stages is not None and TRAINING in stages:
        raise UserError("The stage training needs checkpoints to follow; add --checkpoints all.")
    return []

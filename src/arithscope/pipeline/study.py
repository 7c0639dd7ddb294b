"""A whole study: the stages, then optionally training checkpoints and repetitions. Behind `arithscope run` and `run()`.

Every checkpoint and every repetition is a separate run inside the study's run folder: an interrupted one resumes, and
unchanged stages are not computed again. Whether results of other settings may be replaced is decided for the study, and holds
for the runs inside it. Where numbers take several tokens, each token of the answer has such a study (layouts.py).

1. An earlier checkpoint gets a smaller study that reuses choices of the final model; the stage `training` compares them. One
   with the weights of the final model is not an earlier one, and is left out.
2. A repetition, on either half of the prompts or with another seed, shows how stable the numbers are (stage `stability`). It
   has no inputs but those of the study itself, so once `stability` is done, repetitions are not read again.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arithscope.errors import UserError
from arithscope.experiments import stability, training
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.bag import FinalClassification
from arithscope.experiments.common.samples import TooFewCorrect
from arithscope.experiments.common.stage import Results, Stage
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.topk import TopK
from arithscope.models.load import LoadOptions
from arithscope.models.model import Model
from arithscope.models.sources import select_checkpoints
from arithscope.pipeline.layouts import (
    Shared,
    joined_stages,
    operands_of,
    refuse_joined_stages,
    study_layouts,
)
from arithscope.pipeline.ray_executor import open_executor
from arithscope.pipeline.registry import all_stages, chosen_stages, stage_named, stage_of
from arithscope.pipeline.runner import AfterStage, Given, keys_of, run_stages
from arithscope.pipeline.store import RunFolder, RunWriter, stage_key
from arithscope.prompts import Stratum, Template
from arithscope.settings import Settings
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.files import child, explain_write_errors
from arithscope.utils.progress import Progress, Silent

CHECKPOINTS, REPEATS = "checkpoints", "repeats"  # subfolders of a run folder, with a run folder for each of them
TRAINING, STABILITY = "training", "stability"  # the stages that compare them
PRESET = "paper"  # the preset that repeats the study
OTHER_SEEDS = 2
COMPARED = ("accuracy", "bag", "prompt_knockout")  # of checkpoints
_STAGES = ("means", *COMPARED, "neurons", "topk", "patterns", "classify")  # of an earlier checkpoint


def study(
    model: Model | str,
    settings: Settings,
    out: Path,
    stages: Sequence[str] | None = None,
    checkpoints: str | None = None,
    template: Template | None = None,
    options: LoadOptions | None = None,
    cluster: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    on_load: Callable[[Model, Executor], None] = lambda model, executor: None,
    after_stage: AfterStage = lambda folder: None,
    before_repeats: AfterStage = lambda folder: None,
    digits_by_default: bool = False,
) -> list[RunWriter]:
    """Study a model into a run folder, or where numbers take several tokens, into one for each layout of tokens inside `out`.

    Args:
        model: A loaded model, or a name to load.
        settings: What to study, and how.
        out: The run folder.
        stages: Names of stages to run, with all that they need; None runs the default ones.
        checkpoints: `all`, or comma-separated names of the model's checkpoints, to follow through training.
        template: How prompts are written; only for a model given by name.
        options: How the model is loaded.
        cluster: Address of a Ray cluster that does the work, or `local`.
        overwrite: Whether results of other settings in the run folder may be replaced.
        progress: Where progress is shown.
        on_load: Called with the loaded model and the executor before anything is computed.
        after_stage: Called whenever a stage is complete.
        before_repeats: Called once the study itself is complete, if it will be repeated.
        digits_by_default: Whether operands of two digits are studied where the tokenizer cuts all numbers into digits.

    Returns:
        The run folder, or that of each layout.

    Raises:
        UserError: If the model cannot be loaded, fails a check or does not fit the settings, the folder cannot be written, or
            it holds results of other settings.
    """
    progress = progress or Silent()
    names = None if stages is None else list(stages)
    followed: list[str] = []
    if checkpoints is not None:
        if not isinstance(model, str):
            raise UserError("To follow training, name the model instead of passing a loaded one.")
        followed = select_checkpoints(model, checkpoints)
    elif names is not None and TRAINING in names:
        raise UserError("The stage training needs checkpoints to follow; add --checkpoints all.")
    if followed and names is not None:
        names.append(TRAINING)
    repeated = wants_repeats(settings, names)
    chosen_stages(names)  # raises for unknown names before anything is loaded
    with open_executor(cluster, template or Template(), options or LoadOptions(), progress) as (executor, load):
        loaded = load(model) if isinstance(model, str) else model
        on_load(loaded, executor)

        def study_one(
            asked: Model, settings: Settings, out: Path, shared: Shared, given: Sequence[Given] = ()
        ) -> RunWriter:
            stages = None if names is None else [name for name in names if not stage_named(name).joins_steps]
            own = [stage.name for stage in chosen_stages(stages) if not stage.on_request]
            run = partial(run_stages, executor=executor, overwrite=overwrite, shared=shared, given=given)
            folder = run(asked, settings, out, own, progress, after_stage)
            if followed:
                if not overwrite:
                    _keep_checkpoints(folder, followed)
                at = partial(_load_checkpoint, load, str(model), asked.encoder.stratum)
                folder = follow_training(asked, followed, at, settings, folder, progress, after_stage, executor)
            if repeated:
                before_repeats(folder)
                folder = repeat_study(asked, settings, folder, progress, executor)
            return folder

        def run_joined(
            asked: Model, settings: Settings, out: Path, stages: Sequence[str], given: Sequence[Given]
        ) -> RunWriter:
            known = joined_stages()
            return run_stages(asked, settings, out, stages, progress, after_stage, known, given, executor, overwrite)

        operands = operands_of(loaded, settings, progress) if digits_by_default else settings.operands
        if operands is None:
            refuse_joined_stages(names)
            return [study_one(loaded, settings, out, {})]
        return study_layouts(loaded, settings, operands, out, names, study_one, run_joined, progress, overwrite)


def _load_checkpoint(load: Callable[[str], Model], model: str, stratum: Stratum | None, name: str) -> Model:
    """A checkpoint of a model, asked for the same answer step."""
    loaded = load(f"{model}@{name}")
    return loaded if stratum is None else loaded.at(stratum)


def _keep_checkpoints(run: RunWriter, followed: Sequence[str]) -> None:
    """Raise UserError if a run follows checkpoints that would now be left out."""
    earlier = run.read(training.Training).checkpoints[:-1] if run.is_done(TRAINING) else []
    if missing := [name for name in earlier if name not in followed]:
        advice = "name it too, choose another --out, or replace its curves with --overwrite"
        raise UserError(f"The run in {run.path} also follows the checkpoint {missing[0]}; {advice}.")


def checkpoint_stages() -> list[Stage]:
    return [stage for stage in all_stages() if stage.name in _STAGES]


def final_results(final: RunFolder) -> list[Given]:
    """What an earlier checkpoint takes from the final model's run: answer layers, circuit and classification."""
    stages = ("probe", "answer_layers", "circuit", "classify")
    *given, classification = (Given(final.key(s) or "", final.read(stage_named(s).result)) for s in stages)
    return [*given, Given(classification.key, FinalClassification(classification.result))]


def read_checkpoint(folder: Path, name: str) -> tuple[training.Checkpoint, str]:
    """Results of a checkpoint's run, and their key; a model that is hardly ever right has only an accuracy."""
    run = RunFolder(folder)
    stages = COMPARED if all(map(run.is_done, COMPARED[1:])) else COMPARED[:1]
    results: dict[str, Any] = {stage: run.read(stage_named(stage).result) for stage in stages}
    return training.Checkpoint(name, **results), stage_key(**{stage: run.key(stage) for stage in stages})


def follow_training(
    model: Model,
    names: Sequence[str],
    load_checkpoint: Callable[[str], Model],
    settings: Settings,
    final: RunWriter,
    progress: Progress,
    after_stage: AfterStage = lambda folder: None,
    executor: Executor = LOCAL,
) -> RunWriter:
    """Study the checkpoints of a model whose own study (`final`) is done, and compare them in the stage `training`."""
    run = partial(run_stages, executor=executor, overwrite=True)
    top, given = final.read(TopK), final_results(final)
    fixed = replace(settings, topk=top.k, operators=tuple(top.operators))
    checkpoints, keys = [], []
    for i, name in enumerate(names):
        progress.note(f"checkpoint {name}, {i + 1} of {len(names)}")
        folder = child(final.path / CHECKPOINTS, name)
        loaded = load_checkpoint(name)
        if same_weights(loaded, model):
            progress.note(f"checkpoint {name} is the final model itself, so it is not one of the earlier ones")
            continue
        try:
            run(loaded, fixed, folder, None, progress, known=checkpoint_stages(), given=given)
        except TooFewCorrect:
            progress.note(f"checkpoint {name} answers almost no prompt correctly, so it has no heuristic neurons")
        checkpoint, key = read_checkpoint(folder, name)
        checkpoints.append(checkpoint)
        keys.append(key)
    if final.is_done(TRAINING):  # its key covers the final model only, not the checkpoints it was gathered from
        earlier = final.read(training.Training)
        if (earlier.checkpoints[:-1], earlier.keys) != ([checkpoint.name for checkpoint in checkpoints], keys):
            with explain_write_errors(final.path):
                shutil.rmtree(final.path / TRAINING)
    gathered = [Given("", training.CheckpointResults(checkpoints, keys))]
    return run(model, settings, final.path, [TRAINING], progress, after_stage, given=gathered)


def same_weights(a: Model, b: Model) -> bool:
    """Whether two models have the same weights. Where their files differ (the same weights can be split into files in several
    ways), weights in memory are compared; those that are elsewhere count as different."""
    if a.identity.weight_hash == b.identity.weight_hash:
        return True
    ours, theirs = (model.hf_model.state_dict() for model in (a, b))
    return ours.keys() == theirs.keys() and all(_same_tensor(x, theirs[name]) for name, x in ours.items())


def _same_tensor(x: Tensor, y: Tensor) -> bool:
    in_memory = not x.is_meta and not y.is_meta
    return in_memory and x.dtype == y.dtype and torch.equal(x, y.to(x.device))


def wants_repeats(settings: Settings, stages: Sequence[str] | None) -> bool:
    """Whether to repeat the study: if the stage is named or, where none are, if the preset includes it."""
    return settings.preset == PRESET if stages is None else STABILITY in stages


def repeat_study(
    model: Model, settings: Settings, final: RunWriter, progress: Progress, executor: Executor = LOCAL
) -> RunWriter:
    """Repeat a study that is done (`final`), and compare the repetitions in the stage `stability`."""
    run = partial(run_stages, executor=executor, overwrite=True)
    if final.is_done(STABILITY):
        progress.note(f"{STABILITY}: unchanged, not run again")
        return final
    given = [Given(final.keys["means"], final.read(MeanActivations))]
    compared = [stage_of(kind).name for kind in stability.COMPARED]
    stages = [stage for stage in all_stages() if stage.name in (*compared, "localize", "patterns")]
    repeats, planned = [], repeated_settings(settings)
    for i, (name, own) in enumerate(planned.items()):
        progress.note(f"repetition {name}, {i + 1} of {len(planned)}")
        folder = final.path / REPEATS / name
        keys, begun = keys_of(model, own, stages, given), (folder / "manifest.json").exists()
        # A repetition with all results to compare is complete, even if the activation maps behind them are gone.
        if not begun or not all(RunFolder(folder).has(stage, keys[stage]) for stage in compared):
            try:
                run(model, own, folder, None, progress, known=stages, given=given)
            except TooFewCorrect:
                progress.note(f"repetition {name} answers almost no prompt correctly")
        shutil.rmtree(folder / "patterns", ignore_errors=True)  # gigabytes that are no longer read
        repeats.append(read_repeat(folder, name, settings.effect))
    gathered = [Given("", stability.RepeatResults(repeats))]
    return run(model, settings, final.path, [STABILITY], progress, given=gathered)


def read_repeat(folder: Path, name: str, effect: str) -> stability.Repeat:
    """Results of a repetition to compare; one that is hardly ever right has only an accuracy."""
    run = RunFolder(folder)
    kinds = stability.COMPARED if all(run.is_done(stage_of(kind).name) for kind in stability.COMPARED) else (Accuracy,)
    return stability.repeat_from(name, Results(*(run.read(kind) for kind in kinds)), effect)


def repeated_settings(settings: Settings) -> dict[str, Settings]:
    """Settings of each repetition, by name: two halves of the prompts, then other seeds."""
    seeds = range(settings.seed + 1, settings.seed + 1 + OTHER_SEEDS)
    return {
        **{f"{stability.HALF}{half}": replace(settings, half=half) for half in (1, 2)},
        **{f"{stability.SEED}{seed}": replace(settings, seed=seed) for seed in seeds},
    }

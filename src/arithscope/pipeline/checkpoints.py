"""Follows a model through its training: a smaller study of each checkpoint, with choices of the final model, then compared.

Every checkpoint is a run of its own, below the final model's run folder: an interrupted one resumes, and unchanged stages are
not computed again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.bag import Bag, FinalClassification
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.classify import Classification
from arithscope.experiments.common.samples import TooFewCorrect
from arithscope.experiments.common.stage import Stage
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.neurons import NeuronEffects
from arithscope.experiments.patterns import ActivationMaps
from arithscope.experiments.probe import Probe
from arithscope.experiments.prompt_knockout import PromptKnockout
from arithscope.experiments.topk import TopK
from arithscope.experiments.training import Checkpoint, CheckpointResults, Training
from arithscope.models.model import Model
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import AfterStage, Given, run_stages
from arithscope.pipeline.store import RunFolder, RunWriter, stage_key
from arithscope.settings import Settings
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.files import explain_write_errors
from arithscope.utils.progress import Progress

FOLDER = "checkpoints"  # of a run folder: holds a run folder for each checkpoint
TRAINING = "training"
COMPARED = (Accuracy, Bag, PromptKnockout)
_RESULTS = (MeanActivations, *COMPARED, NeuronEffects, TopK, ActivationMaps, Classification)


def checkpoint_stages() -> list[Stage]:
    """The stages that run on an earlier checkpoint."""
    return [stage for stage in all_stages() if stage.result in _RESULTS]


def final_results(final: RunFolder) -> list[Given]:
    """What an earlier checkpoint takes from the final model's run: circuit, first answer layer and classification."""
    given = [Given(final.key(name) or "", final.read(kind)) for name, kind in (("probe", Probe), ("circuit", Circuit))]
    return [*given, Given(final.key("classify") or "", FinalClassification(final.read(Classification)))]


def read_checkpoint(folder: Path, name: str) -> tuple[Checkpoint, str]:
    """Results of a checkpoint's run, and the key of them; a model that is hardly ever right has only an accuracy."""
    run = RunFolder(folder)
    stages = (
        ["accuracy", "bag", "prompt_knockout"] if all(map(run.is_done, ("bag", "prompt_knockout"))) else ["accuracy"]
    )
    kinds = {"accuracy": Accuracy, "bag": Bag, "prompt_knockout": PromptKnockout}
    results = {stage: run.read(kinds[stage]) for stage in stages}
    return Checkpoint(name, **results), stage_key(**{stage: run.key(stage) for stage in stages})  # type: ignore[arg-type]


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
    top, given = final.read(TopK), final_results(final)
    fixed = replace(settings, topk=top.k, operators=tuple(top.operators))
    checkpoints, keys = [], []
    for i, name in enumerate(names):
        progress.note(f"checkpoint {name}, {i + 1} of {len(names)}")
        folder = final.path / FOLDER / name
        try:
            loaded = load_checkpoint(name)
            run_stages(loaded, fixed, folder, None, progress, known=checkpoint_stages(), given=given, executor=executor)
        except TooFewCorrect:
            progress.note(f"checkpoint {name} answers almost no prompt correctly, so it has no heuristic neurons")
        checkpoint, key = read_checkpoint(folder, name)
        checkpoints.append(checkpoint)
        keys.append(key)
    _remove_if_outdated(final, list(names), keys)
    gathered = [Given("", CheckpointResults(checkpoints, keys))]
    return run_stages(model, settings, final.path, [TRAINING], progress, after_stage, given=gathered, executor=executor)


def _remove_if_outdated(final: RunWriter, names: list[str], keys: list[str]) -> None:
    """Remove a stage `training` that was gathered from other checkpoints; its key covers the final one only."""
    if final.is_done(TRAINING):
        earlier = final.read(Training)
        if (earlier.checkpoints[:-1], earlier.keys) != (names, keys):
            with explain_write_errors(final.path):
                shutil.rmtree(final.path / TRAINING)

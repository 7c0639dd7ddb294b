"""Repeating a study to see how stable its numbers are: on either half of the prompts, and with other seeds."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from arithscope.experiments.common.samples import TooFewCorrect
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.stability import HALF, SEED, repeat_from
from arithscope.models.model import Model
from arithscope.pipeline import runner
from arithscope.pipeline.registry import COMPARED, REPEAT_STAGES, REPEATS
from arithscope.pipeline.runner import Given
from arithscope.pipeline.store import RunFolder, RunWriter
from arithscope.settings import Settings
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.progress import Progress

FOLDER = "repeats"  # of a run folder: a run folder for each repetition
STABILITY = "stability"
THOROUGH = "paper"  # the preset that includes it
OTHER_SEEDS = 2
LARGE = "patterns"  # the stage of a repetition that is not kept: gigabytes that nothing reads any more
KINDS = {stage.name: stage.result for stage in REPEAT_STAGES}


def asks_for_repeats(settings: Settings, stages: Sequence[str] | None) -> bool:
    """Whether the study is to be repeated: if that stage is named or, where none are, if the preset includes it."""
    return settings.preset == THOROUGH if stages is None else STABILITY in stages


def repeat(
    model: Model, settings: Settings, final: RunWriter, progress: Progress, executor: Executor = LOCAL
) -> RunWriter:
    """Study a subject, whose own study is done (`final`), again and again, each time in a run folder below it, and compare.

    Every repetition is its own run: stopped, it goes on where it was. All depend on nothing but what the study itself depends
    on, so that once they are compared they are not looked at again.
    """
    if final.is_done(STABILITY):
        progress.note(f"{STABILITY}: nothing has changed, so it is not run again")
        return final
    given = {"means": Given(final.keys["means"], final.read("means", MeanActivations))}
    found, asked = [], repetitions(settings)
    for i, (name, own) in enumerate(asked.items()):
        progress.note(f"the study again, {name}, {i + 1} of {len(asked)}")
        folder, stages = final.path / FOLDER / name, list(COMPARED)
        if not _is_complete(folder, runner.keys_of(model, own, REPEAT_STAGES, given)):
            try:
                runner.run(model, own, folder, None, progress, known=REPEAT_STAGES, given=given, executor=executor)
            except TooFewCorrect:
                progress.note(f"{name} has next to no prompt that is answered correctly")
                stages = ["accuracy"]
        shutil.rmtree(folder / LARGE, ignore_errors=True)
        run = RunFolder(folder)
        found.append(repeat_from(name, {stage: run.read(stage, KINDS[stage]) for stage in stages}, settings.effect))
    together = {REPEATS: Given("", found)}
    return runner.run(model, settings, final.path, [STABILITY], progress, given=together, executor=executor)


def repetitions(settings: Settings) -> dict[str, Settings]:
    """By name what is varied: the half of the prompts, then the seed."""
    seeds = range(settings.seed + 1, settings.seed + 1 + OTHER_SEEDS)
    return {
        **{f"{HALF}{half}": replace(settings, half=half) for half in (1, 2)},
        **{f"{SEED}{seed}": replace(settings, seed=seed) for seed in seeds},
    }


def _is_complete(folder: Path, keys: dict[str, str]) -> bool:
    """Whether all that is compared is there, also if what it was made from is not kept."""
    return (folder / "manifest.json").exists() and all(RunFolder(folder).has(stage, keys[stage]) for stage in COMPARED)

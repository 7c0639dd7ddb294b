"""Repeats a study to see how stable its numbers are: on either half of the prompts, and with other seeds.

Every repetition is a run of its own, below the study's run folder: an interrupted one resumes. A repetition depends on nothing
that the study itself does not depend on, so once the stage `stability` is done repetitions are not looked at again.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.samples import TooFewCorrect
from arithscope.experiments.common.stage import Results, Stage
from arithscope.experiments.localize import Localization
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.patterns import ActivationMaps
from arithscope.experiments.stability import COMPARED, HALF, SEED, Repeat, RepeatResults, repeat_from
from arithscope.models.model import Model
from arithscope.pipeline.registry import all_stages, stage_of
from arithscope.pipeline.runner import Given, keys_of, run_stages
from arithscope.pipeline.store import RunFolder, RunWriter
from arithscope.settings import Settings
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.progress import Progress

FOLDER = "repeats"  # of a run folder: holds a run folder for each repetition
STABILITY = "stability"
PRESET = "paper"  # the preset that repeats the study
OTHER_SEEDS = 2


def repeat_stages() -> list[Stage]:
    """The stages that run in a repetition; mean activations are taken from the study."""
    return [stage for stage in all_stages() if stage.result in (*COMPARED, Localization, ActivationMaps)]


def wants_repeats(settings: Settings, stages: Sequence[str] | None) -> bool:
    """Whether to repeat the study: if the stage is named or, where none are, if the preset includes it."""
    return settings.preset == PRESET if stages is None else STABILITY in stages


def repeat_study(
    model: Model, settings: Settings, final: RunWriter, progress: Progress, executor: Executor = LOCAL
) -> RunWriter:
    """Repeat a study that is done (`final`), and compare the repetitions in the stage `stability`."""
    if final.is_done(STABILITY):
        progress.note(f"{STABILITY}: unchanged, not run again")
        return final
    given, stages = [Given(final.keys["means"], final.read(MeanActivations))], repeat_stages()
    repeats, planned = [], repeated_settings(settings)
    for i, (name, own) in enumerate(planned.items()):
        progress.note(f"repetition {name}, {i + 1} of {len(planned)}")
        folder = final.path / FOLDER / name
        if not _is_complete(folder, keys_of(model, own, stages, given)):
            try:
                run_stages(model, own, folder, None, progress, known=stages, given=given, executor=executor)
            except TooFewCorrect:
                progress.note(f"{name} has almost no prompt that is answered correctly")
        shutil.rmtree(
            folder / stage_of(ActivationMaps).name, ignore_errors=True
        )  # gigabytes that nothing reads any more
        repeats.append(read_repeat(folder, name, settings.effect))
    gathered = [Given("", RepeatResults(repeats))]
    return run_stages(model, settings, final.path, [STABILITY], progress, given=gathered, executor=executor)


def read_repeat(folder: Path, name: str, effect: str) -> Repeat:
    """What is compared of a repetition; one that is hardly ever right has only an accuracy."""
    run = RunFolder(folder)
    kinds = COMPARED if all(run.is_done(stage_of(kind).name) for kind in COMPARED) else (Accuracy,)
    return repeat_from(name, Results(*(run.read(kind) for kind in kinds)), effect)


def repeated_settings(settings: Settings) -> dict[str, Settings]:
    """Settings of each repetition, by name: two halves of the prompts, then other seeds."""
    seeds = range(settings.seed + 1, settings.seed + 1 + OTHER_SEEDS)
    return {
        **{f"{HALF}{half}": replace(settings, half=half) for half in (1, 2)},
        **{f"{SEED}{seed}": replace(settings, seed=seed) for seed in seeds},
    }


def _is_complete(folder: Path, keys: dict[str, str]) -> bool:
    """Whether all results to compare are there, even if what they were computed from is not kept."""
    if not (folder / "manifest.json").exists():
        return False
    run = RunFolder(folder)
    return all(run.has(name, keys[name]) for name in (stage_of(kind).name for kind in COMPARED))

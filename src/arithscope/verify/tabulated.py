"""Stages that only put together what others found: recomputed whole, and the same to the last digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arithscope.experiments.accuracy import Accuracy, accuracy_from
from arithscope.experiments.bag import Bag
from arithscope.experiments.failures import Failures, failures
from arithscope.experiments.overlap import Overlap, overlap
from arithscope.experiments.prompt_knockout import PromptKnockout
from arithscope.experiments.stability import WHOLE as WHOLE_RUN
from arithscope.experiments.stability import Stability, repeat_from, stability
from arithscope.experiments.training import LAST, Checkpoint, Training, training
from arithscope.pipeline.checkpoints import FOLDER as CHECKPOINTS
from arithscope.pipeline.registry import COMPARED
from arithscope.pipeline.repeats import FOLDER as REPEATS
from arithscope.pipeline.repeats import KINDS
from arithscope.pipeline.store import RunFolder, stage_key
from arithscope.utils.progress import Silent
from arithscope.verify.compare import Tally
from arithscope.verify.inputs import Inputs

WHOLE = "all of it from what is stored"


def check_accuracy(inputs: Inputs, stored: Accuracy, tally: Tally) -> None:
    s = inputs.settings
    tally.did(WHOLE)
    tally.result(stored, accuracy_from(inputs["means"], s.operators, inputs.model.limit, s.seed, s.half))


def check_overlap(inputs: Inputs, stored: Overlap, tally: Tally) -> None:
    tally.did(WHOLE)
    tally.result(stored, overlap(inputs["topk"]))


def check_failures(inputs: Inputs, stored: Failures, tally: Tally) -> None:
    earlier = inputs["accuracy"], inputs["patterns"], inputs["classify"]
    tally.did(WHOLE)
    tally.result(stored, failures(*earlier, inputs.settings.sizes, inputs.settings.seed, Silent()))


def check_training(inputs: Inputs, stored: Training, tally: Tally) -> None:
    """Gathered anew from the folders of the checkpoints. These are runs of their own, to be verified as such."""
    found, keys = [], []
    for name in stored.checkpoints[:-1]:
        at_checkpoint, key = _checkpoint(inputs.run.path / CHECKPOINTS / name, name)
        found.append(at_checkpoint)
        keys.append(key)
    found.append(Checkpoint(LAST, inputs["accuracy"], inputs["bag"], inputs["prompt_knockout"]))
    tally.did(f"all of it from the folders of {len(keys)} checkpoints")
    tally.result(stored, training(found, keys, inputs.settings.seed))


def check_stability(inputs: Inputs, stored: Stability, tally: Tally) -> None:
    """Gathered anew from the folders of the repetitions. They do not keep their patterns, so they cannot be verified alone."""
    effect = inputs.settings.effect
    found = [repeat_from(WHOLE_RUN, {stage: inputs[stage] for stage in COMPARED}, effect)]
    for name in stored.runs[1:]:
        run = RunFolder(inputs.run.path / REPEATS / name)
        there = COMPARED if all(map(run.is_done, COMPARED)) else ("accuracy",)
        found.append(repeat_from(name, {stage: run.read(stage, KINDS[stage]) for stage in there}, effect))
    tally.did(f"all of it from the folders of {len(found) - 1} repetitions")
    tally.result(stored, stability(found))


def _checkpoint(folder: Path, name: str) -> tuple[Checkpoint, str]:
    """What a checkpoint's folder holds, and the key of it; one that is hardly ever right has nothing but its accuracy."""
    run, kinds = RunFolder(folder), {"accuracy": Accuracy, "bag": Bag, "prompt_knockout": PromptKnockout}
    there = {stage: kind for stage, kind in kinds.items() if run.is_done(stage) or stage == "accuracy"}
    if set(there) != set(kinds):
        there = {"accuracy": Accuracy}
    results: dict[str, Any] = {stage: run.read(stage, kind) for stage, kind in there.items()}
    return Checkpoint(name, **results), stage_key(**{stage: run.key(stage) for stage in there})

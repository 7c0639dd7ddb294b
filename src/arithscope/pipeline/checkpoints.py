"""Following a model through its training: a smaller study of each checkpoint, with the final one's choices, then all
together."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.bag import Bag
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.classify import Classification
from arithscope.experiments.common.samples import TooFewCorrect
from arithscope.experiments.probe import Probe
from arithscope.experiments.prompt_knockout import PromptKnockout
from arithscope.experiments.topk import TopK
from arithscope.experiments.training import Checkpoint, Training
from arithscope.models.model import Model
from arithscope.pipeline import runner
from arithscope.pipeline.registry import CHECKPOINT_STAGES, CHECKPOINTS, FINAL
from arithscope.pipeline.runner import Given
from arithscope.pipeline.store import RunFolder, RunWriter, stage_key
from arithscope.settings import Settings
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.files import writing
from arithscope.utils.progress import Progress

FOLDER = "checkpoints"  # of a run folder: a run folder for each checkpoint
TRAINING = "training"


def follow(
    model: Model,
    names: Sequence[str],
    load_checkpoint: Callable[[str], Model],
    settings: Settings,
    final: RunWriter,
    progress: Progress,
    after_stage: Callable[[RunWriter], None] = lambda folder: None,
    executor: Executor = LOCAL,
) -> RunWriter:
    """Study the checkpoints of a subject whose own study is done (`final`), each in a run folder below it, and compare them.

    Every checkpoint is its own run: stopped, it goes on where it was, and what has not changed is not computed again.
    """
    top = final.read("topk", TopK)
    given = {
        name: Given(final.keys[name], final.read(name, kind)) for name, kind in (("probe", Probe), ("circuit", Circuit))
    }
    given[FINAL] = Given(final.keys["classify"], final.read("classify", Classification))
    fixed = replace(settings, topk=top.k, operators=tuple(top.operators))
    found, keys = [], []
    for i, name in enumerate(names):
        progress.note(f"checkpoint {name}, {i + 1} of {len(names)}")
        folder = final.path / FOLDER / name
        gathered: dict[str, type] = {"accuracy": Accuracy, "bag": Bag, "prompt_knockout": PromptKnockout}
        try:
            checkpoint, stages = load_checkpoint(name), CHECKPOINT_STAGES
            runner.run(checkpoint, fixed, folder, None, progress, known=stages, given=given, executor=executor)
        except TooFewCorrect:
            progress.note(f"checkpoint {name} answers next to no prompt correctly, so that it has no heuristic neurons")
            gathered = {"accuracy": Accuracy}
        run = RunFolder(folder)
        found.append(Checkpoint(name, **{stage: run.read(stage, kind) for stage, kind in gathered.items()}))
        keys.append(stage_key(**{stage: run.key(stage) for stage in gathered}))
    _forget_if_other(final, list(names), keys)
    together = {CHECKPOINTS: Given("", (found, keys))}
    return runner.run(model, settings, final.path, [TRAINING], progress, after_stage, given=together, executor=executor)


def _forget_if_other(final: RunWriter, names: list[str], keys: list[str]) -> None:
    """The stage's key covers the final checkpoint; what was gathered from other checkpoints, or other results, is removed."""
    if final.is_done(TRAINING):
        earlier = final.read(TRAINING, Training)
        if (earlier.checkpoints[:-1], earlier.keys) != (names, keys):
            with writing(final.path):
                shutil.rmtree(final.path / TRAINING)

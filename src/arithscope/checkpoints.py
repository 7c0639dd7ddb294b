"""Following a model through its training: a smaller study of each checkpoint, with the final one's choices, then all
together."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace

from arithscope import study
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.bag import Bag
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.classify import Classify
from arithscope.experiments.probe import Probe
from arithscope.experiments.prompt_knockout import PromptKnockout
from arithscope.experiments.samples import TooFewCorrect
from arithscope.experiments.topk import TopK
from arithscope.experiments.training import Checkpoint, Training
from arithscope.files import writing
from arithscope.progress import Progress
from arithscope.settings import Settings
from arithscope.stages import CHECKPOINT_STAGES, CHECKPOINTS, FINAL
from arithscope.store import RunFolder, RunWriter, stage_key
from arithscope.study import Given
from arithscope.subject.subject import Subject
from arithscope.work import HERE, Work

FOLDER = "checkpoints"  # of a run folder: a run folder for each checkpoint
TRAINING = "training"


def follow(
    subject: Subject,
    names: Sequence[str],
    load_checkpoint: Callable[[str], Subject],
    settings: Settings,
    final: RunWriter,
    progress: Progress,
    after_stage: Callable[[RunWriter], None] = lambda folder: None,
    work: Work = HERE,
) -> RunWriter:
    """Study the checkpoints of a subject whose own study is done (`final`), each in a run folder below it, and compare them.

    Every checkpoint is its own run: stopped, it goes on where it was, and what has not changed is not computed again.
    """
    top = final.read("topk", TopK)
    given = {
        name: Given(final.keys[name], final.read(name, kind)) for name, kind in (("probe", Probe), ("circuit", Circuit))
    }
    given[FINAL] = Given(final.keys["classify"], final.read("classify", Classify))
    fixed = replace(settings, topk=top.k, operators=tuple(top.operators))
    found, keys = [], []
    for i, name in enumerate(names):
        progress.note(f"checkpoint {name}, {i + 1} of {len(names)}")
        folder = final.path / FOLDER / name
        gathered: dict[str, type] = {"accuracy": Accuracy, "bag": Bag, "prompt_knockout": PromptKnockout}
        try:
            checkpoint, stages = load_checkpoint(name), CHECKPOINT_STAGES
            study.run(checkpoint, fixed, folder, None, progress, known=stages, given=given, work=work)
        except TooFewCorrect:
            progress.note(f"checkpoint {name} answers next to no prompt correctly, so that it has no heuristic neurons")
            gathered = {"accuracy": Accuracy}
        run = RunFolder(folder)
        found.append(Checkpoint(name, **{stage: run.read(stage, kind) for stage, kind in gathered.items()}))
        keys.append(stage_key(**{stage: run.key(stage) for stage in gathered}))
    _forget_if_other(final, list(names), keys)
    together = {CHECKPOINTS: Given("", (found, keys))}
    return study.run(subject, settings, final.path, [TRAINING], progress, after_stage, given=together, work=work)


def _forget_if_other(final: RunWriter, names: list[str], keys: list[str]) -> None:
    """The stage's key covers the final checkpoint; what was gathered from other checkpoints, or other results, is removed."""
    if final.is_done(TRAINING):
        earlier = final.read(TRAINING, Training)
        if (earlier.checkpoints[:-1], earlier.keys) != (names, keys):
            with writing(final.path):
                shutil.rmtree(final.path / TRAINING)

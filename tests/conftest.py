from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arithscope.progress import Silent
from arithscope.settings import Settings
from arithscope.stages import STAGES
from arithscope.store import RunFolder
from arithscope.study import run
from arithscope.subject.subject import Subject
from tests.families import small
from tests.hand_built import MAX_OPERAND, copy_and_add


def saved(subject: Subject, folder: Path) -> Path:
    """A subject as a folder in Hugging Face format."""
    subject.model.save_pretrained(folder)
    subject.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama; do not write to its folder."""
    return saved(small("llama", "sdpa"), tmp_path_factory.mktemp("models") / "small-llama")


@pytest.fixture(scope="session")
def saved_adder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hand-built model that adds; do not write to its folder."""
    return saved(copy_and_add(), tmp_path_factory.mktemp("models") / "copy-and-add")


@pytest.fixture(scope="session")
def adder_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every stage says of the hand-built model, as read back from its run folder."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(copy_and_add(), Settings(("+",), MAX_OPERAND), folder, None, Silent())
    return {stage.name: RunFolder(folder).read(stage.name, stage.result) for stage in STAGES if not stage.asked}

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from arithscope.models.load import load
from arithscope.models.model import Model
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import RunFolder
from arithscope.pipeline.study import follow_training
from arithscope.settings import SampleSizes, Settings
from arithscope.utils.progress import Silent
from tests.families import small
from tests.hand_built import MAX_OPERAND, copy_and_add

with suppress(ImportError):  # a machine with a GPU may lack it
    import hypothesis

    # A busy machine is slow, which is no failure.
    hypothesis.settings.register_profile("any speed", deadline=None)
    hypothesis.settings.load_profile("any speed")


def saved(model: Model, folder: Path) -> Path:
    """A model as a folder in Hugging Face format."""
    model.hf_model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """So many, in torch and in all that takes as many."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.fixture
def two_threads() -> Iterator[None]:
    with torch_threads(2):
        yield


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
    run_stages(copy_and_add(), Settings(("+",), MAX_OPERAND), folder, None, Silent())
    return {stage.name: RunFolder(folder).read(stage.result) for stage in all_stages() if not stage.on_request}


SMALL_SAMPLES = SampleSizes(
    discovery=16,
    evaluation=16,
    first_mlp=2,
    probe=480,
    draws=2,
    permutations=4,
    knockout=10,
    prompt_knockout=12,
    failures=20,
)


def smaller(operators: tuple[str, ...], max_operand: int, **settings: Any) -> Settings:
    """Settings with samples so small that all stages take seconds; their results mean little."""
    return Settings(operators, max_operand, **settings, custom_sizes=SMALL_SAMPLES)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that is made once in a test session, by whichever process comes first; the others wait for it."""
    base = factory.getbasetemp()
    shared = (
        base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    )  # each process has a folder below the session's
    with FileLock(shared / f"{name}.lock"):
        done = shared / f"{name}.done"
        if not done.exists():
            make(shared / name)
            done.touch()
    return shared / name


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of tiny-llama with every stage, for + and − up to 40, without figures. Several processes read it: do not write to
    it, copy it."""

    def make(folder: Path) -> None:
        run_stages(load("tiny-llama"), smaller(("+", "-"), 40, topk=16, neurons="atp"), folder, None, Silent())

    return made_once(tmp_path_factory, "small-run", make)


@pytest.fixture(scope="session")
def small_training_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of tiny-pythia, + up to 20, with two checkpoints, of which the first is never right; of its other stages only
    those that the curves need. Several processes read it: do not write to it, copy it."""

    def make(folder: Path) -> None:
        model, settings = load("tiny-pythia"), smaller(("+",), 20, topk=8, neurons="atp")
        final = run_stages(model, settings, folder, ["bag", "prompt_knockout"], Silent())
        follow_training(
            model, ["step-00000", "step-01000"], lambda n: load(f"tiny-pythia@{n}"), settings, final, Silent()
        )

    return made_once(tmp_path_factory, "small-training-run", make)

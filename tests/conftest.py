from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
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
from arithscope.pipeline.study import follow_training, study
from arithscope.results.run import run_layouts
from arithscope.settings import SampleSizes, Settings
from arithscope.utils.progress import Silent
from tests.families import small
from tests.hand_built import MAX_OPERAND, copy_and_add
from tests.hand_built_digits import carry_adder

with suppress(ImportError):  # may be missing on a machine that runs the GPU tests only
    import hypothesis

    # No deadline: a test must not fail because the machine is busy.
    hypothesis.settings.register_profile("any speed", deadline=None)
    hypothesis.settings.load_profile("any speed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def saved(model: Model, folder: Path) -> Path:
    """Save a model in Hugging Face format; returns the folder."""
    model.hf_model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
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
    return made_once(tmp_path_factory, "copy-and-add", lambda folder: saved(copy_and_add(), folder))


@pytest.fixture(scope="session")
def adder_run(tmp_path_factory: pytest.TempPathFactory, saved_adder: Path) -> Path:
    """A run of the hand-built model, + with all operands, with every stage that runs by default; no figures. Several
    processes read it: copy it before you change anything."""
    settings = Settings(("+",), MAX_OPERAND)
    return made_once(
        tmp_path_factory,
        "adder-run",
        lambda folder: run_stages(load(str(saved_adder)), settings, folder, None, Silent()),
    )


@pytest.fixture(scope="session")
def adder_results(adder_run: Path) -> dict[str, Any]:
    """The result of every stage of `adder_run`, by the stage's name."""
    return {stage.name: RunFolder(adder_run).read(stage.result) for stage in all_stages() if not stage.on_request}


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


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first process to need it makes, once in a test session; the other processes wait for it."""
    base = factory.getbasetemp()
    # Under xdist, the base folder of each process lies in the folder of the session.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(shared / f"{name}.lock"):
        done = shared / f"{name}.done"
        if not done.exists():
            make(shared / name)
            done.touch()
    return shared / name


@pytest.fixture(scope="session")
def small_adder_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the hand-built model, + up to 9, with every stage that runs by default except mlp0, which is slow; no figures.
    Several processes read it: copy it before you change anything."""
    stages = [stage.name for stage in all_stages() if stage.name != "mlp0" and not stage.on_request]
    settings = Settings(("+",), 9, neurons="atp")
    return made_once(
        tmp_path_factory,
        "small-adder-run",
        lambda folder: run_stages(copy_and_add(), settings, folder, stages, Silent()),
    )


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of tiny-llama with every stage, for + and − up to 40, without figures. Several processes read it: copy it before
    you change anything."""

    def make(folder: Path) -> None:
        run_stages(load("tiny-llama"), smaller(("+", "-"), 40, topk=64, neurons="atp"), folder, None, Silent())

    return made_once(tmp_path_factory, "small-run", make)


@pytest.fixture(scope="session")
def layout_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the hand-built model of digits, by layout: sums with answers of two and of three tokens. Of the steps, only their
    accuracy; no figures. Several processes read them: copy them before you change anything."""

    def make(folder: Path) -> None:
        settings: dict[str, Any] = {"operators": "+", "custom_sizes": SMALL_SAMPLES}
        run_layouts(carry_adder(), folder, "10-99", ["accuracy", "carries", "digit_probes"], **settings)

    return made_once(tmp_path_factory, "layout-runs", make)


@pytest.fixture(scope="session")
def small_training_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of tiny-pythia, + up to 20, with two checkpoints, the first of which gets no circuit; of the other stages, only
    those that the training curves need. Several processes read it: copy it before you change anything."""

    def make(folder: Path) -> None:
        model, settings = load("tiny-pythia"), smaller(("+",), 20, topk=200, neurons="atp")
        final = run_stages(model, settings, folder, ["bag", "prompt_knockout"], Silent())
        follow_training(
            model, ["step-00000", "step-01500"], lambda n: load(f"tiny-pythia@{n}"), settings, final, Silent()
        )

    return made_once(tmp_path_factory, "small-training-run", make)


@pytest.fixture(scope="session")
def small_layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of tiny-digits, which reads numbers digit by digit, for + and −: the layouts 2-2-1, 2-2-2 and 2-2-3, whose first
    step asks for 1 in all prompts. Several processes read it: copy it before you change anything."""

    def make(folder: Path) -> None:
        own: dict[str, Any] = dict(operands=((40, 69), (20, 59)), topk=16, custom_sizes=SMALL_SAMPLES)
        study("tiny-digits", Settings(("+", "-"), **own), folder)

    return made_once(tmp_path_factory, "small-layouts", make)


@pytest.fixture(scope="session")
def small_steps_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study of tiny-digits, + with operands 60…89. It has one layout, 2-2-3, with the answer steps 2 and 3: the
    first digit of all sums is 1. Of the stages, those that the explorer's views and `explain` need. Several processes read it:
    copy it before you change anything."""

    def make(folder: Path) -> None:
        sizes = replace(SMALL_SAMPLES, selection=16)
        settings = Settings(("+",), operands=((60, 89), (60, 89)), topk=32, neurons="atp", custom_sizes=sizes)
        study(
            "tiny-digits", settings, folder, ["whole_answers", "carries", "step_overlap", "heads", "probe", "classify"]
        )

    return made_once(tmp_path_factory, "small-steps-run", make)

"""Out of memory: chunks are halved until they fit, the numbers stay the same, and what never fits is explained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arithscope.errors import UserError
from arithscope.models.load import load
from arithscope.models.memory import rows_that_fit
from arithscope.models.model import Model
from arithscope.pipeline.registry import Stage, all_stages
from arithscope.pipeline.runner import check_model, run_stages
from arithscope.pipeline.store import RunFolder
from arithscope.utils import out_of_memory
from arithscope.utils.executor import LOCAL, LocalExecutor, run_unit
from arithscope.utils.out_of_memory import explain_out_of_memory, is_out_of_memory, rows_within
from arithscope.utils.progress import Silent
from tests.approximate import assert_close
from tests.conftest import smaller, torch_threads
from tests.families import small
from tests.hand_built import copy_and_add
from tests.notes import RecordedNotes


@pytest.fixture(autouse=True)
def full_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_memory, "_chunks", out_of_memory._Chunks())


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    MemoryError("Unable to allocate 7.45 GiB for an array"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000000 bytes."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: str(e)[:30])
def test_out_of_memory_errors_are_recognised(error: Exception) -> None:
    assert is_out_of_memory(error)
    hidden = RuntimeError("capture failed")
    hidden.__context__ = error
    assert is_out_of_memory(hidden)
    explained = UserError("There is no such thing.")
    explained.__context__ = error
    assert not is_out_of_memory(explained)
    with pytest.raises(UserError, match=r"too little memory for a cake; use --dtype"), explain_out_of_memory("a cake"):
        raise error


def test_other_errors_are_not_taken_for_out_of_memory() -> None:
    for error in (RuntimeError("shapes do not match"), ValueError("out of memory"), KeyboardInterrupt(), None):
        assert not is_out_of_memory(error)
    with pytest.raises(ValueError, match="nothing"), explain_out_of_memory("a cake"):
        raise ValueError("nothing to do with it")


def test_real_allocations_that_fail() -> None:
    for allocate in (lambda: torch.empty(2**58, dtype=torch.uint8), lambda: np.empty(2**62, dtype=np.uint8)):
        with pytest.raises(UserError, match="too little memory"), explain_out_of_memory("all of it"):
            allocate()


def in_chunks(model: Any, rows: int, fits: int, *, advance: Any) -> list[int]:
    """A unit of `rows` rows, of which `fits` fit into memory at a time."""
    size, found = rows_within(1000, 1), []
    for start in range(0, rows, size):
        some = list(range(start, min(start + size, rows)))
        # Not in the first of several chunks, so that some steps are already counted.
        if len(some) > fits and start + size >= min(rows, 2 * size):
            raise torch.OutOfMemoryError("out of memory")
        found += some
        advance(len(some))
    return found


def test_chunks_are_halved_until_they_fit() -> None:
    steps: list[int] = []
    notes: list[str] = []
    assert run_unit(in_chunks, None, (3000, 130), steps.append, notes.append) == (list(range(3000)), 3000)
    assert sum(steps) == 3000  # no step is counted twice
    assert min(steps) > 0
    assert notes == ["in_chunks: out of memory, so passes are half as large from now on"] * 3
    assert rows_within(1000, 1) == 125  # later units start with the smaller chunks
    notes.clear()
    assert LocalExecutor(notes.append).map(in_chunks, None, [(300, 130), (200, 60)], steps.append)[1] == list(
        range(200)
    )
    assert len(notes) == 2


def test_a_row_that_never_fits_is_explained() -> None:
    notes: list[str] = []
    with pytest.raises(UserError, match="too little memory for a single row of in_chunks; use --dtype"):
        run_unit(in_chunks, None, (5, 0), lambda n: None, notes.append)
    assert len(notes) == 9  # after 1000, 500, …, 3; a chunk of 1 cannot be halved


def without_chunks(model: Any, failures: list[int], *, advance: Any) -> str:
    failures[0] -= 1
    if failures[0] >= 0:
        raise MemoryError
    return "done"


def test_a_unit_without_chunks_is_tried_once_more() -> None:
    """Other memory may have been freed by then."""
    assert run_unit(without_chunks, None, ([1],), lambda n: None, lambda text: None) == ("done", 0)
    with pytest.raises(UserError, match="too little memory"):
        run_unit(without_chunks, None, ([2],), lambda n: None, lambda text: None)


class Holding:
    alive = 0

    def __init__(self) -> None:
        Holding.alive += 1

    def __del__(self) -> None:
        Holding.alive -= 1


def holds_much(model: Any, before: list[int], *, advance: Any) -> None:
    before.append(Holding.alive)
    much = Holding()
    if len(before) < 3 and rows_within(100, 1) and much:
        raise torch.OutOfMemoryError("out of memory")


def test_the_memory_of_a_failed_pass_is_freed() -> None:
    before: list[int] = []
    run_unit(holds_much, None, (before,), lambda n: None, lambda text: None)
    assert before == [0, 0, 0]


@contextmanager
def memory_for(rows: float, model: Model, seen: list[int]) -> Iterator[None]:
    """A device on which every pass with more rows fails in the last layer; `seen` collects the rows of every pass."""
    kind: Any = type(model.layers[-1])
    original = kind.forward

    def forward(self: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(len(hidden))
        if len(hidden) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, hidden, *args, **kwargs)

    kind.forward = forward
    try:
        yield
    finally:
        kind.forward = original


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_every_stage_with_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Also when passes run in parallel threads."""
    short = with_little_memory([s for s in all_stages() if not s.on_request], tmp_path, monkeypatch, threads)
    # The other stages run no model, or only one prompt.
    assert {s.name for s in all_stages()} - set(short) == {
        "accuracy",
        "classify",
        "example",
        "overlap",
        "knockout",
        "failures",
        "training",
        "stability",
    }


@pytest.mark.slow
def test_some_stages_with_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [s for s in all_stages() if s.name in ("means", "localize", "probe")]
    assert with_little_memory(some, tmp_path, monkeypatch, threads=1) == ["means", "localize", "probe"]


def with_little_memory(
    stages: Sequence[Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> list[str]:
    """Run each stage with memory for a third of the rows that it would use, and compare the results. Returns the stages that
    ran out of memory."""
    settings, model, short = smaller(("+",), 6, topk=8, neurons="atp"), copy_and_add(), []
    for stage in stages:
        monkeypatch.setattr(out_of_memory, "_chunks", out_of_memory._Chunks())
        progress, rows = RecordedNotes(), [list[int](), list[int]()]
        with torch_threads(threads):
            with memory_for(np.inf, model, rows[0]):
                much = run_stages(model, settings, tmp_path / "much", [stage.name], Silent())
            most = max(rows[0], default=0)
            with memory_for(max(2, most // 3), model, rows[1]):
                little = run_stages(
                    model, settings, tmp_path / "little", [stage.name], progress, executor=LocalExecutor(progress.note)
                )
        if most > 2:
            assert max(rows[1]) > most // 3  # a pass that was too large was tried
            assert "half as large" in progress.notes[-1]
            short.append(stage.name)
        found, wanted = (vars(folder.read(stage.result)) for folder in (little, much))
        assert_close(found, wanted, stage.name)
    return short


def test_a_model_that_never_fits(tmp_path: Path) -> None:
    settings, model = smaller(("+",), 6), copy_and_add()
    check_model(model, settings, Silent(), LOCAL)  # is cached; else it would be the first to run out of memory
    with (
        memory_for(0, model, []),
        pytest.raises(UserError, match="too little memory for a single row of means_of; use --dtype"),
    ):
        run_stages(model, settings, tmp_path / "run", ["means"], Silent())
    assert RunFolder(tmp_path / "run").manifest["stages"]["means"] == {"status": "failed", "reason": "UserError"}
    run_stages(model, settings, tmp_path / "run", ["means"], Silent())  # as on a larger device
    assert RunFolder(tmp_path / "run").is_done("means")


def test_loading_a_model_that_does_not_fit(saved_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.command_line import error_message

    with memory_for(0, small("llama"), []):
        assert "too little memory for loading" in error_message(capsys, "doctor", saved_model)


@pytest.mark.gpu
def test_a_gpu_that_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is underestimated, and the process may use little of the GPU, so the first passes are too large."""
    from arithscope.models import memory

    settings = smaller(("+",), 200, topk=8, neurons="atp")
    run_stages(load("tiny-llama"), settings, tmp_path / "much", ["circuit"], Silent())
    monkeypatch.setattr(memory, "row_bytes", lambda *_: 64)
    progress, model = RecordedNotes(), load("tiny-llama")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**28) / total)
    try:
        assert rows_that_fit(model, 1, 1) > 10_000
        run_stages(model, settings, tmp_path / "little", ["circuit"], progress, executor=LocalExecutor(progress.note))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("half as large" in note for note in progress.notes)
    much, little = RunFolder(tmp_path / "much"), RunFolder(tmp_path / "little")
    for stage in all_stages():
        if stage.name in ("means", "accuracy", "localize", "circuit"):
            found, wanted = (vars(folder.read(stage.result)) for folder in (little, much))
            assert_close(found, wanted, stage.name)

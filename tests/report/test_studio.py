"""Figures drawn by other processes are those that this one would draw, and are there whatever happens to the others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from arithscope.pipeline.runner import run
from arithscope.report import figure_workers
from arithscope.report.figure_files import draw_plates
from arithscope.report.figure_workers import drawing
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests.hand_built import copy_and_add

Popen = subprocess.Popen[str]


pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Popen]:
    """Those that are started."""
    started: list[Popen] = []
    original = figure_workers._process

    def noted() -> Popen:
        started.append(original())
        return started[-1]

    monkeypatch.setattr(figure_workers, "_process", noted)
    return started


def study(folder: Path, draw: Callable[..., None]) -> None:
    """Three figures, one after the first stages and two at the end."""
    run(copy_and_add(), Settings(("+",), 9), folder, ["localize"], Silent(), draw)


def drawn(folder: Path) -> tuple[dict[str, object], dict[str, bytes]]:
    pictures = {f.name: f.read_bytes() for f in (folder / "figures").iterdir() if f.suffix != ".json"}
    return json.loads((folder / "figures" / "index.json").read_text()), pictures


@pytest.fixture
def in_place(tmp_path: Path) -> tuple[dict[str, object], dict[str, bytes]]:
    study(tmp_path / "in place", lambda folder: draw_plates(folder, Silent()))
    return drawn(tmp_path / "in place")


def test_the_same_figures(tmp_path: Path, processes: list[Popen], in_place: object) -> None:
    with drawing(Silent()) as draw:
        study(tmp_path / "beside", draw)
    assert drawn(tmp_path / "beside") == in_place
    assert len(processes) == 1
    assert all(p.poll() is not None for p in processes)
    with drawing(Silent()) as draw:
        study(tmp_path / "beside", draw)  # nothing is left to draw
    assert len(processes) == 1


def test_processes_that_die_are_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: object) -> None:
    def dying() -> Popen:
        return subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(figure_workers, "_process", dying)
    with drawing(Silent()) as draw:
        study(tmp_path / "beside", draw)
    assert drawn(tmp_path / "beside") == in_place


def test_processes_that_do_not_get_done_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: object
) -> None:
    def sleeping() -> Popen:
        command = [sys.executable, "-c", "import time; time.sleep(1000)"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(figure_workers, "_process", sleeping)
    monkeypatch.setattr(figure_workers, "PATIENCE", 0.1)
    with drawing(Silent()) as draw:
        study(tmp_path / "beside", draw)
    assert drawn(tmp_path / "beside") == in_place


def test_one_core_has_no_other_processes(tmp_path: Path, processes: list[Popen], in_place: object) -> None:
    torch.set_num_threads(1)
    with drawing(Silent()) as draw:
        study(tmp_path / "beside", draw)
        assert drawn(tmp_path / "beside") == in_place
    assert not processes


def test_a_run_that_fails_leaves_no_processes(tmp_path: Path, processes: list[Popen]) -> None:
    with pytest.raises(ArithmeticError), drawing(Silent()) as draw:
        study(tmp_path, draw)
        raise ArithmeticError
    assert all(p.poll() is not None for p in processes)


def test_a_process_ends_with_its_input() -> None:
    """As it does when the run is killed."""
    with figure_workers._process() as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(120) == 0

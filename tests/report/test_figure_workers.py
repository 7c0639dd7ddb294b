"""Figures drawn by workers equal those drawn in place, and are complete even if workers die or hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
import torch
from matplotlib.figure import Figure

from arithscope.experiments.accuracy import Accuracy
from arithscope.figures.registry import all_figures, figure
from arithscope.pipeline.runner import run_stages
from arithscope.report import figure_files
from arithscope.report.figure_files import draw_figures, drawing
from arithscope.settings import Settings
from arithscope.utils.files import locked
from arithscope.utils.progress import Silent
from tests.hand_built import copy_and_add
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[BaseProcess]:
    """The workers that were running when a pool was closed."""
    started: list[BaseProcess] = []
    close = figure_files._FigurePool.close

    def noted(pool: figure_files._FigurePool) -> None:
        started.extend(worker for worker in active_children() if worker not in started)
        close(pool)

    monkeypatch.setattr(figure_files._FigurePool, "close", noted)
    return started


def study(folder: Path, draw: Callable[..., None]) -> None:
    """Three figures, one after the first stages and two at the end."""
    run_stages(copy_and_add(), Settings(("+",), 9), folder, ["localize"], Silent(), draw)


def drawn(folder: Path) -> tuple[dict[str, object], dict[str, bytes]]:
    pictures = {f.name: f.read_bytes() for f in (folder / "figures").iterdir() if f.suffix != ".json"}
    return json.loads((folder / "figures" / "index.json").read_text()), pictures


@pytest.fixture(scope="module")
def in_place(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("in place")
    study(folder, lambda finished: draw_figures(finished, Silent()))
    return drawn(folder)


def test_workers_draw_the_same_figures(tmp_path: Path, workers: list[BaseProcess], in_place: object) -> None:
    with drawing(Silent()) as draw:
        study(tmp_path / "beside", draw)
    assert drawn(tmp_path / "beside") == in_place
    assert len(workers) == 1
    assert not any(worker.is_alive() for worker in workers)
    with drawing(Silent()) as draw:
        study(tmp_path / "beside", draw)  # nothing is left to draw
    assert len(workers) == 1


def die() -> None:
    os._exit(1)


def sleep() -> None:
    time.sleep(1000)


def test_figures_of_workers_that_die_are_drawn_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: object
) -> None:
    monkeypatch.setattr(figure_files, "_start_worker", die)
    with drawing(Silent()) as draw:
        study(tmp_path / "beside", draw)
    assert drawn(tmp_path / "beside") == in_place


@pytest.mark.slow
def test_figures_of_workers_that_hang_are_drawn_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: list[BaseProcess], in_place: object
) -> None:
    monkeypatch.setattr(figure_files, "_start_worker", sleep)
    monkeypatch.setattr(figure_files, "PATIENCE", 0.1)
    with drawing(Silent()) as draw:
        study(tmp_path / "beside", draw)
    assert drawn(tmp_path / "beside") == in_place
    assert len(workers) == 1
    assert not any(worker.is_alive() for worker in workers)


def test_there_are_no_workers_on_one_core(tmp_path: Path, workers: list[BaseProcess], in_place: object) -> None:
    torch.set_num_threads(1)
    with drawing(Silent()) as draw:
        study(tmp_path / "beside", draw)
        assert drawn(tmp_path / "beside") == in_place
    assert not workers
    assert not active_children()


def test_a_run_that_fails_leaves_no_workers(tmp_path: Path, workers: list[BaseProcess]) -> None:
    with pytest.raises(ArithmeticError), drawing(Silent()) as draw:
        study(tmp_path, draw)
        raise ArithmeticError
    assert len(workers) == 1
    assert not any(worker.is_alive() for worker in workers)


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that registers a figure."""
    monkeypatch.setattr("arithscope.figures.registry._FIGURES", {spec.name: spec for spec in all_figures()})
    (tmp_path / "some_plug_in.py").write_text(
        "import os\n"
        "from arithscope.experiments.accuracy import Accuracy\n"
        "from arithscope.figures.registry import figure\n"
        "from arithscope.figures.style import new_figure\n"
        "@figure('mine', Accuracy, title='Mine', order=1)\n"
        "def mine(accuracy):\n"
        "    open(os.environ['DRAWN_BY'], 'w').write(str(os.getpid()))\n"
        "    return new_figure(3, 3)[0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DRAWN_BY", str(tmp_path / "drawn-by"))
    import some_plug_in  # type: ignore[import-not-found]  # noqa: F401

    yield
    del sys.modules["some_plug_in"]


@pytest.mark.slow
@pytest.mark.usefixtures("plug_in")
def test_workers_draw_figures_of_other_modules(tmp_path: Path, workers: list[BaseProcess]) -> None:
    with drawing(Silent()) as draw:
        study(tmp_path / "run", draw)
        until((tmp_path / "drawn-by").exists)  # at the end, this process draws what the worker has not begun
    assert (tmp_path / "run" / "figures" / "mine.png").exists()
    assert int((tmp_path / "drawn-by").read_text()) == workers[0].pid


def test_the_error_of_a_figure_is_raised_by_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: list[BaseProcess]
) -> None:
    monkeypatch.setattr("arithscope.figures.registry._FIGURES", {spec.name: spec for spec in all_figures()})
    figure("mine", Accuracy, title="Mine", order=1)(failing)
    with pytest.raises(ZeroDivisionError), drawing(Silent()) as draw:
        study(tmp_path, draw)
    assert {"accuracy.png", "localization.png"} <= {f.name for f in (tmp_path / "figures").iterdir()}
    assert not any(worker.is_alive() for worker in workers)


def failing(result: Accuracy) -> Figure:
    raise ZeroDivisionError


KILLED = """
import os, signal, sys, time
from multiprocessing import active_children
from pathlib import Path

import torch
from arithscope.report.figure_files import draw_figures, drawing
from arithscope.utils.files import locked
from arithscope.utils.progress import Silent
from tests.report.test_figure_workers import study

if __name__ == "__main__":
    torch.set_num_threads(2)
    with drawing(Silent()) as draw:
        study(Path(sys.argv[1]), draw)
        with locked(Path(sys.argv[1])):
            print(*(worker.pid for worker in active_children()), flush=True)
            time.sleep(1000)
"""


@pytest.mark.slow
def test_workers_ignore_ctrl_c_and_end_with_a_killed_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        [pid] = map(int, process.stdout.readline().split())
        worker = psutil.Process(pid)
        try:
            until(lambda: worker.nice() == figure_files.NICE)
            worker.send_signal(signal.SIGINT)
            time.sleep(0.5)
            assert worker.is_running()
        finally:
            process.kill()
        gone, alive = psutil.wait_procs([worker], timeout=60)
        assert gone
        assert not alive
        with locked(tmp_path / "run"):
            pass
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()

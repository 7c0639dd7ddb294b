"""Figures drawn beside a run by worker processes, while the run goes on with its next stages.

Workers have low priority, so that they use only the processor time that the run leaves. They ignore Ctrl-C, which is for the
run, and end with it, also if it is killed.
"""

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from arithscope.figures.registry import FigureSpec, all_figures
from arithscope.pipeline.store import RunFolder
from arithscope.report.figure_files import draw_figure, draw_figures, figures_to_draw, stage_keys, write_index
from arithscope.utils.files import explain_write_errors, locked
from arithscope.utils.progress import Progress

MOST = 3  # workers; each takes half a gigabyte of memory
NICE = 19
PATIENCE = 20.0  # seconds to wait, at the end, for workers that get no processor time

Draw = Callable[[RunFolder], None]


@contextmanager
def drawing(progress: Progress) -> Iterator[Draw]:
    """Yields a function that draws the figures of a run, to be called whenever new results are stored.

    With several cores the function hands the figures to workers and returns at once; all of them are drawn when the context
    ends. With one core it draws them itself.
    """
    cores = torch.get_num_threads()
    if cores == 1:
        yield lambda run: draw_figures(run, progress)
        return
    pool = _FigurePool(min(cores - 1, MOST))
    try:
        yield pool.submit
        pool.finish(progress)
    finally:
        pool.close()


class _FigurePool:
    """Worker processes, and one thread for each that hands it one figure after another.

    Figures wait in the threads' queue, from which they can be taken back. The threads also start the workers, since an
    interrupt of the main thread must not leave a worker half started.
    """

    def __init__(self, workers: int):
        spawn = multiprocessing.get_context("spawn")  # workers must not inherit the lock of the run folder
        self._workers = ProcessPoolExecutor(workers, spawn, initializer=_start_worker)
        self._threads = ThreadPoolExecutor(workers, initializer=_block_interrupts)
        self._run: RunFolder | None = None
        self._futures: dict[tuple[str, str], Future[dict[str, Any]]] = {}  # by figure and the stages it is drawn from

    def submit(self, run: RunFolder) -> None:
        self._run = run
        self._write_index(run)
        for spec in figures_to_draw(run):
            key = spec.name, json.dumps(stage_keys(run, spec))
            if key not in self._futures:
                self._futures[key] = self._threads.submit(self._draw, run.path, spec)

    def _draw(self, path: Path, spec: FigureSpec) -> dict[str, Any]:
        return self._workers.submit(_draw, path, spec.name, spec.draw.__module__).result()

    def finish(self, progress: Progress) -> None:
        """Wait until all figures are drawn. Meanwhile this process draws, from the end, those that no worker has begun; then
        those that a worker failed at, so that the error is raised here, or did not finish."""
        if self._run is None:
            return
        pending = [future for future in self._futures.values() if not future.done()]
        with locked(self._run.path), explain_write_errors(self._run.path):
            if pending:
                with progress.task("figures", len(pending)) as advance:
                    specs = {spec.name: spec for spec in all_figures()}
                    for (name, _), future in reversed(self._futures.items()):
                        if future.cancel():
                            write_index(self._run.path, {name: draw_figure(self._run, specs[name])})
                            advance(1)
                    with suppress(TimeoutError):
                        for _ in as_completed([f for f in pending if not f.cancelled()], timeout=PATIENCE):
                            advance(1)
            self.close()
            self._write_index(self._run)
            draw_figures(self._run, progress)

    def close(self) -> None:
        """End all workers at once, whatever they are doing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._workers.shutdown(wait=False)  # no worker is started any more
        for worker in multiprocessing.active_children():
            worker.kill()
            while worker.is_alive():  # for a moment even after `join`, if the pool's own thread is collecting it
                worker.join()
        self._threads.shutdown()

    def _write_index(self, run: RunFolder) -> None:
        """Add finished figures to the index, which only this process writes."""
        done = {
            name: future.result()
            for (name, _), future in self._futures.items()
            if future.done() and not future.cancelled() and future.exception() is None
        }
        if done:
            write_index(run.path, done)


def _block_interrupts() -> None:
    """Block Ctrl-C in this thread, and in the workers that it starts."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _start_worker() -> None:
    if hasattr(os, "nice"):
        os.nice(NICE)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a figure that fails is drawn again by the run, which shows the error
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_run, daemon=True).start()


def _end_with_run() -> None:
    run = multiprocessing.parent_process()
    assert run is not None
    run.join()
    os._exit(0)  # at once: a half-drawn figure must not get in the way of a new run


def _draw(path: Path, name: str, module: str) -> dict[str, Any]:
    """Draw a figure in a worker; `module` registers it, and may be a plug-in's."""
    import_module(module)
    [spec] = [spec for spec in all_figures() if spec.name == name]
    return draw_figure(_open_run(path), spec)


_open_run = cache(RunFolder)  # which compares each file with its checksum once

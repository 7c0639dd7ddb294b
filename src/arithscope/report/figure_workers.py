"""Figures drawn beside a run: by processes of their own, while the run goes on to its next stages.

`python -m arithscope.report.figure_workers` is such a process. It gets a line of JSON for each figure, the run's folder and the
figure's name, and answers with a line that says what the index is to hold of it. It ends with its input, hence also when the
run is killed. It leaves the processor to the run and takes what that does not use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from arithscope.figures.gallery import PLATES
from arithscope.pipeline.store import RunFolder
from arithscope.report.figure_files import draw_plates, drawn_from_now, plate_drawn, plates_to_draw, write_index
from arithscope.utils.files import explain_write_errors, locked
from arithscope.utils.progress import Progress

MOST = 3  # processes; each takes half a gigabyte of memory
NICE = 19
PATIENCE = 20.0  # seconds that a process which gets nothing of the processor is waited for at the end
_PLATES = {plate.name: plate for plate in PLATES}

Draw = Callable[[RunFolder], None]


@contextmanager
def drawing(progress: Progress) -> Iterator[Draw]:
    """A function that draws the figures of a run that can be drawn, to be called whenever there may be more of them. Where
    there is more than one core it returns at once, and all figures are there when the context ends."""
    cores = torch.get_num_threads()
    if cores == 1:
        yield lambda run: draw_plates(run, progress)
        return
    studio = _Studio(min(cores - 1, MOST))
    try:
        yield studio.take
        studio.finish(progress)
    finally:
        studio.close()


class _Studio:
    """Threads that each hand figures to a process and wait for them."""

    def __init__(self, count: int):
        self._pool = ThreadPoolExecutor(count)
        self._own = threading.local()
        self._processes: list[subprocess.Popen[str]] = []
        self._run: RunFolder | None = None
        self._handed: dict[str, Future[dict[str, Any]]] = {}  # by what is drawn, and from what

    def take(self, run: RunFolder) -> None:
        self._run = run
        self._note_down(run)
        for plate in plates_to_draw(run):
            key = json.dumps([plate.name, drawn_from_now(plate, run)])
            if key not in self._handed:
                self._handed[key] = self._pool.submit(self._draw, run.path, plate.name)

    def finish(self, progress: Progress) -> None:
        """Until all figures are there. This process, which has nothing else to do by now, draws those from the end that no
        other has begun, and then those that another failed at, so that the error is seen, or does not get done with."""
        if self._run is None:
            return
        left = [future for future in self._handed.values() if not future.done()]
        with locked(self._run.path), explain_write_errors(self._run.path):
            if left:
                with progress.task("figures", len(left)) as advance:
                    for name in self._taken_back():
                        write_index(self._run.path, {name: plate_drawn(self._run, _PLATES[name])})
                        advance(1)
                    with suppress(TimeoutError):
                        for _ in as_completed([f for f in left if not f.cancelled()], timeout=PATIENCE):
                            advance(1)
            self.close()
            self._note_down(self._run)
            draw_plates(self._run, progress)

    def _taken_back(self) -> Iterator[str]:
        """Figures that no process has begun, from the end on."""
        for key, future in reversed(self._handed.items()):
            if future.cancel():
                yield json.loads(key)[0]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._pool.shutdown()
        for process in self._processes:
            with suppress(BrokenPipeError), process:  # closes its pipes
                pass

    def _note_down(self, run: RunFolder) -> None:
        """Put finished figures into the index, which only this process writes."""
        done = {
            json.loads(key)[0]: future.result()
            for key, future in self._handed.items()
            if future.done() and not future.cancelled() and future.exception() is None
        }
        if done:
            write_index(run.path, done)

    def _draw(self, path: Path, name: str) -> dict[str, Any]:
        if not hasattr(self._own, "process"):
            self._own.process = _process()
            self._processes.append(self._own.process)
        process = self._own.process
        process.stdin.write(json.dumps([str(path), name]) + "\n")
        process.stdin.flush()
        return dict(json.loads(process.stdout.readline()))  # an empty line, which is no JSON, if the process has died


def _process() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "arithscope.report.figure_workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        process_group=0,  # Ctrl-C is for the run, which ends this process; in a session of its own it would not yield to it
    )


def main() -> None:
    if hasattr(os, "nice"):
        os.nice(NICE)
    torch.set_num_threads(1)
    todo: SimpleQueue[tuple[str, str]] = SimpleQueue()
    threading.Thread(target=_read, args=(todo,), daemon=True).start()
    runs: dict[str, RunFolder] = {}
    while True:
        path, name = todo.get()
        run = runs.setdefault(path, RunFolder(Path(path)))
        print(json.dumps(plate_drawn(run, _PLATES[name])), flush=True)


def _read(todo: SimpleQueue[tuple[str, str]]) -> None:
    for line in sys.stdin:
        path, name = json.loads(line)
        todo.put((path, name))
    os._exit(0)  # at once: a figure that is half drawn must not get in the way of a run that is started anew


if __name__ == "__main__":
    main()

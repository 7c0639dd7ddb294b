"""Figures drawn beside a run: by processes of their own, while the run goes on to its next stages.

`python -m arithscope.report.studio` is such a process. It gets a line of JSON for each figure, the run's folder and the
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from arithscope.figures.gallery import PLATES
from arithscope.progress import Progress
from arithscope.report.plates import draw_plates, drawn_from_now, plate_drawn, plates_to_draw, write_index
from arithscope.store import RunFolder, locked

MOST = 4  # processes; each takes half a gigabyte of memory
NICE = 19

Draw = Callable[[RunFolder], None]


@contextmanager
def drawing(progress: Progress) -> Iterator[Draw]:
    """A function that draws the figures that can be drawn, to be called whenever there may be more of them. Where there is more
    than one core it returns at once, and all figures are there when the context ends."""
    count = min(torch.get_num_threads(), MOST)
    if count == 1:
        yield lambda run: draw_plates(run, progress)
        return
    studio = _Studio(count)
    try:
        yield studio.take
        studio.wait(progress)
    finally:
        studio.close()


class _Studio:
    """Threads that each hand figures to a process and wait for them."""

    def __init__(self, count: int):
        self._pool = ThreadPoolExecutor(count)
        self._own = threading.local()
        self._processes: list[subprocess.Popen[str]] = []
        self._drawn: dict[
            tuple[Path, str, str], Future[dict[str, Any]]
        ] = {}  # by run, figure, and what it is drawn from
        self._runs: dict[Path, RunFolder] = {}

    def take(self, run: RunFolder) -> None:
        self._runs[run.path] = run
        self._note_down()
        for plate in plates_to_draw(run):
            key = run.path, plate.name, json.dumps(drawn_from_now(plate, run))
            if key not in self._drawn:
                self._drawn[key] = self._pool.submit(self._draw, run.path, plate.name)

    def wait(self, progress: Progress) -> None:
        """Until all figures are drawn, and noted down. A process that failed is made up for here, where its error is seen."""
        left = [future for future in self._drawn.values() if not future.done()]
        if left:
            with progress.task("figures", len(left)) as advance:
                for _ in as_completed(left):
                    advance(1)
        for run in self._runs.values():
            with locked(run.path):
                self._note_down()
                draw_plates(run, progress)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._pool.shutdown()
        for process in self._processes:
            with process:  # closes its pipes
                pass

    def _note_down(self) -> None:
        """Put finished figures into the index, which only this process writes."""
        for path in self._runs:
            done = {
                name: future.result()
                for (of_run, name, _), future in self._drawn.items()
                if of_run == path and future.done() and future.exception() is None
            }
            if done:
                write_index(path, done)

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
        [sys.executable, "-m", "arithscope.report.studio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C is for the run, which then ends this process too
    )


def main() -> None:
    if hasattr(os, "nice"):
        os.nice(NICE)
    torch.set_num_threads(1)
    plates = {plate.name: plate for plate in PLATES}
    runs: dict[str, RunFolder] = {}
    for line in sys.stdin:
        path, name = json.loads(line)
        run = runs.setdefault(path, RunFolder(Path(path)))
        print(json.dumps(plate_drawn(run, plates[name])), flush=True)


if __name__ == "__main__":
    main()

"""Figures of a run as files in its folder, and as images embedded in its report.

    figures/NAME.png, figures/NAME.svg
    figures/index.json       for each figure: title, caption, the keys of the stages it was drawn from, the checksums of its
                             files, and where its body lies between title and caption (shares of the height, from the top)

Worker processes draw them while the run goes on with its next stages. They have low priority, to use only processor time that
the run leaves idle. They ignore Ctrl-C, which is meant for the run, and exit with it, even if it is killed.
"""

import base64
import io
import json
import multiprocessing
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image

from arithscope.figures.registry import FigureSpec, all_figures
from arithscope.figures.style import STYLE, finish
from arithscope.pipeline.registry import load_plugins, stage_of
from arithscope.pipeline.store import RunFolder
from arithscope.report.layouts import studied_by
from arithscope.utils import files
from arithscope.utils.progress import Progress

FOLDER = "figures"
PNG_DPI, SVG_DPI = 150, 100  # the latter for images inside an SVG
CSS_DPI = 96
SHRINK = 0.8  # an image is scaled by this at each step …
SMALLEST = 0.05  # … down to this scale
GAP = 1.5  # points between a figure's body and the texts around it; the layout leaves 3
MOST_WORKERS = 3  # each takes half a gigabyte of memory
NICE = 19
PATIENCE = 20.0  # seconds to wait at the end for workers, which may be starved of processor time

Draw = Callable[[RunFolder], None]


def draw_figures(run: RunFolder, progress: Progress) -> None:
    """Draw all figures that can be drawn and are missing or out of date."""
    if todo := figures_to_draw(run):
        with progress.task(f"figures of {stage_of(todo[0].results[-1]).name}", len(todo)) as advance:
            for spec in todo:
                write_index(run.path, {spec.name: draw_figure(run, spec)})
                advance(1)


def figures_to_draw(run: RunFolder) -> list[FigureSpec]:
    """Figures whose stages are done and that have not been drawn from the present results."""
    drawn = drawn_figures(run)
    return [spec for spec in all_figures() if has_results(run, spec.results) and spec.name not in drawn]


def drawn_figures(run: RunFolder) -> dict[str, dict[str, Any]]:
    """Index entries of the figures that show the present results of the run."""
    load_plugins()
    index = _read_index(run.path)
    specs = [spec for spec in all_figures() if has_results(run, spec.results)]
    return {spec.name: index[spec.name] for spec in specs if _is_drawn(run, index.get(spec.name), spec)}


def has_results(run: RunFolder, results: tuple[type, ...]) -> bool:
    return all(run.is_done(stage_of(result).name) for result in results)


def draw_figure(run: RunFolder, spec: FigureSpec) -> dict[str, Any]:
    """Draw a figure into the run's folder; returns its entry for the index."""
    folder = run.path / FOLDER
    folder.mkdir(exist_ok=True)
    studied = studied_by(run)
    spec = spec.in_words(studied.words)
    title = " · ".join(filter(None, [spec.title, run.manifest["model"]["name"], studied.part]))
    figure = spec.draw(*(run.read(result) for result in spec.results))
    body = save_figure(folder, spec.name, figure, title, spec.caption)
    entry = {"title": spec.title, "caption": spec.caption, "drawn_from": stage_keys(run, spec), "body": list(body)}
    return files.with_checksum({**entry, "files": _checksums(folder, spec)})


def save_figure(folder: Path, name: str, figure: Figure, title: str, caption: str) -> tuple[float, float]:
    """Add title and caption and write PNG and SVG; returns where the body begins and ends, as shares of the height."""
    with rc_context(STYLE):
        above, below = finish(figure, title, caption)
        figure.set_dpi(PNG_DPI)
        # Each canvas draws the figure once; `savefig` would draw it twice, the first time only for the layout.
        with files.atomic_file(folder / f"{name}.png") as path:
            FigureCanvasAgg(figure).print_png(path)
        gap = GAP * PNG_DPI / 72
        ends = above.get_window_extent().y0 - gap, below.get_window_extent().y1 + gap
        top, bottom = (round(1 - float(end / figure.bbox.height), 4) for end in ends)
        figure.set_layout_engine("none")  # keep the layout found for the PNG
        figure.set_dpi(SVG_DPI)
        with files.atomic_file(folder / f"{name}.svg") as path:
            FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})
    return top, bottom


def write_index(run: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Add entries to the index, which is sorted by name, whatever the order of drawing."""
    before = _read_index(run)
    after = {**before, **json.loads(json.dumps(entries))}
    if after != before:
        files.write_json(run / FOLDER / "index.json", dict(sorted(after.items())))


def stage_keys(run: RunFolder, spec: FigureSpec) -> dict[str, str | None]:
    """Keys of the stages that a figure would be drawn from now."""
    return {name: run.key(name) for name in (stage_of(result).name for result in spec.results)}


def _is_drawn(run: RunFolder, entry: Any, spec: FigureSpec) -> bool:
    if not isinstance(entry, dict) or not files.is_intact(entry) or entry.get("drawn_from") != stage_keys(run, spec):
        return False
    try:
        return "body" in entry and entry.get("files") == _checksums(run.path / FOLDER, spec)
    except OSError:
        return False


def _checksums(folder: Path, spec: FigureSpec) -> dict[str, str]:
    return {name: files.checksum(folder / name) for name in (f"{spec.name}.png", f"{spec.name}.svg")}


def _read_index(run: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((run / FOLDER / "index.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}  # all figures will be drawn again


@contextmanager
def drawing(progress: Progress) -> Iterator[Draw]:
    """Yield a function that draws the figures of a run, to be called whenever new results are stored.

    With several cores, the function hands figures to workers and returns at once; all are drawn when the context ends. With one
    core, it draws them itself.
    """
    cores = torch.get_num_threads()
    if cores == 1:
        yield lambda run: draw_figures(run, progress)
        return
    with closing(_FigurePool(min(cores - 1, MOST_WORKERS))) as pool:
        yield pool.submit
        pool.finish(progress)


class FigureDrawing:
    """`drawing` for runs that come one after the other: the figures of one are finished when the next one begins."""

    def __init__(self, progress: Progress):
        self._progress, self._contexts = progress, ExitStack()
        self._path: Path | None = None

    def __call__(self, run: RunFolder) -> None:
        if run.path != self._path:
            self.finish()
            self._path, self._draw = run.path, self._contexts.enter_context(drawing(self._progress))
        self._draw(run)

    def finish(self) -> None:
        """Wait until all figures are drawn."""
        self._path = None
        self._contexts.close()

    def __enter__(self) -> "FigureDrawing":
        return self

    def __exit__(self, *error: Any) -> None:
        self._contexts.__exit__(*error)


class _FigurePool:
    """Worker processes, each fed by a thread.

    Figures wait in the threads' queue, where they can still be cancelled. The threads also start the workers, since an
    interrupt of the main thread must not leave a worker half started.
    """

    def __init__(self, workers: int):
        spawn = multiprocessing.get_context("spawn")  # workers must not inherit the lock of the run folder
        self._workers = ProcessPoolExecutor(workers, spawn, initializer=_start_worker)
        self._threads = ThreadPoolExecutor(workers, initializer=_block_interrupts)
        self._run: RunFolder | None = None
        self._futures: dict[tuple[FigureSpec, str], Future[dict[str, Any]]] = {}  # by figure and its stages' keys

    def submit(self, run: RunFolder) -> None:
        self._run = run
        self._write_index(run)
        for spec in figures_to_draw(run):
            key = spec, json.dumps(stage_keys(run, spec))
            if key not in self._futures:
                self._futures[key] = self._threads.submit(self._draw, run.path, spec)

    def _draw(self, path: Path, spec: FigureSpec) -> dict[str, Any]:
        return self._workers.submit(_draw, path, spec.name, spec.draw.__module__).result()

    def finish(self, progress: Progress) -> None:
        """Wait until all figures are drawn. Meanwhile this process draws those that no worker has begun, last first; then
        those that a worker did not finish, or failed at, so that the error is raised here."""
        if self._run is None:
            return
        pending = [future for future in self._futures.values() if not future.done()]
        with files.locked(self._run.path), files.explain_write_errors(self._run.path):
            if pending:
                with progress.task("figures", len(pending)) as advance:
                    for (spec, _), future in reversed(self._futures.items()):
                        if future.cancel():
                            write_index(self._run.path, {spec.name: draw_figure(self._run, spec)})
                            advance(1)
                    with suppress(TimeoutError):
                        for _ in as_completed([f for f in pending if not f.cancelled()], timeout=PATIENCE):
                            advance(1)
            self.close()
            self._write_index(self._run)
            draw_figures(self._run, progress)

    def close(self) -> None:
        """Kill all workers, whatever they are doing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._workers.shutdown(wait=False)  # starts no more workers
        for worker in multiprocessing.active_children():
            worker.kill()
            while worker.is_alive():  # for a moment even after `join`, if the pool's own thread is collecting it
                worker.join()
        self._threads.shutdown()

    def _write_index(self, run: RunFolder) -> None:
        """Add finished figures to the index, which only this process writes."""
        done = {
            spec.name: future.result()
            for (spec, _), future in self._futures.items()
            if future.done() and not future.cancelled() and future.exception() is None
        }
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
    """Draw a figure in a worker. Importing `module`, which may be a plug-in's, registers it."""
    import_module(module)
    [spec] = [spec for spec in all_figures() if spec.name == name]
    return draw_figure(_open_run(path), spec)


_open_run = cache(RunFolder)  # one object per run: it compares each file with its checksum only once


@dataclass(frozen=True)
class Picture:
    """An image to embed: the smaller of SVG and PNG."""

    kind: str
    data: bytes
    width: int  # in CSS pixels
    height: int
    top: float  # where the body lies between title and caption, as shares of the height
    bottom: float
    png: Path  # source of smaller versions
    scale: float = 1.0

    @property
    def uri(self) -> str:
        return f"data:image/{self.kind};base64,{base64.b64encode(self.data).decode()}"

    @property
    def embedded_bytes(self) -> int:
        return -(-len(self.data) // 3) * 4


def read_picture(folder: Path, name: str, entry: Mapping[str, Any]) -> Picture:
    """A figure of a run, from its files and its entry in the index."""
    svg, png = (folder / f"{name}.{ending}" for ending in ("svg", "png"))
    png_data = png.read_bytes()
    width, height = (round(n * CSS_DPI / PNG_DPI) for n in struct.unpack(">II", png_data[16:24]))
    kind, data = ("svg+xml", svg.read_bytes()) if svg.stat().st_size < len(png_data) else ("png", png_data)
    top, bottom = entry["body"]
    return Picture(kind, data, width, height, top, bottom, png)


def within(pictures: Mapping[str, Picture], budget: int) -> dict[str, Picture]:
    """The same pictures, the largest ones re-encoded until all of them take at most `budget` bytes."""
    fitted = dict(pictures)
    while sum(picture.embedded_bytes for picture in fitted.values()) > budget:
        shrinkable = [name for name, picture in fitted.items() if picture.scale > SMALLEST]
        if not shrinkable:
            break
        largest = max(shrinkable, key=lambda name: fitted[name].embedded_bytes)
        fitted[largest] = _smaller(fitted[largest])
    return fitted


def _smaller(picture: Picture) -> Picture:
    """The picture with 256 colours at first, then with fewer pixels at each step; its data is kept if that is smaller."""
    scale = picture.scale if picture.kind == "svg+xml" else picture.scale * SHRINK
    with Image.open(picture.png) as image:
        size = [max(1, round(n * scale)) for n in image.size]
        small = image.convert("RGB").resize((size[0], size[1]), Image.Resampling.LANCZOS).quantize(256)
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    data = buffer.getvalue()
    if len(data) < len(picture.data):
        return replace(picture, kind="png", data=data, scale=scale)
    return replace(picture, scale=scale * SHRINK)

"""Figures of a run, as PNG and SVG in its folder.

figures/NAME.png, figures/NAME.svg
figures/index.json       of each figure its title, its caption, and the keys of the stages it was drawn from
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from arithscope.figures.gallery import PLATES, Plate
from arithscope.figures.style import STYLE, finish
from arithscope.files import new_file, write_json
from arithscope.progress import Progress
from arithscope.stages import STAGES
from arithscope.store import RunWriter

FOLDER = "figures"
PNG_DPI, SVG_DPI = 150, 100  # the latter is for images inside


def draw_plates(run: RunWriter, progress: Progress) -> None:
    """Draw every figure whose stages are done, unless it was drawn from the same before."""
    kinds = {stage.name: stage.result for stage in STAGES}
    folder = run.path / FOLDER
    index = _index(folder)
    todo = [p for p in PLATES if all(run.is_done(n) for n in p.needs) and not _is_drawn(folder, index, p, run)]
    if not todo:
        return
    folder.mkdir(exist_ok=True)

    @cache  # several figures are drawn from the same stages
    def read(stage: str) -> Any:
        return run.read(stage, kinds[stage])

    with progress.task(f"figures of {todo[0].needs[-1]}", len(todo)) as advance:
        for plate in todo:
            index[plate.name] = _draw(folder, plate, [read(name) for name in plate.needs], run)
            write_json(folder / "index.json", index)
            advance(1)


def _draw(folder: Path, plate: Plate, results: list[Any], run: RunWriter) -> dict[str, Any]:
    title = f"{plate.title} · {run.manifest['subject']['name']}"
    save_figure(folder, plate.name, plate.draw(*results), title, plate.caption)
    return {"title": plate.title, "caption": plate.caption, "drawn_from": _sources(plate, run)}


def save_figure(folder: Path, name: str, figure: Figure, title: str, caption: str) -> None:
    """Add title and caption to a figure and write it as PNG and SVG."""
    with rc_context(STYLE):
        finish(figure, title, caption)
        figure.set_dpi(PNG_DPI)
        # Each canvas draws the figure once; `savefig` would draw it twice, first only to find the layout.
        with new_file(folder / f"{name}.png") as path:
            FigureCanvasAgg(figure).print_png(path)
        figure.set_layout_engine("none")  # everything is in its place by now
        figure.set_dpi(SVG_DPI)
        with new_file(folder / f"{name}.svg") as path:
            FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})


def _sources(plate: Plate, run: RunWriter) -> dict[str, str]:
    return {name: run.keys[name] for name in plate.needs}


def _is_drawn(folder: Path, index: dict[str, Any], plate: Plate, run: RunWriter) -> bool:
    there = all((folder / f"{plate.name}.{ending}").exists() for ending in ("png", "svg"))
    return there and index.get(plate.name, {}).get("drawn_from") == _sources(plate, run)


def _index(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "index.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}  # then everything is drawn anew

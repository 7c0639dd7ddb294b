"""Figures of a run, as PNG and SVG in its folder.

figures/NAME.png, figures/NAME.svg
figures/index.json       of each figure its title, its caption, the keys of the stages it was drawn from, the checksums of its
                         files, and where its body is: it begins below the title and ends above the caption (as shares of
                         the height, from the top)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from arithscope.figures.gallery import PLATES, Plate
from arithscope.figures.style import STYLE, finish
from arithscope.pipeline.registry import STAGES
from arithscope.pipeline.store import RunFolder
from arithscope.utils.files import atomic_file, checksum, is_intact, with_checksum, write_json
from arithscope.utils.progress import Progress

FOLDER = "figures"
PNG_DPI, SVG_DPI = 150, 100  # the latter is for images inside
_KINDS = {stage.name: stage.result for stage in STAGES}
GAP = 1.5  # points between a figure's body and the texts around it; the layout leaves 3


def draw_plates(run: RunFolder, progress: Progress) -> None:
    """Draw every figure whose stages are done, unless it was drawn from the same before."""
    todo = plates_to_draw(run)
    if not todo:
        return
    with progress.task(f"figures of {todo[0].needs[-1]}", len(todo)) as advance:
        for plate in todo:
            write_index(run.path, {plate.name: plate_drawn(run, plate)})
            advance(1)


def plates_to_draw(run: RunFolder) -> list[Plate]:
    """Every figure whose stages are done and that was not drawn from them yet."""
    folder = run.path / FOLDER
    index = _index(folder)
    return [p for p in PLATES if all(map(run.is_done, p.needs)) and not _is_drawn(folder, index, p, run)]


def plate_drawn(run: RunFolder, plate: Plate) -> dict[str, Any]:
    """Draw a figure into the run's folder; returns what the index is to hold of it."""
    folder = run.path / FOLDER
    folder.mkdir(exist_ok=True)
    title = f"{plate.title} · {run.manifest['model']['name']}"
    figure = plate.draw(*(run.read(name, _KINDS[name]) for name in plate.needs))
    body = save_figure(folder, plate.name, figure, title, plate.caption)
    said = {
        "title": plate.title,
        "caption": plate.caption,
        "drawn_from": drawn_from_now(plate, run),
        "body": list(body),
    }
    return with_checksum({**said, "files": _checksums(folder, plate)})


def write_index(run: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Put what there is to say of some figures into the index, which is in the order of their names whenever they are drawn."""
    folder = run / FOLDER
    before = _index(folder)
    after = {**before, **json.loads(json.dumps(entries))}
    if after != before:
        write_json(folder / "index.json", dict(sorted(after.items())))


def save_figure(folder: Path, name: str, figure: Figure, title: str, caption: str) -> tuple[float, float]:
    """Add title and caption to a figure and write it as PNG and SVG. Returns where the body begins and ends, from the top."""
    with rc_context(STYLE):
        above, below = finish(figure, title, caption)
        figure.set_dpi(PNG_DPI)
        # Each canvas draws the figure once; `savefig` would draw it twice, first only to find the layout.
        with atomic_file(folder / f"{name}.png") as path:
            FigureCanvasAgg(figure).print_png(path)
        gap = GAP * PNG_DPI / 72
        ends = above.get_window_extent().y0 - gap, below.get_window_extent().y1 + gap
        body = tuple(round(1 - float(end / figure.bbox.height), 4) for end in ends)
        figure.set_layout_engine("none")  # everything is in its place by now
        figure.set_dpi(SVG_DPI)
        with atomic_file(folder / f"{name}.svg") as path:
            FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})
    return body[0], body[1]


def drawn_plates(run: RunFolder) -> dict[str, dict[str, Any]]:
    """What the index says of the figures that show the stages as they are now."""
    folder = run.path / FOLDER
    index = _index(folder)
    there = [p for p in PLATES if all(map(run.is_done, p.needs)) and _is_drawn(folder, index, p, run)]
    return {plate.name: index[plate.name] for plate in there}


def drawn_from_now(plate: Plate, run: RunFolder) -> dict[str, str | None]:
    """The keys of the stages that a figure would be drawn from now."""
    return {name: run.key(name) for name in plate.needs}


def _is_drawn(folder: Path, index: dict[str, Any], plate: Plate, run: RunFolder) -> bool:
    entry = index.get(plate.name)
    if not isinstance(entry, dict) or not is_intact(entry) or entry.get("drawn_from") != drawn_from_now(plate, run):
        return False
    try:
        return "body" in entry and entry.get("files") == _checksums(folder, plate)
    except OSError:
        return False


def _checksums(folder: Path, plate: Plate) -> dict[str, str]:
    return {name: checksum(folder / name) for name in (f"{plate.name}.png", f"{plate.name}.svg")}


def _index(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "index.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}  # then everything is drawn anew

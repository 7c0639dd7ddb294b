"""Figure files: drawn when their stages are there, and again only when something changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arithscope.experiments.accuracy import Accuracy
from arithscope.figures.circuit import accuracy_table
from arithscope.figures.registry import FigureSpec, all_figures, figure
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import RunFolder
from arithscope.report import figure_files
from arithscope.report.figure_files import draw_figures, read_picture, within, write_index
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests.families import small

SMALL = Settings(("+", "-"), 5)


def study(folder: Path, settings: Settings = SMALL) -> None:
    model, draw = small("llama", "sdpa"), lambda f: draw_figures(f, Silent())
    run_stages(model, settings, folder, ["accuracy"], Silent(), draw, overwrite=True)


def index(folder: Path) -> dict[str, dict[str, str]]:
    return json.loads((folder / "figures" / "index.json").read_text())


def test_only_figures_whose_stages_are_done_are_drawn(tmp_path: Path) -> None:
    study(tmp_path)
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {"accuracy.png", "accuracy.svg", "index.json"}
    assert index(tmp_path)["accuracy"]["caption"] == all_figures()[0].caption
    assert "small llama" in (tmp_path / "figures" / "accuracy.svg").read_text()
    assert (tmp_path / "figures" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_is_drawn_again_only_if_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    original = figure_files.draw_figure

    def counted(run: RunFolder, spec: FigureSpec) -> object:
        drawn.append(spec.name)
        return original(run, spec)

    monkeypatch.setattr(figure_files, "draw_figure", counted)
    study(tmp_path)
    study(tmp_path)
    assert drawn == ["accuracy"]
    study(tmp_path, replace(SMALL, max_operand=4))  # other numbers
    assert len(drawn) == 2
    (tmp_path / "figures" / "accuracy.svg").unlink()
    study(tmp_path, replace(SMALL, max_operand=4))
    assert len(drawn) == 3
    (tmp_path / "figures" / "index.json").write_text("{")
    study(tmp_path, replace(SMALL, max_operand=4))
    assert len(drawn) == 4


def test_figures_of_plug_ins_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arithscope.figures.registry._FIGURES", {spec.name: spec for spec in all_figures()})
    register = figure("mine", Accuracy, title="Mine")
    monkeypatch.setattr(figure_files, "load_plugins", lambda: register(accuracy_table))
    study(tmp_path)
    assert index(tmp_path).keys() == {"accuracy", "mine"}


def test_the_index_does_not_depend_on_the_order_of_drawing(tmp_path: Path) -> None:
    for folder, order in ("a", "xyz"), ("b", "zxy"):
        (tmp_path / folder / "figures").mkdir(parents=True)
        for name in order:
            write_index(tmp_path / folder, {name: {"title": name}})
    one, other = ((tmp_path / folder / "figures" / "index.json").read_text() for folder in "ab")
    assert one == other


def test_every_figure_needs_known_stages_and_has_a_unique_name() -> None:
    known = {stage.result for stage in all_stages()}
    assert len(all_figures()) == len({spec.name for spec in all_figures()}) == 38
    for spec in all_figures():
        assert spec.results
        assert set(spec.results) <= known
        assert spec.title
        assert spec.caption.endswith(".)")
        assert "{" not in spec.caption


def noise(path: Path, side: int) -> None:
    """A picture that cannot be compressed."""
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, compress_level=1)


def test_the_largest_picture_shrinks_first(tmp_path: Path) -> None:
    for name, side in (("large", 200), ("small", 20)):
        noise(tmp_path / f"{name}.png", side)
        (tmp_path / f"{name}.svg").write_text("x" * 1_000_000)
    entry = {"body": [0.1, 0.9]}
    pictures = {name: read_picture(tmp_path, name, entry) for name in ("large", "small")}
    assert (pictures["large"].width, pictures["large"].kind) == (128, "png")
    fitted = within(pictures, 50_000)
    assert sum(len(p.uri) for p in fitted.values()) < 50_100
    assert fitted["small"] == pictures["small"]
    assert (fitted["large"].width, fitted["large"].top) == (128, 0.1)  # shown at the same size
    assert within(pictures, 10**9) == pictures
    assert within(pictures, 0)["large"].embedded_bytes < 2000  # as small as it gets

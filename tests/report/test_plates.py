from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from arithscope.figures.gallery import PLATES
from arithscope.pipeline.registry import STAGES
from arithscope.pipeline.runner import run
from arithscope.pipeline.store import RunFolder
from arithscope.report import figure_files
from arithscope.report.figure_files import draw_plates, write_index
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests.families import small

SMALL = Settings(("+", "-"), 5)


def study(folder: Path, settings: Settings = SMALL) -> None:
    run(small("llama", "sdpa"), settings, folder, ["accuracy"], Silent(), lambda f: draw_plates(f, Silent()))


def index(folder: Path) -> dict[str, dict[str, str]]:
    return json.loads((folder / "figures" / "index.json").read_text())


def test_only_figures_whose_stages_are_there(tmp_path: Path) -> None:
    study(tmp_path)
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {"accuracy.png", "accuracy.svg", "index.json"}
    assert index(tmp_path)["accuracy"]["caption"] == PLATES[0].caption
    assert "small llama" in (tmp_path / "figures" / "accuracy.svg").read_text()
    assert (tmp_path / "figures" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_is_drawn_again_only_if_it_must_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    original = figure_files.plate_drawn

    def counted(run: RunFolder, plate: figure_files.Plate) -> object:
        drawn.append(plate.name)
        return original(run, plate)

    monkeypatch.setattr(figure_files, "plate_drawn", counted)
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


def test_the_index_does_not_tell_in_which_order_figures_were_drawn(tmp_path: Path) -> None:
    for folder, order in ("a", "xyz"), ("b", "zxy"):
        (tmp_path / folder / "figures").mkdir(parents=True)
        for name in order:
            write_index(tmp_path / folder, {name: {"title": name}})
    one, other = ((tmp_path / folder / "figures" / "index.json").read_text() for folder in "ab")
    assert one == other


def test_every_figure_needs_known_stages_and_has_a_name_of_its_own() -> None:
    known = {stage.name for stage in STAGES}
    assert all(set(plate.needs) <= known for plate in PLATES)
    assert len({plate.name for plate in PLATES}) == len(PLATES)
    assert all(plate.title and plate.caption.endswith(".)") for plate in PLATES)

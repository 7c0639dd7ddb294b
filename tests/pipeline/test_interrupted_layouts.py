"""A study of layouts: an interrupted one resumes, and one with other settings is refused before anything is computed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arithscope.errors import UserError
from arithscope.pipeline import runner
from arithscope.pipeline.runner import compute_stage, run_stages
from arithscope.pipeline.study import study
from arithscope.prompts import Operands
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests.conftest import SMALL_SAMPLES
from tests.hand_built_digits import carry_adder
from tests.pipeline.tree import tree

STAGES = ("whole_answers", "localize")
SIZES = replace(SMALL_SAMPLES, discovery=2)
BOTH: Operands = ((30, 39), (60, 79))  # sums of 90…99 and of 100…118: two layouts
LONG: Operands = ((60, 69), (60, 69))
SHORT: Operands = ((20, 29), (20, 29))
Called = list[tuple[str, str, int]]  # stage, layout, answer step


def run(out: Path, operands: Operands, stages: Sequence[str] = STAGES, overwrite: bool = False, **changes: Any) -> None:
    settings = Settings(("+",), operands=operands, custom_sizes=SIZES, **changes)
    study(carry_adder(), settings, out, stages, overwrite=overwrite)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts") / "run"
    run(folder, LONG)
    return folder


@pytest.fixture
def kept(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def watch(monkeypatch: pytest.MonkeyPatch, fails_at: tuple[str, str, int] | None = None) -> Called:
    """Records which stages are computed; one of them is interrupted."""
    called: Called = []

    def computed(stage: Any, model: Any, *others: Any) -> Any:
        stratum = model.encoder.stratum
        called.append((stage.name, stratum.layout_name, stratum.step))
        if called[-1] == fails_at:
            raise KeyboardInterrupt
        return compute_stage(stage, model, *others)

    monkeypatch.setattr(runner, "compute_stage", computed)
    return called


def numbers(out: Path) -> dict[str, bytes]:
    """All tables and arrays of a study."""
    return {str(f.relative_to(out)): f.read_bytes() for f in out.rglob("*") if f.suffix in (".parquet", ".npy")}


def test_an_interrupted_study_computes_no_finished_step_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = watch(monkeypatch)
    run(tmp_path / "uninterrupted", BOTH)
    interrupted_at = ("localize", "2-2-3", 2)
    done = everything[: everything.index(interrupted_at)]
    assert {layout for _, layout, _ in done} == {"2-2-2", "2-2-3"}
    first = watch(monkeypatch, interrupted_at)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", BOTH)
    assert first == [*done, interrupted_at]
    second = watch(monkeypatch)
    run(tmp_path / "run", BOTH)
    assert second == everything[len(done) :]
    assert numbers(tmp_path / "run") == numbers(tmp_path / "uninterrupted")
    third = watch(monkeypatch)
    run(tmp_path / "run", BOTH)
    assert third == []


@pytest.mark.parametrize(
    ("operands", "changes", "named"),
    [
        (BOTH, {}, "operands 60-69,60-69, in 2-2-3"),  # of the two layouts, the first would be new
        (SHORT, {}, "operands 60-69,60-69, in 2-2-3"),  # the layout would be a new one
        (LONG, {"seed": 1}, "seed 0, not 1"),
    ],
)
def test_other_settings_are_refused_before_anything_is_computed(
    operands: Operands, changes: dict[str, Any], named: str, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, called = tree(kept), watch(monkeypatch)
    with pytest.raises(UserError, match=re.escape(f"holds results of other settings ({named})")):
        run(kept, operands, **changes)
    assert called == []
    assert tree(kept) == before


def test_other_operands_replace_a_layout_only_if_asked(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = watch(monkeypatch)
    run(kept, BOTH, ["whole_answers"], overwrite=True)
    assert called == [("whole_answers", "2-2-2", 2), ("whole_answers", "2-2-3", 3)]
    record = json.loads((kept / "2-2-3" / "manifest.json").read_text())
    assert record["configuration"]["operands"] == [[30, 39], [60, 79]]


def test_layouts_are_not_studied_inside_a_run(kept: Path) -> None:
    before = tree(kept)
    with pytest.raises(UserError, match="is a run folder, and runs of layouts cannot be inside one"):
        run(kept / "2-2-3", LONG)
    with pytest.raises(UserError, match="is not empty and holds no run"):
        run_stages(carry_adder(), Settings(("+",), 9), kept, ["means"], Silent())
    assert tree(kept) == before

"""Runs of layouts and of their answer steps agree with their recomputation; changed numbers are found."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from arithscope.models.load import load
from arithscope.pipeline.registry import all_stages
from arithscope.results.run import Run
from arithscope.utils.progress import Silent
from tests.verify.test_verify import everything, rewrite, verification, with_changes

CHANGED = {
    "whole_answers": ["prompts.log_p", "table.value", "heads", "log_p"],
    "carries": ["exchange.value", "held.value", "components.value"],
    "step_overlap": ["table.iou"],
    "localize_steps": ["effects.value"],
    "mlp0_steps": ["effects.value"],
    "digit_probes": ["table.value", "table.shuffled", "first.best"],
}


@pytest.fixture(scope="module")
def model() -> Any:
    return load("tiny-digits")


def at_stratum(model: Any, folder: Path) -> Any:
    return model.at(Run(folder).stratum)


def test_every_stage_that_joins_steps_has_changes_to_try() -> None:
    assert {stage.name for stage in all_stages() if stage.joins_steps} == set(CHANGED)


@pytest.mark.parametrize("name", ["2-2-1", "2-2-2", "2-2-3", "2-2-3/steps/3"])
def test_unchanged_runs_agree(small_layouts: Path, model: Any, name: str) -> None:
    folder = small_layouts / name
    checked = verification(folder, at_stratum(model, folder))
    verdicts = everything(checked)
    assert [v.about for v in verdicts] == ["files", "summary", "model", "keys", *checked.run.stages]
    assert {v.about: v.text for v in verdicts if not v.agrees} == {}


@pytest.mark.parametrize("stage", list(CHANGED))
def test_changed_numbers_are_found(small_layouts: Path, model: Any, tmp_path: Path, stage: str) -> None:
    folder = Path(shutil.copytree(small_layouts / "2-2-3", tmp_path / "run"))
    for field in CHANGED[stage]:
        rewrite(folder, stage, lambda result, field=field: with_changes(result, [field]))
        checked = verification(folder, at_stratum(model, folder))
        [verdict] = [v for v in checked.check_stages(Silent()) if v.about == stage]
        assert not verdict.agrees, field
        shutil.copytree(small_layouts / "2-2-3" / stage, folder / stage, dirs_exist_ok=True)

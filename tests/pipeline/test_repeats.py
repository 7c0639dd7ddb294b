"""Repeating a study on halves of the prompts and with another seed: resumable, and shown in the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from arithscope.errors import UserError
from arithscope.experiments.common.result import AVERAGE
from arithscope.experiments.common.samples import TooFewCorrect
from arithscope.experiments.stability import COMPARED, Stability
from arithscope.figures.registry import all_figures
from arithscope.pipeline import study as whole_study
from arithscope.pipeline.registry import stage_of
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import RunFolder, RunWriter
from arithscope.pipeline.study import repeat_study, repeated_settings, wants_repeats
from arithscope.report import figure_files
from arithscope.report.page import write_report
from arithscope.settings import Settings
from arithscope.utils.progress import Advance, Silent
from tests.command_line import call
from tests.conftest import SMALL_SAMPLES, smaller
from tests.hand_built import MAX_OPERAND, copy_and_add
from tests.notes import RecordedNotes
from tests.verify.test_verify import BY_NAME, CHANGED, assert_changes_are_reported, rewrite, verification, with_changes

SETTINGS = smaller(("+",), MAX_OPERAND, topk=16, neurons="atp")


class Stopped(Exception):
    pass


class StopsAt(Silent):
    """Stops a run when a stage starts for the n-th time."""

    def __init__(self, stage: str, times: int):
        self.stage, self.left = stage, times

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        self.left -= name == self.stage
        if self.left == 0:
            raise Stopped
        with super().task(name, total) as advance:
            yield advance


def times(folder: Path) -> dict[Path, int]:
    return {f: f.stat().st_mtime_ns for f in folder.rglob("stage.json")}


@pytest.fixture(scope="module", autouse=True)
def one_other_seed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_study, "OTHER_SEEDS", 1)
        yield


def whole(folder: Path) -> RunWriter:
    return run_stages(copy_and_add(), SETTINGS, folder, [stage_of(kind).name for kind in COMPARED], Silent())


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped during its second repetition and then continued, without computing anything twice."""
    out = tmp_path_factory.mktemp("runs") / "run"
    final = whole(out)
    assert not (out / "repeats").exists()
    with pytest.raises(Stopped):
        repeat_study(copy_and_add(), SETTINGS, final, StopsAt("neurons", 2))
    before = times(out)
    assert out / "repeats" / "half-1" / "bag" / "stage.json" in before
    assert not (out / "repeats" / "half-1" / "patterns").exists()
    assert out / "repeats" / "half-2" / "probe" / "stage.json" in before
    assert not (out / "stability").exists()
    repeat_study(copy_and_add(), SETTINGS, final, Silent())
    after = times(out)
    assert {f: after[f] for f in before} == before
    return out


def test_every_number_comes_from_its_repetition(repeated: Path) -> None:
    found = RunFolder(repeated).read(Stability)
    assert found.runs == ["all", "half-1", "half-2", "seed-1"]
    folders = {name: repeated if name == "all" else repeated / "repeats" / name for name in found.runs}
    summaries = {name: json.loads((folder / "summary.json").read_text()) for name, folder in folders.items()}
    for row in found.values.to_dict("records"):
        summary = summaries[row["run"]][row["experiment"]]
        operator = row["operator"] if row["operator"] in summary or row["experiment"] != "probe" else "all"
        entry = summary[operator][row["measure"]]
        assert row["value"] == (entry["value"] if isinstance(entry, dict) else entry)
    assert {"accuracy", "circuit", "probe", "topk", "classify", "bag"} <= set(found.values.experiment)
    assert set(found.values.operator) == {"+", AVERAGE}
    summary = json.loads((repeated / "summary.json").read_text())["stability"]["+"]
    assert -1 <= summary["halves_neuron_correlation"] < 1
    assert json.loads((repeated / "manifest.json").read_text())["stages"]["stability"]["status"] == "done"


def test_samples_lie_within_their_half(repeated: Path) -> None:
    halves = []
    for half in ("half-1", "half-2"):
        folder = repeated / "repeats" / half
        legal = pd.read_parquet(folder / "accuracy" / "prompts.parquet")
        mine = set(zip(legal.op1, legal.op2, strict=True))
        drawn = pd.read_parquet(folder / "localize" / "prompts.parquet")
        assert len(drawn) == SMALL_SAMPLES.discovery // 2
        for op1, op2 in (("op1", "op2"), ("counterfactual_op1", "counterfactual_op2")):
            assert set(zip(drawn[op1], drawn[op2], strict=True)) <= mine
        halves.append(mine)
    everything = pd.read_parquet(repeated / "accuracy" / "prompts.parquet")
    assert not halves[0] & halves[1]
    assert halves[0] | halves[1] == set(zip(everything.op1, everything.op2, strict=True))


def test_repetitions_reuse_the_mean_activations(repeated: Path) -> None:
    assert not list((repeated / "repeats").glob("*/means"))
    assert not list((repeated / "repeats").glob("*/figures"))


def test_finished_repetitions_are_not_needed_any_more(repeated: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(repeated, tmp_path / "run"))
    shutil.rmtree(out / "repeats")
    progress = RecordedNotes()
    repeat_study(copy_and_add(), SETTINGS, whole(out), progress)
    assert progress.notes == ["stability: unchanged, not run again"]
    assert not (out / "repeats").exists()


def test_a_half_without_correct_prompts(repeated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Path(shutil.copytree(repeated, tmp_path / "run"))
    for folder in ("stability", "repeats/half-2"):
        shutil.rmtree(out / folder)
    final = whole(out)

    def never_right(model: Any, settings: Settings, folder: Path, stages: Any, *rest: Any, **more: Any) -> RunWriter:
        found = run_stages(model, settings, folder, ["accuracy"] if settings.half == 2 else stages, *rest, **more)
        if settings.half == 2:
            raise TooFewCorrect
        return found

    monkeypatch.setattr(whole_study, "run_stages", never_right)
    progress = RecordedNotes()
    repeat_study(copy_and_add(), SETTINGS, final, progress)
    assert any("repetition half-2 answers almost no prompt" in text for text in progress.notes)
    table = RunFolder(out).read(Stability).table.set_index(["experiment", "measure", "operator"])
    assert table.loc[("accuracy", "accuracy", "+")].notna().all()
    assert pd.isna(table.loc[("circuit", "faithfulness", "+")].half_2)
    assert pd.notna(table.loc[("circuit", "faithfulness", "+")].half_1)


def test_the_report_shows_the_stability(repeated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Path(shutil.copytree(repeated, tmp_path / "run"))
    few = [spec for spec in all_figures() if spec.name == "stability"]
    monkeypatch.setattr(figure_files, "all_figures", lambda: few)
    figure_files.draw_figures(RunFolder(out), Silent())
    page = write_report(RunFolder(out)).read_text()
    section = page[page.index("<h2>10. Stability") :]
    assert "Repeated 3 times, the share or faithfulness that varies most is" in section
    assert "heads in the circuit" in section
    assert 'alt="Key numbers, measured again"' in section


def test_when_a_study_is_repeated() -> None:
    quick, paper = Settings(), Settings(preset="paper")
    assert not wants_repeats(quick, None)
    assert wants_repeats(paper, None)
    assert not wants_repeats(paper, ["circuit"])
    assert wants_repeats(quick, ["stability"])
    assert {name: (s.half, s.seed) for name, s in repeated_settings(Settings(seed=3)).items()} == {
        "half-1": (1, 3),
        "half-2": (2, 3),
        "seed-4": (0, 4),
    }
    with pytest.raises(UserError, match="no half 3"):
        Settings(half=3)


def test_verify_compares_the_repetitions_again(repeated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(repeated, tmp_path / "run"))
    assert verification(folder, copy_and_add()).check_stage(BY_NAME["stability"]).agrees
    rewrite(folder, "stability", lambda result: with_changes(result, CHANGED["stability"]))
    assert_changes_are_reported("stability", verification(folder, copy_and_add()), monkeypatch)
    with pytest.raises(UserError, match="is a repetition of the run in"):
        verification(folder / "repeats" / "half-1", copy_and_add())


@pytest.mark.slow
def test_from_the_command_line(saved_adder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is written before the study is repeated; stopped then, the same command continues."""
    few = [spec for spec in all_figures() if spec.name in ("accuracy", "stability")]
    monkeypatch.setattr(figure_files, "all_figures", lambda: few)
    out = tmp_path / "run"
    command = ("run", saved_adder, "--max-operand", "9", "--operators", "+", "--neurons", "atp", "--out", out)
    command = (*command, "--stages", "stability")

    def stopped(model: Any, settings: Settings, *rest: Any, **more: Any) -> RunWriter:
        if settings.half == 2:
            assert "<h2>10. Stability" in (out / "report.html").read_text()
            raise KeyboardInterrupt
        return run_stages(model, settings, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(whole_study, "run_stages", stopped)
        assert call(*command) == 130
    before = times(out)
    assert call(*command) == 0
    assert {f: times(out)[f] for f in before} == before
    assert "Repeated 3 times" in (out / "report.html").read_text()
    assert not (out / "mlp0").exists()

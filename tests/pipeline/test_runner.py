"""Running stages: once for the same inputs, with the settings they declare, and stale when an input changes."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.stage import Context
from arithscope.pipeline import runner, store
from arithscope.pipeline.registry import all_stages, chosen_stages, stage_named
from arithscope.pipeline.runner import run_stages
from arithscope.settings import Settings
from arithscope.utils.printing import PlainConsole
from arithscope.utils.progress import Bars, Lines, Silent
from tests.families import small
from tests.faults import snapshot, stored
from tests.notes import RecordedNotes

SMALL = Settings(max_operand=8)


def test_a_stage_runs_once_for_the_same_inputs(tmp_path: Path) -> None:
    calls = []
    original = stage_named("means")

    def counted(ctx: Context) -> Any:
        calls.append(ctx.settings.max_operand)
        return original.compute(ctx)

    model, known = small("llama", "sdpa"), [replace(original, compute=counted)]
    first = run_stages(model, SMALL, tmp_path, None, Silent(), known=known).summary
    second = run_stages(model, SMALL, tmp_path, None, Silent(), known=known).summary
    assert calls == [8]
    assert first == second
    other = replace(SMALL, preset="paper")  # means do not depend on the preset
    run_stages(model, other, tmp_path, None, Silent(), known=known)
    assert calls == [8]
    run_stages(model, replace(SMALL, max_operand=6), tmp_path, None, Silent(), known=known, overwrite=True)
    run_stages(model, SMALL, tmp_path, None, Silent(), known=known, overwrite=True)
    assert calls == [8, 6, 8]


def test_stages_can_read_only_what_they_declare(tmp_path: Path) -> None:
    greedy = replace(stage_named("means"), reads=("operators", "seed"))
    with pytest.raises(AttributeError, match="max_operand"):
        run_stages(small("llama", "sdpa"), SMALL, tmp_path, None, Silent(), known=[greedy])
    assert "failed" in (tmp_path / "manifest.json").read_text()
    assert not (tmp_path / greedy.name).exists()


def test_another_folder_gets_the_same_numbers(tmp_path: Path) -> None:
    model = small("gptj")
    a, b = (run_stages(model, SMALL, tmp_path / name, ["means", "accuracy"], Silent()).summary for name in "ab")
    assert a == b


def test_chosen_stages() -> None:
    assert [s.name for s in chosen_stages(None)] == [
        s.name for s in all_stages() if not s.joins_steps and s.name not in ("training", "stability")
    ]
    assert [s.name for s in chosen_stages(["means"])] == ["means"]
    assert [s.name for s in chosen_stages(["circuit"])] == ["means", "accuracy", "localize", "circuit"]
    for bad in (["nothing"], []):
        with pytest.raises(UserError, match="tage"):
            chosen_stages(bad)


def test_stages_need_only_earlier_ones() -> None:
    seen: set[type] = set()
    for stage in all_stages():
        assert set(stage.needs) <= seen
        seen.add(stage.result)


@pytest.mark.parametrize(
    "bad",
    [
        dict(operators="x"),
        dict(operators=()),
        dict(max_operand=0),
        dict(preset="slow"),
        dict(seed=-1),
        dict(effect="huge"),
        dict(topk=0),
        dict(topk={"+": 5}),  # and no number for the other operators
        dict(topk={}, operators="+"),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Settings(**bad)


def test_operands_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="use --max-operand 39"):
        run_stages(small("llama", "sdpa"), Settings(), tmp_path / "run", None, Silent())
    assert not (tmp_path / "run").exists()


def test_mean_activations_do_not_depend_on_the_operators_studied(tmp_path: Path) -> None:
    """They are taken over all operators, and depend neither on the seed nor on the preset."""
    model = small("llama", "sdpa")
    run_stages(model, SMALL, tmp_path, ["means"], Silent())
    other, progress = replace(SMALL, operators=("+",), preset="paper", seed=3, effect="logit"), RecordedNotes()
    run_stages(model, other, tmp_path, ["means"], progress)
    assert progress.notes == ["means: unchanged, not run again"]


def test_a_changed_setting_makes_the_stages_that_depend_on_it_stale() -> None:
    """Another effect measure changes how components are ranked, hence the circuit and what is built on it, but not the effects
    of neurons, unless it selects the neurons to patch."""
    model = small("llama", "sdpa")

    stages = [stage for stage in all_stages() if not stage.joins_steps]

    def changed(before: Settings, **settings: Any) -> set[str]:
        a, b = (runner.keys_of(model, s, stages, []) for s in (before, replace(before, **settings)))
        return {name for name in a if a[name] != b[name]}

    after_classify = {"example", "knockout", "prompt_knockout", "failures", "bag", "training", "stability"}
    after_topk = {"topk", "mlp0", "patterns", "classify", "overlap"} | after_classify
    assert changed(SMALL, both_operands=True) == {"classify"} | after_classify
    assert changed(SMALL, topk=7) == changed(SMALL, rank="mean+std") == after_topk
    assert changed(SMALL, effect="log_ratio") == {"circuit", "heads", "mlp0"} | after_topk
    selected = replace(SMALL, neurons="atp+exact")
    assert changed(SMALL, neurons="atp+exact") == {"neurons"} | after_topk
    assert changed(selected, effect="log_ratio") == {"circuit", "heads", "mlp0", "neurons"} | after_topk
    assert changed(SMALL, preset="paper") == {stage.name for stage in stages} - {"accuracy", "means"}


def test_a_model_that_is_never_right_has_no_circuit(tmp_path: Path) -> None:
    """What was computed before stays."""
    model = small("llama", "sdpa")

    def never_right(ctx: Context) -> Accuracy:
        accuracy = stage_named("accuracy").compute(ctx)
        assert isinstance(accuracy, Accuracy)
        return replace(accuracy, prompts=accuracy.prompts.assign(correct=False, whole=False))

    known = [replace(s, compute=never_right) if s.name == "accuracy" else s for s in all_stages()]
    for stage in ("localize", "probe"):
        with pytest.raises(UserError, match="almost no prompt correctly"):
            run_stages(model, SMALL, tmp_path / stage, [stage], Silent(), known=known)
        assert (tmp_path / stage / "accuracy" / "stage.json").exists()


def test_after_stage_is_called_after_each_stage(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    for _ in range(2):
        run_stages(
            small("llama", "sdpa"),
            SMALL,
            tmp_path,
            ["means", "accuracy"],
            Silent(),
            after_stage=lambda folder: seen.append([s.name for s in all_stages() if folder.is_done(s.name)]),
        )
    assert seen == [["means"], ["means", "accuracy"], ["means", "accuracy"], ["means", "accuracy"]]


class JumpingClock:
    """A clock that jumps by decades."""

    years = (2026, 1971, 2099, 1999, 2300)

    def __init__(self) -> None:
        self.calls = 0

    def now(self, zone: Any) -> datetime:
        self.calls += 1
        return datetime(self.years[self.calls % len(self.years)], 1, 1, tzinfo=zone)


@pytest.mark.parametrize("progress", ["lines", "bars"])
def test_results_do_not_depend_on_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: str) -> None:
    model, settings, lines = small("llama", "sdpa"), Settings(("+",), 3), list[str]()
    run_stages(model, settings, tmp_path / "steady", ["accuracy"], Silent())
    clock, seconds = JumpingClock(), iter(range(10**9, 0, -(10**5)))
    monkeypatch.setattr(store, "datetime", clock)
    monkeypatch.setattr(time, "time", lambda: float(next(seconds)))
    shown = (
        Lines(lines.append, every=0.0) if progress == "lines" else Bars(PlainConsole(force_terminal=True, quiet=True))
    )
    folder = run_stages(model, settings, tmp_path / "jumping", ["accuracy"], shown)
    assert clock.calls > 3
    assert all(entry["seconds"] >= 0 for entry in folder.manifest["stages"].values() if entry["status"] == "done")
    assert bool(lines) == (progress == "lines")
    assert not [line for line in lines if "-" in line]  # no negative times
    assert stored(tmp_path / "jumping") == stored(tmp_path / "steady")
    for path in (tmp_path / "jumping").rglob("*"):
        if path.is_file():
            os.utime(path, (0, 0))  # the age of files must not matter
    before = snapshot(tmp_path / "jumping")
    notes: list[str] = []
    run_stages(model, settings, tmp_path / "jumping", ["accuracy"], Lines(notes.append))
    assert sum("unchanged, not run again" in note for note in notes) == 2
    assert snapshot(tmp_path / "jumping") == before

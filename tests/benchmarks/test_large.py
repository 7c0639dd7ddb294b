"""The benchmark of large models, on a tiny one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from arithscope.cli.bench import Task
from arithscope.settings import PRESETS
from benchmarks import large, record

SMALL = dict(
    family="llama", hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=48, vocab_size=110, numbers=100,
)  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, list[list[object]]]:
    """The tables of a run with three stages and what they need."""
    monkeypatch.setitem(large.SHAPES, "small", SMALL)
    monkeypatch.setattr(large, "TOP_NEURONS", 5)
    monkeypatch.setitem(PRESETS, "quick", PRESETS["quick"])  # the benchmark changes it
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    command = "large.py small --preset quick --operators + --max-operand 9 --probe 40 --stages localize,neurons --record small"
    monkeypatch.setattr(sys, "argv", command.split())
    large.main()
    found = json.loads((tmp_path / "results" / "small.json").read_text())
    return {name: table["rows"] for name, table in found["tables"].items()}


def test_stages_are_timed_and_compared_with_their_lower_bounds(measured: dict[str, list[list[float]]]) -> None:
    rows = {row[0]: row[1:] for row in measured["stages"]}
    assert list(rows) == ["means", "accuracy", "answer_layers", "localize", "probe", "neurons", "all together"]
    for name in ("means", "localize", "neurons"):
        seconds, _, _, floor, times = rows[name]
        assert 0 < floor < seconds  # no stage is faster than its lower bound
        assert times == pytest.approx(seconds / floor)
    assert rows["neurons"][1] == pytest.approx(4 * rows["neurons"][0])  # one operator of four
    assert rows["means"][1] == rows["means"][0]  # always over all operators
    assert rows["all together"][0] == pytest.approx(sum(row[0] for name, row in rows.items() if name != "all together"))


def test_patching_one_neuron_at_a_time_is_compared_with_the_stage(measured: dict[str, list[list[float]]]) -> None:
    rows = dict(measured["single-neurons"])
    alone = rows["all neurons of the later 2 of 4 layers so, minutes (extrapolated)"]
    stage = rows["the same by the stage `neurons`, minutes (measured)"]
    assert rows["one at a time ÷ stage"] == pytest.approx(alone / stage)


def test_replay_agrees_with_one_neuron_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(large.SHAPES, "small", SMALL)
    model = large.random_model("small", None, "cpu")
    for layer in (2, 3):
        task = Task(model, 50, layer)
        found, want = large.replayed(task, 4).numpy(), large.one_at_a_time(task, 4).numpy()
        assert found == pytest.approx(want, rel=1e-2, abs=1e-4)

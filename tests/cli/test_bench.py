"""`arithscope bench`: its methods agree, its numbers are consistent, and bad options are refused in one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import arithscope.cli.bench as bench_module
from arithscope.cli.bench import (
    BATCHED,
    EXACT_TOLERANCE,
    HALF_TOLERANCE,
    LENS,
    ONE_BY_ONE,
    REPLAY,
    Task,
    bench,
    bench_report,
    duration,
    estimates,
)
from arithscope.errors import UserError
from arithscope.models.families import FAMILIES
from arithscope.models.load import load
from arithscope.models.memory import first_replayed_layer, flops_per_position
from arithscope.models.model import Model
from arithscope.models.transformer_lens import TransformerLensModel, TransformerLensUnavailable
from arithscope.utils.progress import Silent
from tests.command_line import call, error_message
from tests.families import small


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", [1, -1])
def test_all_methods_agree(family: str, layer: int) -> None:
    model = small(family)
    task = Task(model, 6, layer % model.sizes.layers)
    for method in (task.batched, task.one_by_one):
        assert task.disagreement(method) < 1e-4
    neurons = torch.arange(5)
    batched, replayed = (m(neurons, task.values[neurons], task.effect) for m in (task.batched, task.replayed))
    single = task.one_by_one(neurons, task.values[neurons], task.effect)
    torch.testing.assert_close(replayed, batched, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(replayed[:, : single.shape[1]], single, rtol=1e-3, atol=1e-5)


WRONG: dict[str, Callable[[Task, Tensor, Tensor, Any], Tensor]] = {
    "edits nothing": lambda task, n, values, reduce: reduce(task.before, task.before.expand(len(n), -1, -1)),
    "another neuron": lambda task, n, values, reduce: task.batched(n + 1, values, reduce),
    "another prompt's value": lambda task, n, values, reduce: task.batched(n, values.roll(1, 1) * 1.5, reduce),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_method_is_detected(wrong: str, dtype: torch.dtype) -> None:
    task = Task(small("llama", dtype=dtype), 6, 1)
    allowed = EXACT_TOLERANCE if dtype == torch.float32 else HALF_TOLERANCE
    assert task.disagreement(task.batched) <= allowed
    assert task.disagreement(lambda n, values, reduce: WRONG[wrong](task, n, values, reduce)) > allowed


def test_methods_that_disagree_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Task.batched
    monkeypatch.setattr(Task, "batched", lambda self, n, values, reduce: right(self, n + 1, values, reduce))
    with pytest.raises(UserError, match=r"layer 1 edited, batched and replay differ by .* nothing to compare"):
        bench(small("llama"), prompts=4, seconds=0.1, progress=Silent())


def test_numbers_are_consistent() -> None:
    model = small("llama")
    result = bench(model, prompts=4, layers=[2, 0], seconds=0.2, progress=Silent())
    assert [row["layer"] for row in result["layers"]] == [0, 2]
    expected = {ONE_BY_ONE, BATCHED, REPLAY} | ({LENS} if find_spec("transformer_lens") else set())
    for row in result["layers"]:
        rates = row["rates"]
        assert set(rates) == expected
        assert min(rates.values()) > 0
        assert row["replay_over"] == {name: rates[REPLAY] / rates[name] for name in expected - {REPLAY}}
        run = first_replayed_layer(model, row["layer"])
        assert row["tflops"] == pytest.approx(rates[REPLAY] * flops_per_position(model, run) / 1e12)
    assert result["upper_half"] == [1, 2]
    assert set(result["estimates"]) == expected
    assert (result["prompts"], result["dtype"], result["lens"] == "") == (4, "float32", LENS in expected)
    assert {"model", "device", "torch", "arithscope"} < set(result)
    assert json.loads(json.dumps(result)) == result


def test_estimates() -> None:
    """Layers 2…5 with 100 pairs each, of which 2 and 4 are measured: 3 is interpolated, and 5 is taken to be like 4."""
    rows = [
        {"layer": 2, "rates": {BATCHED: 10.0, REPLAY: 50.0}},
        {"layer": 4, "rates": {BATCHED: 10.0, REPLAY: 100.0}},
    ]
    seconds = estimates(rows, range(2, 6), 100)
    assert seconds[BATCHED] == pytest.approx(4 * 100 / 10)
    assert seconds[REPLAY] == pytest.approx(100 * (1 / 50 + (1 / 50 + 1 / 100) / 2 + 2 / 100))


def test_sample_sizes_fit_the_time_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = SimpleNamespace(model=SimpleNamespace(sizes=SimpleNamespace(neurons=1000)))

    def measured(fixed: float, each: float, first: float = 0.0) -> tuple[float, int, float]:
        """The rate, the number of neurons of the last sample, and all seconds spent."""
        spent: list[tuple[int, float]] = []

        def pretended(task: Any, method: Any, n: int) -> tuple[float, int]:
            spent.append((n, fixed + each * n + (0 if spent else first)))
            return spent[-1][1], 3

        monkeypatch.setattr(bench_module, "_timed", pretended)
        return bench_module._rate(task, lambda *_: None, 10.0), spent[-1][0], sum(seconds for _, seconds in spent)

    assert measured(0.0, 5.0)[:2] == (3 / 5.0, 1)  # even one takes too long
    assert measured(0.0, 1e-6, first=60.0)[:2] == (pytest.approx(3e6), 1000)  # the first call does not count
    for fixed, each in ((0.0, 0.01), (0.3, 0.01), (0.0, 0.002), (0.45, 0.002)):
        rate, n, spent = measured(fixed, each)
        assert rate == pytest.approx(3 * n / (fixed + each * n))
        assert 1 < n <= 1000
        assert 2 <= spent <= 15


def test_the_terminal_output(saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    options = ("--prompts", "3", "--layers", "0,2", "--seconds", "0.1", "--device", "cpu", "--json", file)
    assert call("bench", saved_model, *options) == 0
    output = capsys.readouterr().out
    for expected in ("3 prompts", "TFLOP/s", "÷ batched", "layers 1 to 2, 50 prompts of 4 operators", "(replay)"):
        assert expected in output
    assert [row["layer"] for row in json.loads(file.read_text())["layers"]] == [0, 2]


def test_bad_options_are_refused(saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, expected in (
        (("--layers", "3"), "no layer 3; choose --layers from 0 to 2"),
        (("--layers", "-1"), "no layer -1"),
        (("--layers", "a"), "'a' names no layers"),
        (("--layers", ""), "'' names no layers"),
        (("--prompts", "0"), "0 prompts cannot be measured; choose --prompts from 1 to"),
        (("--prompts", "100000000"), "choose --prompts from 1 to"),
        (("--seconds", "0"), "choose --seconds above 0"),
        (("--seconds", "nan"), "choose --seconds above 0"),
        (("--json", tmp_path / "gone" / "it.json"), "name a file in a folder that exists"),
        (("--json", tmp_path), "name a file in a folder that exists"),
        (("--dtype", "float7"), "no dtype 'float7'"),
    ):
        few = ("--seconds", "0.05") if "--seconds" not in options else ()
        assert expected in error_message(capsys, "bench", saved_model, *few, *options)


def test_durations() -> None:
    shown = {5.123: "5.1 seconds", 89: "89 seconds", 90: "1.5 minutes", 7200: "2 hours", 864000: "10 days"}
    assert {seconds: duration(seconds) for seconds in shown} == shown


def without_lens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arithscope.models.transformer_lens.find_spec", lambda name: None)


def test_without_transformer_lens(monkeypatch: pytest.MonkeyPatch) -> None:
    without_lens(monkeypatch)
    result = bench(small("llama"), prompts=2, layers=[2], seconds=0.05, progress=Silent())
    assert list(result["estimates"]) == [ONE_BY_ONE, BATCHED, REPLAY]
    assert "TransformerLens is left out: it is not installed." in list(bench_report(result))


def refuse(*args: Any, **kwargs: Any) -> None:
    raise KeyError("no adapter\nfor it")


@pytest.mark.parametrize("at_once", [True, False], ids=["when built", "when run"])
def test_transformer_lens_that_cannot_take_the_model(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any error it raises is reported in one line, and the other methods are measured."""
    source: Any = ModuleType("transformer_lens.model_bridge.sources")
    late = SimpleNamespace(run_with_hooks=refuse)
    source.build_bridge_from_module = refuse if at_once else lambda *args, **kwargs: late
    monkeypatch.setattr("arithscope.models.transformer_lens.find_spec", lambda name: True)
    for name in ("transformer_lens", "transformer_lens.model_bridge"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, source.__name__, source)
    result = bench(small("llama"), prompts=2, layers=[2], seconds=0.05, progress=Silent())
    assert list(result["estimates"]) == [ONE_BY_ONE, BATCHED, REPLAY]
    [line] = [part for part in bench_report(result) if "left out" in str(part)]
    assert line.startswith("TransformerLens is left out: it cannot take this model (KeyError: ")
    assert "\n" not in line


def real_lens(model: Model) -> TransformerLensModel:
    pytest.importorskip("transformer_lens", reason="transformer-lens is not installed")
    return TransformerLensModel(model)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_transformer_lens_agrees(family: str) -> None:
    """Another library's hooks give the same logits."""
    model = small(family)
    lens, task = real_lens(model), Task(model, 6, 1)
    assert task.disagreement(lambda n, values, reduce: task.in_lens(lens, n, values, reduce)) < 1e-4


@pytest.mark.slow
def test_transformer_lens_leaves_the_model_as_it_was() -> None:
    """They share the weights."""
    model = load("tiny-llama")
    lens, task = real_lens(model), Task(model, 6, 3)
    before = model.logits(task.ids)
    lens.logits_with(task.ids, 3, 7, task.values[7])
    assert torch.equal(model.logits(task.ids), before)
    shared = {p.data_ptr() for p in chain(lens._bridge.parameters(), lens._bridge.buffers())}
    assert {p.data_ptr() for p in model.hf_model.parameters()} <= shared
    result = bench(model, prompts=4, layers=[3], seconds=0.5, progress=Silent())
    assert result["lens"] == ""
    assert result["layers"][0]["rates"][LENS] > 0


@pytest.mark.slow
def test_transformer_lens_that_computes_something_else_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama")
    real_lens(model)
    right = TransformerLensModel.logits_with
    monkeypatch.setattr(
        TransformerLensModel, "logits_with", lambda self, ids, layer, n, new: right(self, ids, layer, n + 1, new)
    )
    result = bench(model, prompts=4, layers=[1], seconds=0.1, progress=Silent())
    assert "its logits differ" in result["lens"]
    assert LENS not in result["estimates"]


def test_transformer_lens_refuses_quantised_and_spread_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arithscope.models.transformer_lens.find_spec", lambda name: True)
    model = small("llama")
    monkeypatch.setattr(model.hf_model, "hf_device_map", {"": "cpu"}, raising=False)
    with pytest.raises(TransformerLensUnavailable, match="on one device and not quantised"):
        TransformerLensModel(model)

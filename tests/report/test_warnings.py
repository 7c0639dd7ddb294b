"""Each warning appears exactly when its condition holds."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arithscope.pipeline.store import RunFolder
from arithscope.report import warnings
from arithscope.report.page import page
from arithscope.report.warnings import result_warnings
from arithscope.settings import PRESETS

ROOT = Path(__file__).parents[2]
OF_LAYOUTS = {"few whole answers are right", "answer step left out"}  # warnings that test_layouts.py covers


def mean(value: float | None, low: float | None = None, high: float | None = None, n: int = 500) -> dict[str, Any]:
    return {"value": value, "low": value if low is None else low, "high": value if high is None else high, "n": n}


def warnings_of(summary: dict[str, Any], preset: str = "paper", **settings: Any) -> dict[str, tuple[str, str]]:
    """Section and text of each warning, by name."""
    run: Any = SimpleNamespace(
        manifest={"stages": {}, "configuration": {"effect": "probability", "sizes": vars(PRESETS[preset])} | settings},
        summary=summary,
    )
    return {w.name: (w.section, w.text) for w in result_warnings(run)}


def answered(n: int = 500, p: float = 0.7) -> dict[str, Any]:
    return {"accuracy": mean(0.9, n=1000), "p_answer_correct": mean(p, n=n)}


def test_a_good_run_has_no_warnings() -> None:
    good = {"faithfulness": mean(0.95, 0.9, 1.0), "accuracy": mean(0.9, 0.85, 0.95)}
    summary = {
        "accuracy": {"+": answered(), "mean": answered(1)},
        "circuit": {"+": good, "mean": good},
        "neurons": {"+": {"split_half_by_mean": 0.1, "split_half_by_mean_abs": 0.5, "first_layer": 2}},
        "probe": {"all": {"first_answer_layer": 2}},
        "answer_layers": {
            "+": {"first_answer_layer": 2, "baseline": 0.01},
            "/": {"first_answer_layer": 2, "baseline": 0.5},
        },
        "topk": {
            "+": {"ranked_by": "mean_abs", "share_of_neurons": 0.5, "floor_accuracy": mean(0.2)},
            "/": {"ranked_by": "mean_abs", "share_of_neurons": 0.1, "floor_accuracy": mean(0.6)},
        },
    }
    assert warnings_of(summary) == {}
    assert warnings_of({}) == {}


def test_too_few_correct_prompts() -> None:
    never = {"accuracy": mean(0.0, n=1000), "p_answer_correct": mean(None, n=0)}
    found = warnings_of({"accuracy": {"+": answered(400), "-": answered(399), "*": never}})
    section, text = found["Too few correct prompts"]
    assert section == "accuracy"
    assert "only 0 for × and 399 for −" in text or "only 399 for − and 0 for ×" in text
    assert "need 400 for each" in text
    # 50 for discovery, 50 for selection, 32 for evaluation, and 50 to test with
    assert warnings_of({"accuracy": {"+": answered(182)}}, preset="quick") == {}
    assert "Too few correct prompts" in warnings_of({"accuracy": {"+": answered(181)}}, preset="quick")


def test_saturated_probabilities() -> None:
    summary = {"accuracy": {"+": answered(p=warnings.SATURATED), "-": answered(p=warnings.SATURATED - 0.001)}}
    section, text = warnings_of(summary)["Saturated probabilities"]
    assert section == "circuit"
    assert ".980 for +" in text
    assert "−" not in text
    assert warnings_of(summary, effect="logit") == {}  # what ranks components does not saturate


def test_an_unstable_ranking() -> None:
    """Of the ranking that is in use."""
    halves = {"+": (0.41, 0.95), "/": (0.95, 0.41), "*": (None, None)}
    neurons = {o: {"split_half_by_mean": a, "split_half_by_mean_abs": b} for o, (a, b) in halves.items()}
    summary = {"neurons": {**neurons, "-": {}}, "topk": {o: {"ranked_by": "mean_abs"} for o in "+-*/"}}
    section, text = warnings_of(summary)["Unstable ranking of neurons"]
    assert section == "neurons"
    assert "only .410 for ÷." in text


def test_layers_that_probe_and_cause_see_differently() -> None:
    layers = {"+": {"first_answer_layer": 4}, "-": {"first_answer_layer": 2}}
    studied = {o: {"first_layer": 2} for o in "+-*"}
    summary = {"probe": {"all": {"first_answer_layer": 2}}, "answer_layers": layers, "neurons": studied}
    section, text = warnings_of(summary)["Probe and cause disagree"]
    assert section == "probes"
    assert "from layer 2 on" in text
    assert "4 for +." in text
    assert "−" not in text
    by_cause = {o: {"first_layer": found["first_answer_layer"]} for o, found in layers.items()}
    assert warnings_of({**summary, "neurons": by_cause}) == {}  # the probe's layers are not studied
    assert warnings_of({**summary, "neurons": {}}) == {}


def test_answer_layers_from_the_first_on() -> None:
    section, text = warnings_of({"neurons": {"+": {"first_layer": 0}, "-": {"first_layer": 1}}})[
        "All layers are answer layers"
    ]
    assert section == "neurons"
    assert text.startswith("for + the answer layers")


def test_an_answer_that_needs_no_mlp_at_the_last_position() -> None:
    """For ÷, the floor says so; that its layers are not those by cause, and how many neurons are kept, is no news."""
    layers = {o: {"first_answer_layer": 0, "baseline": 0.5, "needed": o == "-"} for o in "-/"}
    topk = {o: {"floor_accuracy": mean(0.8, 0.7, 0.9), "share_of_neurons": 0.6} for o in "-/"}
    found = warnings_of({"answer_layers": layers, "topk": topk, "neurons": {o: {"first_layer": 4} for o in "-/"}})
    assert set(found) == {"Probe and cause disagree", "The answer is computed below", "Most neurons are needed"}
    assert ".800 [.700, .900] for − and .800 [.700, .900] for ÷" in found["The answer is computed below"][1]
    assert "÷" not in found["Probe and cause disagree"][1] + found["Most neurons are needed"][1]


def test_a_floor_that_is_good_already() -> None:
    """Half of all quotients are 0, so that a floor of .6 says little for ÷ and much for +."""
    layers = {"+": {"baseline": 0.01}, "/": {"baseline": 0.5}}
    topk = {o: {"floor_accuracy": mean(0.6, 0.5, 0.7)} for o in "+/"}
    section, text = warnings_of({"answer_layers": layers, "topk": topk})["The answer is computed below"]
    assert section == "neurons"
    assert "still .600 [.500, .700] for +." in text


def test_more_than_half_of_the_neurons() -> None:
    topk = {"+": {"share_of_neurons": 0.51}, "-": {"share_of_neurons": 0.5}}
    section, text = warnings_of({"topk": topk})["Most neurons are needed"]
    assert section == "neurons"
    assert "is 51% for + of" in text


@pytest.mark.parametrize(
    ("faithfulness", "accuracy", "warned"),
    [
        (mean(0.97, 0.95, 0.99), mean(0.60, 0.50, 0.70), True),
        (mean(0.40, 0.35, 0.45), mean(0.90, 0.80, 1.00), True),  # or the other way round
        (mean(0.97, 0.95, 0.99), mean(0.88, 0.82, 0.94), False),  # clear, but little
        (mean(0.90, 0.70, 1.00), mean(0.70, 0.60, 0.80), False),  # much, but not clear
        (mean(0.97, 0.95, 0.99), mean(None), False),
    ],
)
@pytest.mark.parametrize(
    ("experiment", "prefix", "section"),
    [("circuit", "", "circuit"), ("topk", "", "neurons"), ("bag", "raw_", "proof"), ("bag", "calibrated_", "proof")],
)
def test_faithfulness_and_accuracy_that_disagree(
    faithfulness: Any, accuracy: Any, warned: bool, experiment: str, prefix: str, section: str
) -> None:
    entries = {f"{prefix}faithfulness": faithfulness, f"{prefix}accuracy": accuracy}
    found = warnings_of({experiment: {"-": entries, "mean": entries}})
    assert [where for where, _ in found.values()] == ([section] if warned else [])
    assert all("−: faithfulness" in text for _, text in found.values())


def test_every_warning_is_documented() -> None:
    apart = {"faithfulness": mean(0.97), "accuracy": mean(0.6)}
    summary = {
        "accuracy": {"+": answered(n=10, p=0.99)},
        "circuit": {"+": apart},
        "probe": {"all": {"first_answer_layer": 0}},
        "answer_layers": {"+": {"first_answer_layer": 3}},
        "neurons": {"+": {"split_half_by_mean": 0.1, "first_layer": 0}},
        "topk": {"+": {"ranked_by": "mean", "share_of_neurons": 0.9, "floor_accuracy": mean(0.9)}},
    }
    documented = documented_rows("docs/reliability.md", "| warning | when |")
    assert {name.split(",")[0].lower() for name in warnings_of(summary)} | OF_LAYOUTS == documented


def documented_rows(page: str, heading: str) -> set[str]:
    """First cells of the table below a heading row."""
    lines = (ROOT / page).read_text(encoding="utf-8").split(f"{heading}\n")[1].splitlines()[1:]
    return {line.split("|")[1].strip() for line in takewhile(lambda line: line.startswith("|"), lines)}


def test_warnings_are_in_the_report(small_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "SATURATED", -1.0)
    monkeypatch.setattr(warnings, "STABLE", 2.0)
    run = RunFolder(small_run)
    found = result_warnings(run)
    text = page(run, {})
    assert {"Saturated probabilities"} <= {w.name for w in found}
    for w in found:
        assert f'<a href="#{w.section}">{w.name}</a>' in text
        inside = text.split(f'id="{w.section}"')[1].split("<section")[0]
        assert f"<strong>{w.name}: </strong>" in inside
    monkeypatch.setattr("arithscope.report.page.result_warnings", lambda run: [])
    assert "<strong>Warnings</strong>" not in page(run, {})

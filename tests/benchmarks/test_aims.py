"""Aims are read from a run's results, and compared with what is wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arithscope.experiments.answer_layers import EVALUATION, AnswerLayers
from arithscope.experiments.classify import Classification
from arithscope.pipeline.store import RunFolder
from benchmarks.aims import AIMS, Aim, over_seeds, shown, studies, table, together


def test_numbers_are_those_of_the_run(small_run: Path) -> None:
    run = RunFolder(small_run)
    found = {aim.what: aim.value(run, "+") for aim in AIMS}
    neurons = run.read(Classification).neurons
    neurons = neurons[neurons.operator == "+"]
    assert found["top neurons classified, calibrated"]["value"] == pytest.approx(neurons.calibrated.mean())
    covered = found["variance of top neurons' activations that rules cover"]["value"]
    assert covered == pytest.approx(neurons.coverage_calibrated.mean())
    assert found["share of a layer's neurons kept (k)"] == 64 / 512
    assert found["share of heads in the circuit"] == run.summary["circuit"]["+"]["heads"] / 24
    first = run.summary["neurons"]["+"]["first_layer"]
    curve = run.read(AnswerLayers).curve.set_index(["operator", "sample", "layer"]).value
    without = found["accuracy with the answer layers' MLPs at their means"]["value"]
    assert without == curve["+", EVALUATION, first]
    assert (
        found["reliability of the ranking (two halves of the prompts)"]
        == (run.summary["neurons"]["+"]["split_half_by_mean_abs"])
    )
    rows = [row[2:] for row in table(run).rows]
    assert all(row[2:] == [None, None] for row in rows)  # × and ÷ were not studied
    assert all(row[0] is not None for row in rows[:9])  # too few prompts have 25 neurons a layer for the rest
    both = together({"a": [run], "b": [run, run]})
    assert both.columns[2:] == ["a", "b"]
    for aim, row in zip(AIMS, both.rows, strict=True):
        found = [aim.value(run, o) for o in "+-"]
        values = [value["value"] if isinstance(value, dict) else value for value in found]
        assert row[2] == row[3] == ", ".join(shown(aim, value) or "–" for value in values)


def test_runs_that_differ_in_the_seed_are_one_study(small_run: Path, tmp_path: Path) -> None:
    changes = {
        "first": {},
        "other": {"seed": 1},
        "cause": {"answer_layers": "cause"},
        "cause too": {"seed": 1, "answer_layers": "cause"},
    }
    runs = {}
    for name, change in changes.items():
        (tmp_path / name).mkdir()
        manifest = json.loads((small_run / "manifest.json").read_text(encoding="utf-8"))
        manifest["configuration"] |= change
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        runs[name] = RunFolder(tmp_path / name)
    assert studies(runs) == {"first": [runs["first"], runs["other"]], "cause": [runs["cause"], runs["cause too"]]}
    other_model = RunFolder(tmp_path / "other")
    other_model.manifest["model"]["weight_hash"] = "other"
    assert list(studies({**runs, "other": other_model})) == ["first", "other", "cause"]


def test_numbers_over_seeds_have_mean_and_range() -> None:
    aim = Aim("least", lambda run, operator: None, least=0.6)
    assert over_seeds(aim, [0.5, 0.9, None]) == ".700 (.500–.900)"
    assert over_seeds(aim, [0.4, 0.5, 0.6]) == "**.500** (.400–.600)"
    assert over_seeds(aim, [0.5, 0.5]) == "**.500**"
    assert over_seeds(aim, [None]) == "–"
    assert over_seeds(Aim("layer", lambda run, operator: None), [4, 5, 4]) == "4–5"


def test_what_misses_its_aim_is_bold() -> None:
    both = Aim("both", lambda run, operator: None, least=0.9, most=0.99)
    assert both.wanted() == "≥ .900 ≤ .990"
    assert [shown(both, value) for value in (0.899, 0.9, 0.99, 0.991)] == ["**.899**", ".900", ".990", "**.991**"]
    mean = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 10}
    assert shown(Aim("least", lambda run, operator: None, least=0.6), mean) == "**.500 [.400, .600]**"
    assert shown(Aim("most", lambda run, operator: None, most=0.6), mean) == ".500 [.400, .600]"
    assert shown(both, None) is None
    assert shown(both, {**mean, "value": None}) is None

"""Runs that change while they are served: stages that are added, computed again or no longer there."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from arithscope.explorer.runs import RunRegistry
from arithscope.pipeline.store import RunWriter
from arithscope.results.run import Run
from tests.explorer.client import send, serving


@pytest.fixture
def folder(small_run: Path, tmp_path: Path) -> Path:
    """A copy of the run without the stages patterns and knockout, as if they were still being computed."""
    return Path(shutil.copytree(small_run, tmp_path / "run", ignore=lambda *_: ["patterns", "knockout"]))


def writer(folder: Path) -> RunWriter:
    """The run, open for writing under the keys that it has; brings the manifest up to date."""
    keys = {path.parent.name: json.loads(path.read_text())["key"] for path in folder.glob("*/stage.json")}
    return RunWriter(folder, keys | {"patterns": "new", "knockout": "new"})


def test_added_and_changed_stages_are_seen(folder: Path, small_run: Path) -> None:
    whole = Run(small_run)
    run = writer(folder)
    with serving([folder, small_run]) as address:
        name = send(address, "/api/runs").json["runs"][0]["name"]
        at = f"/api/runs/{name}"
        row = whole.patterns.neurons.iloc[0]
        page = f"{at}/neurons/{row.layer}/{row.neuron}?operator={'%2B' if row.operator == '+' else row.operator}"
        assert "patterns" not in send(address, "/api/runs").json["runs"][0]["stages"]
        assert "no stage 'patterns'" in send(address, f"{at}/neurons").error
        assert send(address, page).json["activation_map"] is None
        before = send(address, "/api/comparison").json

        run.write("patterns", whole.patterns, 1.0)
        assert "patterns" in send(address, "/api/runs").json["runs"][0]["stages"]
        assert send(address, f"{at}/neurons").json["total"] == len(whole.patterns.neurons)
        assert send(address, page).json["activation_map"] is not None
        assert send(address, f"{at}/heuristics?tested=true&criterion=raw").json["total"] == 0

        run.write("knockout", whole.knockout, 1.0)
        assert send(address, f"{at}/heuristics?tested=true&criterion=raw").json["total"] > 0
        assert len(send(address, "/api/comparison").json["table"]) > len(before["table"])

        neurons = whole.patterns.neurons
        other = replace(whole.patterns, neurons=neurons.assign(alignment=neurons.alignment / 2))
        run.write("patterns", other, 1.0)  # same status, seconds and, within a second, date
        shown = send(address, f"{at}/results/patterns/neurons?size=1").json["rows"][0]["alignment"]
        assert shown == pytest.approx(neurons.alignment[0] / 2)
        assert send(address, page).json["activation_map"]["alignment"] == pytest.approx(neurons.alignment[0] / 2)


def test_a_run_that_cannot_be_read_any_longer_is_served_as_it_was(folder: Path) -> None:
    writer(folder)
    with serving([folder]) as address:
        before = send(address, "/api/runs").json
        (folder / "manifest.json").write_text("{")
        assert send(address, "/api/runs").json == before
        (folder / "manifest.json").unlink()
        assert send(address, "/api/runs").json == before


def test_unchanged_results_and_the_model_are_kept(folder: Path, small_run: Path) -> None:
    run = writer(folder)
    registry = RunRegistry([Run(folder)])
    [served] = registry
    with registry.model(served.run) as model:
        classify = served.run.classify
    run.write("patterns", Run(small_run).patterns, 1.0)
    [later] = registry
    assert later is not served
    assert later.run.classify is classify
    with registry.model(later.run) as same:
        assert same is model
    assert "model" not in vars(served.run)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["configuration"]["template"] = "{op1} {operator} {op2} ="
    (folder / "manifest.json").write_text(json.dumps(manifest))
    [last] = registry
    last.run.take_model(later.run)
    assert "model" not in vars(last.run)

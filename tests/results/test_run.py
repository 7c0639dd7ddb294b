"""A finished run from Python: its results are those of the folder, and what is missing is explained in one sentence."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import arithscope
from arithscope.errors import UserError
from arithscope.models.load import load
from arithscope.models.sources import FOLDER
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.store import RunFolder
from arithscope.prompts import parse_prompt
from arithscope.results.explanation import explain_prompt
from tests.command_line import error_message
from tests.markup import parsed, words

TINY_LLAMA = FOLDER / "tiny-llama"


def assert_same(one: Any, other: Any) -> None:
    """Compare results field by field."""
    assert type(one) is type(other)
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, pd.DataFrame) and a.empty:
            assert b.empty  # the file does not keep the column types of an empty table
        elif isinstance(a, pd.DataFrame):
            pd.testing.assert_frame_equal(a.reset_index(drop=True), b.reset_index(drop=True))
        elif isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b, field.name


def test_results_equal_those_of_the_folder(small_run: Path) -> None:
    run, folder = arithscope.open(small_run), RunFolder(small_run)
    for stage in all_stages():
        if not stage.on_request:
            assert_same(getattr(run, stage.name), folder.read(stage.result))
            assert getattr(run, stage.name) is run.result(stage.name)  # read once


def test_a_run_with_checkpoints(small_training_run: Path) -> None:
    run = arithscope.open(str(small_training_run))
    assert "training" in run.stages
    assert run.training.checkpoints == ["step-00000", "step-01500", "final"]
    first = arithscope.open(small_training_run / "checkpoints" / "step-00000")
    assert first.name == "tiny-pythia@step-00000"
    # Untrained, it always predicts the same few numbers. All correct prompts, if there are any, have the same answer, so there
    # is no counterfactual, and later stages are left out.
    right = first.accuracy.prompts[first.accuracy.prompts.correct]
    assert right.answer.nunique() <= 1
    assert first.stages == ["means", "accuracy"]
    assert set(run.training.faithfulness.checkpoint) == {"step-01500", "final"}


def test_stages_and_summary(small_run: Path, small_training_run: Path) -> None:
    for path in (small_run, small_training_run):
        run = arithscope.open(path)
        written = json.loads((path / "summary.json").read_text())
        manifest = json.loads((path / "manifest.json").read_text())
        done = {name for name, entry in manifest["stages"].items() if entry["status"] == "done"}
        assert set(run.stages) == done >= set(written)
        assert list(run.summary) == ["experiment", "operator", "measure", "value", "low", "high", "n"]
        rows = {(r.experiment, r.operator, r.measure): r for r in run.summary.itertuples()}
        counted = 0
        for experiment, operators in written.items():
            for operator, entries in operators.items():
                for measure, entry in entries.items():
                    if isinstance(entry, bool | str | list):
                        assert (experiment, operator, measure) not in rows
                        continue
                    row = rows[experiment, operator, measure]
                    value = entry["value"] if isinstance(entry, dict) else entry
                    assert row.value == pytest.approx(value if value is not None else np.nan, nan_ok=True)
                    assert not isinstance(entry, dict) or row.n == entry["n"]
                    counted += 1
        assert counted == len(run.summary) > 20


def test_the_repr_and_html_of_a_run(small_run: Path) -> None:
    run = arithscope.open(small_run)
    assert (run.name, run.operators, run.stratum.op1[1], run.limit, run.seed) == ("tiny-llama", ["+", "-"], 40, 1000, 0)
    assert (run.path, run.configuration["topk"]) == (small_run, 64)
    assert len(repr(run)) < 500
    assert "tiny-llama, +-, operands 0…40, quick preset, 18 stages" in repr(run)
    cells = [[cell.text for cell in row] for row in parsed(run).findall(".//tr")]
    assert [name for name, _ in cells[1:]] == run.stages
    assert all(float(seconds or "nan") >= 0 for _, seconds in cells[1:])


def test_html_is_escaped(small_run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_run, tmp_path / "<b>&"))
    changed(copy, lambda manifest: manifest["model"].update(name="<script>alert('&')</script>"))
    assert "<script>alert('&')</script>" in words(arithscope.open(copy))
    assert "<b>&" in words(arithscope.open(copy))


def changed(path: Path, change: Any) -> None:
    """Change the manifest of a run."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_stale_results_are_refused(small_run: Path, tmp_path: Path) -> None:
    """They were computed with other settings than those in the manifest."""
    copy = Path(shutil.copytree(small_run, tmp_path / "run"))
    changed(copy, lambda manifest: manifest["stages"].update(circuit={"status": "stale"}))
    run = arithscope.open(copy)
    assert "circuit" not in run.stages
    with pytest.raises(UserError, match=r"no complete stage 'circuit' \(it is stale\); run it again"):
        _ = run.circuit
    changed(copy, lambda manifest: manifest["stages"].update(circuit={"status": "done"}))
    assert_same(run.circuit, arithscope.open(small_run).circuit)  # done in the meantime: the folder is read again


def test_missing_stages_are_refused(small_run: Path, small_training_run: Path, tmp_path: Path) -> None:
    run = arithscope.open(small_run)
    with pytest.raises(
        UserError, match=r"no stage 'lunch'; choose from means, accuracy, .*, stability, .*, training\.$"
    ):
        run.result("lunch")
    with pytest.raises(UserError, match=r"no complete stage 'training' \(it is missing\)"):
        _ = run.training
    with pytest.raises(UserError, match=r"no complete stage 'mlp0' \(it is pending\)"):
        _ = arithscope.open(small_training_run).mlp0
    with pytest.raises(UserError, match=r"no run at .*: manifest\.json is missing"):
        arithscope.open(tmp_path)


def test_damaged_results_are_refused(small_run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_run, tmp_path / "run"))
    with open(copy / "topk" / "top.parquet", "ab") as file:
        file.write(b"more")
    with pytest.raises(UserError, match="no complete stage 'topk'"):
        _ = arithscope.open(copy).topk


def test_the_model_must_be_that_of_the_run(small_run: Path, saved_adder: Path) -> None:
    run = arithscope.open(small_run)
    assert run.model.identity.weight_hash == run.manifest["model"]["weight_hash"]
    assert run.model is run.model  # loaded once
    other = arithscope.open(small_run, elsewhere=str(saved_adder))
    with pytest.raises(UserError, match="not the model of the run in"):
        _ = other.model
    other.elsewhere = "tiny-llama"
    assert other.model.identity.name == "tiny-llama"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Addresses that were looked up or connected to; none of them is."""
    tried: list[Any] = []

    def refuse(*address: Any, **_: Any) -> None:
        tried.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    return tried


@pytest.fixture
def of_another_source(small_run: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a run whose manifest names this source."""

    def named(source: str) -> Path:
        copy = Path(shutil.copytree(small_run, tmp_path / "run", dirs_exist_ok=True))
        changed(copy, lambda manifest: manifest["model"].update(source=source))
        return copy

    return named


@pytest.mark.parametrize("command", [("explain", "2+3="), ("verify",)])
def test_no_hub_is_contacted_for_a_model_that_only_the_manifest_names(
    command: tuple[str, ...],
    of_another_source: Any,
    connections: list[Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(source: str, **_: Any) -> None:
        raise OSError(f"no connection for {source}")

    folder = of_another_source("some-one/llama")
    error = error_message(capsys, command[0], folder, *command[1:])
    assert "names the hub model some-one/llama, which is not on this machine; to download it, use --model" in error
    assert not connections
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", unreachable)
    error = error_message(capsys, command[0], folder, *command[1:], "--model", "some-one/llama")
    assert "model hub: no connection for some-one/llama" in error  # the user asked for it


def test_a_hub_model_in_the_local_cache_is_loaded_without_contacting_the_hub(
    of_another_source: Any, connections: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    cached, commit = tmp_path / "hub" / "models--some-one--llama", "0123456789abcdef0123456789abcdef01234567"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(commit)
    snapshot = cached / "snapshots" / commit
    snapshot.mkdir(parents=True)
    run = arithscope.open(of_another_source("some-one/llama"))
    shutil.copy(TINY_LLAMA / "config.json", snapshot)
    with pytest.raises(UserError, match="is not on this machine"):  # its weights were never downloaded
        _ = run.model
    shutil.copytree(TINY_LLAMA, snapshot, dirs_exist_ok=True)
    assert (run.model.identity.name, run.model.identity.revision) == ("some-one/llama", commit)
    assert not connections


@pytest.mark.parametrize(
    "source",
    [
        "/",
        "{tmp}/gone",
        "{tmp}/fifo",
        "/dev/zero",
        "//host/share/m",
        r"\\host\share",
        "https://host/m",
        "file:///etc",
        "a b",
    ],
)
def test_a_model_that_is_not_where_the_manifest_says(
    source: str, of_another_source: Any, connections: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    source = source.replace("{tmp}", str(tmp_path))
    error = error_message(capsys, "explain", of_another_source(source), "2+3=")
    assert f"is not at {source} any more; say where it is with --model (in Python, with `elsewhere`)" in error
    assert not connections


def test_a_model_with_a_file_that_cannot_be_read_to_its_end(
    of_another_source: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(TINY_LLAMA, tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "is not a regular file" in error_message(capsys, "explain", of_another_source(str(folder)), "2+3=")


def test_a_part_of_a_run_is_not_a_run(small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(small_run, tmp_path / "run"))
    (copy / "report.html").touch()
    for part in ("report.html", "summary.json", "circuit", "circuit/stage.json"):
        for command in (("report",), ("explain", "2+3="), ("verify",)):
            error = error_message(capsys, command[0], copy / part, *command[1:])
            assert f"{copy / part} is only a part of a run; name the run folder {copy}." in error
    (tmp_path / "file.txt").touch()
    error = error_message(capsys, "report", tmp_path / "file.txt")
    assert "file.txt is not a folder; name a run folder, which holds a manifest.json." in error


def test_the_model_is_loaded_with_the_template_of_the_run(small_run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_run, tmp_path / "run"))
    changed(copy, lambda manifest: manifest["configuration"].update(prefix="1+2="))
    model = arithscope.open(copy).model
    assert model.encoder.template.prefix == "1+2="
    assert model.encoder.length == load("tiny-llama").encoder.length + 4


def test_a_folder_in_the_home_folder(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(small_run.parent))
    assert arithscope.open(f"~/{small_run.name}").name == "tiny-llama"
    assert arithscope.Run(str(small_run)).name == "tiny-llama"


@pytest.mark.parametrize("criterion", ["raw", "calibrated"])
def test_explain_equals_explain_prompt(small_run: Path, criterion: str) -> None:
    run = arithscope.open(small_run)
    found = run.explain("26 + 8", criterion)
    want = explain_prompt(run.model, run.classify, parse_prompt("26+8=", "+-", 40, 1000), criterion, 0)
    assert_same(found, want)
    assert found.criterion == criterion
    assert len(found.neurons)
    assert len(repr(found)) < 500
    assert "26+8=" in words(found)
    assert len(parsed(found).findall(".//table")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("41+1=",), "beyond 40, the largest operand here"),
        (("2*3=",), "The operator . was not studied"),
        (("3-5=",), "are single tokens"),
        (("two+2=",), "not a whole number"),
        (("2+2=", "fine"), r"no criterion 'fine'; choose raw or calibrated\.$"),
    ],
)
def test_bad_prompts_are_refused(small_run: Path, arguments: tuple[str, ...], message: str) -> None:
    run = arithscope.open(small_run)
    with pytest.raises(UserError, match=message):
        run.explain(*arguments)
    assert "model" not in vars(run)  # refused before a model is loaded


def test_an_operator_without_neurons(small_run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_run, tmp_path / "run"))
    changed(copy, lambda manifest: manifest["configuration"].update(operators=["+", "-", "/"]))
    with pytest.raises(UserError, match="found no neurons for /"):
        arithscope.open(copy).explain("6/3=")


def test_run_studies_a_model_into_a_folder(tmp_path: Path) -> None:
    settings = {"operators": "+", "max_operand": 12}
    run = arithscope.run("tiny-llama", tmp_path / "mine", ["accuracy"], **settings)
    assert run.stages == ["means", "accuracy"]
    assert len(run.accuracy.prompts) == 13**2
    before = (tmp_path / "mine" / "means" / "stage.json").stat().st_mtime_ns
    again = arithscope.run(run.model, str(tmp_path / "mine"), ["localize"], **settings)
    assert again.stages == ["means", "accuracy", "localize"]
    assert (tmp_path / "mine" / "means" / "stage.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="is not an operator"):
        arithscope.run(run.model, tmp_path / "other", operators="%")
    assert not (tmp_path / "other").exists()

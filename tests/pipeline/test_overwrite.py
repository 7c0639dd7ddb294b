"""A finished run is never replaced without being asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import arithscope
from arithscope.errors import UserError
from arithscope.models.load import load
from arithscope.pipeline.store import RunFolder
from tests.command_line import call, error_message
from tests.pipeline.tree import tree

ARGUMENTS = ("--operators", "+", "--stages", "accuracy", "--max-operand", "4")


@pytest.fixture(scope="module")
def finished(saved_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert call("run", saved_model, *ARGUMENTS, "--out", folder) == 0
    return folder


@pytest.fixture
def kept(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--max-operand", "5"], "max operand 4, not 5"),
        (["--operators", "+-"], "operators +, not +-"),
        (["--seed", "1"], "seed 0, not 1"),
        (["--dtype", "bfloat16"], "dtype float32, not bfloat16"),
        (["--max-operand", "5", "--stages", "means"], "max operand 4, not 5"),
    ],
)
def test_results_of_other_settings_are_replaced_only_if_asked(
    saved_model: Path, kept: Path, changed: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(kept)
    command = ["run", saved_model, *ARGUMENTS, *changed, "--out", kept]
    message = error_message(capsys, *command)
    assert f"{kept} holds results of other settings ({named}" in message
    assert "choose another --out, or replace them with --overwrite" in message
    assert tree(kept) == before
    assert call(*command, "--overwrite") == 0
    assert tree(kept) != before
    assert call(*command) == (2 if "means" in changed else 0)  # accuracy of the earlier settings is left


def test_results_of_another_version_are_kept(
    saved_model: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("pipeline.store", "pipeline.runner"):
        monkeypatch.setattr(f"arithscope.{module}.__version__", "99.0")
    message = error_message(capsys, "run", saved_model, *ARGUMENTS, "--out", kept)
    assert f"(version {arithscope.__version__}, not 99.0)" in message


def test_results_without_a_manifest_are_kept_too(
    saved_model: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kept / "manifest.json").unlink()
    message = error_message(capsys, "run", saved_model, *ARGUMENTS, "--seed", "1", "--out", kept)
    assert "holds results of other settings; choose" in message


def test_settings_that_no_stored_stage_reads_may_change(saved_model: Path, kept: Path) -> None:
    record = (kept / "accuracy" / "stage.json").read_text()
    assert call("run", saved_model, *ARGUMENTS, "--preset", "paper", "--out", kept) == 0
    assert (kept / "accuracy" / "stage.json").read_text() == record


def test_the_library_asks_too(saved_model: Path, kept: Path) -> None:
    model = load(str(saved_model))
    with pytest.raises(UserError, match=r"overwrite=True"):
        arithscope.run(model, kept, ["accuracy"], operators="+", max_operand=3)
    run = arithscope.run(model, kept, ["accuracy"], overwrite=True, operators="+", max_operand=3)
    assert run.stratum.op1 == (0, 3)


def test_each_choice_of_settings_has_a_default_folder(
    saved_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the documentation, one after the other, keep all results."""
    monkeypatch.chdir(tmp_path)
    for options in ([], ["--seed", "1"], ["--preset", "paper"], []):
        assert call("run", saved_model, *ARGUMENTS, *options) == 0
    made = {folder.name: json.loads((folder / "manifest.json").read_text()) for folder in Path("runs").iterdir()}
    assert set(made) == {"small-llama-add-max4", "small-llama-add-max4-seed1", "small-llama-add-max4-paper"}
    assert {m["configuration"]["seed"] for m in made.values()} == {0, 1}
    assert all(RunFolder(Path("runs") / name).is_done("accuracy") for name in made)

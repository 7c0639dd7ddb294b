"""A run agrees with its recomputation; one whose numbers were changed does not, and `verify` reports where."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arithscope.models.load import load
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import RunFolder, RunWriter
from arithscope.results.run import Run
from arithscope.utils.progress import Silent
from arithscope.verify.verify import Verdict, Verification, conclusion
from tests.command_line import call
from tests.conftest import smaller

BY_NAME = {stage.name: stage for stage in all_stages()}
# What is changed in each stage: columns of tables, and arrays.
CHANGED: dict[str, list[str]] = {
    "means": ["heads", "neurons", "p_answer"],
    "accuracy": ["prompts.p_answer", "table.value"],
    "localize": ["effects.value", "effects.low", "effects.high", "effects.median"],
    "answer_layers": ["curve.value", "curve.high"],
    "circuit": ["curve.value", "selection.value", "heads.value", "table.low", "union.value"],
    "probe": ["table.value"],
    "heads": ["attention", "isolation.value", "roles.attention"],
    "mlp0": ["effects.value", "curve.value", "reduced.value", "selection.value", "tuning"],
    "neurons": ["effects.value", "effects.std", "effects.mean_abs", "measures.rank_correlation"],
    "topk": ["curve.value", "selection.value", "top.value", "table.value"],
    "patterns": ["activations", "logits", "neurons.alignment"],
    "classify": [
        "matches.score",
        "best.neg_log10_p",
        "neurons.fdr",
        "neurons.coverage_raw",
        "neurons.best_score",
        "names.fit",
        "strongest.neg_log10_p",
        "shares.value",
        "thresholds.value",
        "table.value",
    ],
    "overlap": ["table.iou", "by_layer.iou", "unique.value"],
    "knockout": ["accuracy.value", "differences.value", "table.value", "signs.p"],
    "prompt_knockout": ["curve.value", "differences.value", "table.value"],
    "failures": ["prompts.raw_contribution", "regression.value"],
    "bag": ["curve.value", "above_floor.value"],
    "example": [
        "answers.p_answer",
        "parts.contribution",
        "heuristics.contribution",
        "neurons.activation",
        "logits",
        "total",
        "probabilities",
    ],
    "training": ["accuracy.value", "mutual_share.value"],
    "stability": ["values.value", "table.largest", "choices.value"],
}
MEANS = {"heads": "mean heads", "neurons": "mean neurons"}


def reported(stage: str) -> list[str]:
    """How the changes of a stage are reported."""
    names = [name.replace(".", ", ") for name in CHANGED[stage]]
    return [MEANS.get(name, name) for name in names] if stage == "means" else names


def moved(x: Any, field: str) -> Any:
    """Other numbers of about the same size; those of a derived table are changed in the other direction."""
    return (x * 0.9 - 0.02 if field in ("table", "roles") else x * 1.2 + 0.5).astype(x.dtype)


def with_changes(result: Any, changes: Sequence[str]) -> Any:
    new: dict[str, Any] = {}
    for name in changes:
        field, _, column = name.partition(".")
        value = new.get(field, getattr(result, field))
        new[field] = value.assign(**{column: moved(value[column], field)}) if column else moved(value, field)
    return replace(result, **new)


def rewrite(folder: Path, stage: str, change: Callable[[Any], Any]) -> None:
    """Change the numbers of a stage, with checksums, summary and manifest as if they had been computed."""
    there = RunFolder(folder)
    keys = {name: there.key(name) or "" for name in there.manifest["stages"] if (folder / name).exists()}
    changed = change(there.read(BY_NAME[stage].result))
    RunWriter(folder, keys).write(stage, changed, 1.0)


@pytest.fixture(scope="module")
def model() -> Any:
    return load("tiny-llama")


def verification(folder: Path, model: Any, seed: int = 0) -> Verification:
    opened = Run(folder)
    opened.__dict__["model"] = model  # loaded once for all tests
    return Verification(opened, seed)


def everything(checked: Verification) -> list[Verdict]:
    return [*checked.check_files(), *checked.check_model(), *checked.check_stages(Silent())]


def test_every_stage_has_changes_to_try() -> None:
    assert {stage.name for stage in all_stages() if not stage.joins_steps} == set(CHANGED)


def test_an_unchanged_run_agrees(small_run: Path, model: Any) -> None:
    checked = verification(small_run, model)
    verdicts = everything(checked)
    assert [v.about for v in verdicts] == ["files", "summary", "model", "keys", *checked.run.stages]
    assert {v.about: v.text for v in verdicts if not v.agrees} == {}
    # No sum or difference up to 40 is wrong, so that there is little to say about failures.
    assert all(v.numbers > 20 for v in verdicts[4:] if v.about != "failures")


def assert_changes_are_reported(stage: str, checked: Verification, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change is reported, though all files have the right checksums."""
    monkeypatch.setattr("arithscope.verify.verify.SHOWN", 1000)
    assert [v.text for v in checked.check_files() if not v.agrees] == []
    verdict = checked.check_stage(BY_NAME[stage])
    assert not verdict.agrees
    assert verdict.text.startswith("DIFFERS: ")
    assert [what for what in reported(stage) if what not in verdict.text] == []


def test_changed_failures_are_noticed(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of products, some are wrong."""
    run_stages(model, smaller(("*",), 40, topk=16, neurons="atp"), tmp_path, ["failures"], Silent())
    agrees = verification(tmp_path, model).check_stage(BY_NAME["failures"])
    assert agrees.agrees
    assert agrees.numbers > 20
    rewrite(tmp_path, "failures", lambda result: with_changes(result, CHANGED["failures"]))
    assert_changes_are_reported("failures", verification(tmp_path, model), monkeypatch)


@pytest.mark.parametrize("stage", [s.name for s in all_stages() if not s.on_request and s.name != "failures"])
def test_changed_numbers_are_noticed(
    stage: str, small_run: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even though checksums, summary and manifest fit them."""
    folder = shutil.copytree(small_run, tmp_path / "run")
    rewrite(folder, stage, lambda result: with_changes(result, CHANGED[stage]))
    assert_changes_are_reported(stage, verification(folder, model), monkeypatch)


def test_changed_choices_are_noticed(small_run: Path, model: Any, tmp_path: Path) -> None:
    """Choices must follow from the stored numbers."""
    folder = shutil.copytree(small_run, tmp_path / "run")
    rewrite(folder, "probe", lambda probe: replace(probe, first_answer_layer=probe.first_answer_layer - 1))
    rewrite(folder, "overlap", lambda overlap: replace(overlap, operators=["+"]))
    checked = verification(folder, model)
    assert "DIFFERS: first_answer_layer (stored " in checked.check_stage(BY_NAME["probe"]).text
    assert "operators (stored ['+'], now ['+', '-'])" in checked.check_stage(BY_NAME["overlap"]).text
    rewrite(folder, "accuracy", lambda accuracy: replace(accuracy, prompts=accuracy.prompts.iloc[:-1]))
    output = verification(folder, model).check_stage(BY_NAME["accuracy"]).text
    assert "the number of rows of prompts (stored " in output


def test_incomplete_tables_are_noticed(small_run: Path, model: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    rewrite(folder, "topk", lambda topk: replace(topk, curve=topk.curve.iloc[:1]))
    verdict = verification(folder, model).check_stage(BY_NAME["topk"])
    assert not verdict.agrees
    assert "(stored no such row, now a row)" in verdict.text
    rewrite(folder, "topk", lambda topk: replace(topk, curve=topk.curve.iloc[:0]))
    assert not verification(folder, model).check_stage(BY_NAME["topk"]).agrees


def test_changes_of_the_training_stage_are_noticed(
    small_training_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, final = shutil.copytree(small_training_run, tmp_path / "run"), load("tiny-pythia")
    assert verification(folder, final).check_stage(BY_NAME["training"]).agrees
    rewrite(folder, "training", lambda result: with_changes(result, CHANGED["training"]))
    assert_changes_are_reported("training", verification(folder, final), monkeypatch)
    shutil.rmtree(folder / "checkpoints")
    assert "cannot be checked. There is no run at" in verification(folder, final).check_stage(BY_NAME["training"]).text


@pytest.mark.slow
def test_checkpoints_verify(small_training_run: Path) -> None:
    """Each is a run that uses some results of the final model's run."""
    for name in ("step-00000", "step-01500"):
        checked = verification(small_training_run / "checkpoints" / name, load(f"tiny-pythia@{name}"))
        assert {v.about: v.text for v in everything(checked) if not v.agrees} == {}


@pytest.mark.parametrize("neurons", [pytest.param("exact", marks=pytest.mark.slow), "atp+exact"])
def test_the_hand_built_model_verifies(neurons: str, saved_adder: Path, tmp_path: Path) -> None:
    """With several samples, and with both ways of measuring neurons. Some of its tables have no rows."""
    settings = smaller(("+",), 12, neurons=neurons)
    run_stages(load(str(saved_adder)), settings, tmp_path / "run", None, Silent())
    for seed in ("0", "1", "2"):
        assert call("verify", tmp_path / "run", "--seed", seed) == 0


def test_exact_effects_of_neurons_verify(adder_run: Path, saved_adder: Path) -> None:
    """Only exact runs compare attribution methods."""
    assert len(RunFolder(adder_run).read(BY_NAME["neurons"].result).agreement)
    verdict = verification(adder_run, load(str(saved_adder))).check_stage(BY_NAME["neurons"])
    assert verdict.agrees, verdict.text


@pytest.fixture(scope="module")
def two_stages(saved_adder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is quick to verify; do not write to it."""
    folder = tmp_path_factory.mktemp("runs") / "two stages"
    run_stages(load(str(saved_adder)), smaller(("+",), 12), folder, ["accuracy"], Silent())
    return folder


def test_the_verify_command(two_stages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", two_stages) == 0
    output = capsys.readouterr()
    first = [line.split()[:2] for line in output.out.splitlines()[:-1]]
    assert first == [[name, "agrees:"] for name in ("files", "summary", "model", "keys", "means", "accuracy")]
    assert "files            agrees: no file of 2 stages has changed since it was written\n" in output.out
    assert re.search(r"\naccuracy +agrees: recomputed .*; [\d,]+ numbers compared; none differs\n", output.out)
    assert re.search(r"\nThe run agrees with what was recomputed: [\d,]+ numbers of 2 stages compared\.\n$", output.out)
    assert "verify: 2 to do" in output.err


def test_the_verify_command_reports_differences(
    two_stages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(two_stages, tmp_path / "run")
    rewrite(folder, "accuracy", lambda result: with_changes(result, ["table.value"]))
    assert call("verify", folder) == 1
    output = capsys.readouterr()
    assert re.search(
        r"accuracy +DIFFERS: table, value of row \d+ \(stored 0\.\d+, now 0\.\d+, and 8 more\)", output.out
    )
    assert "means            agrees" in output.out
    assert output.err.splitlines()[-1].endswith("The run differs from what was recomputed; see line accuracy.")


def test_conclusions_of_one_and_of_several() -> None:
    one, other = Verdict("means", False, "", 1), Verdict("files", False, "")
    assert (
        conclusion([replace(one, agrees=True)], 1)
        == "The run agrees with what was recomputed: 1 number of 1 stage compared."
    )
    assert conclusion([one], 1).endswith("; see line means.")
    assert conclusion([other, one], 1).endswith("; see lines files and means.")


def test_damaged_files_are_noticed(two_stages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(two_stages, tmp_path / "run")
    table = folder / "accuracy" / "table.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    assert call("verify", folder) == 1
    output = capsys.readouterr().out
    assert "files            DIFFERS: accuracy/table.parquet has changed since it was written" in output
    assert "accuracy         DIFFERS: it cannot be checked" in output
    shutil.rmtree(folder / "accuracy")
    assert call("verify", folder) == 1
    assert "files            DIFFERS: the stage accuracy is done, but its folder is missing" in capsys.readouterr().out


def test_a_changed_summary_or_manifest_is_noticed(
    two_stages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(two_stages, tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    summary["accuracy"]["+"]["accuracy"]["value"] = 0.5
    (folder / "summary.json").write_text(json.dumps(summary))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["configuration"]["seed"] = 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert call("verify", folder) == 1
    output = capsys.readouterr().out
    assert "summary          DIFFERS: summary.json" in output
    assert "keys             DIFFERS: accuracy was computed from something else" in output


def test_a_run_of_another_version(two_stages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its keys differ, but its numbers can be verified."""
    folder = shutil.copytree(two_stages, tmp_path / "run")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["version"] = "0.3.0"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert call("verify", folder) == 0
    assert "they depend on the version, and the run is from 0.3.0, while this is " in capsys.readouterr().out


def test_bad_arguments_are_refused(
    two_stages: Path, saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, output in (
        ([two_stages, "--model", saved_model], "is not the model of the run"),
        ([two_stages, "--seed", "-1"], "--seed -1 is negative"),
        ([tmp_path], "There is no run"),
    ):
        assert call("verify", *arguments) == 2
        assert output in capsys.readouterr().err
    folder = shutil.copytree(two_stages, tmp_path / "run")
    manifest = json.loads((folder / "manifest.json").read_text())
    for sizes, output in (
        ("many", "says about samples"),
        ({"discovery": 5, "evaluation": 5, "lunch": 1}, "cannot be read"),
    ):
        manifest["configuration"]["sizes"] = sizes
        (folder / "manifest.json").write_text(json.dumps(manifest))
        assert call("verify", folder) == 2
        assert output in capsys.readouterr().err
    manifest["stages"] = {}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert call("verify", folder) == 2
    assert "nothing to verify" in capsys.readouterr().err

"""Following a model through training: runs of checkpoints that resume, and the curves computed from them."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pandas as pd
import pytest
import torch

from arithscope.errors import UserError
from arithscope.experiments.training import LAST, Training
from arithscope.figures.registry import all_figures
from arithscope.models.load import load
from arithscope.models.model import Model
from arithscope.models.sources import list_checkpoints, select_checkpoints
from arithscope.pipeline.store import RunFolder
from arithscope.pipeline.study import same_weights
from arithscope.report import figure_files
from tests.command_line import call, error_message
from tests.conftest import saved
from tests.hand_built import ADDING_LAYER, OPERANDS, copy_and_add


def changed(change: Any) -> Model:
    """The hand-built model with changed weights."""
    model = copy_and_add()
    hf_model = copy.deepcopy(model.hf_model)
    with torch.no_grad():
        change(hf_model)
    return Model(hf_model, model.tokenizer, model.identity)


def forget_half(hf_model: Any) -> None:
    """The neurons of sums whose first operand is 5 or more write nothing yet."""
    hf_model.transformer.h[ADDING_LAYER].mlp.c_proj.weight[5 * OPERANDS : OPERANDS**2] = 0


def never_right(hf_model: Any) -> None:
    hf_model.lm_head.weight.neg_()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adder with two earlier checkpoints; one is never right, one knows half of the sums."""
    folder = saved(copy_and_add(), tmp_path_factory.mktemp("models") / "adder")
    saved(changed(never_right), folder / "checkpoints" / "step-2")
    saved(changed(forget_half), folder / "checkpoints" / "step-10")
    return folder


ARGUMENTS = ("--max-operand", "9", "--operators", "+", "--neurons", "atp", "--stages", "accuracy")


@pytest.fixture(scope="module", autouse=True)
def few_figures() -> Iterator[None]:
    """Drawing all of them for every run would take minutes."""
    with pytest.MonkeyPatch.context() as patch:
        few = [spec for spec in all_figures() if spec.name in ("accuracy", "training")]
        patch.setattr(figure_files, "all_figures", lambda: few)
        yield


@pytest.fixture(scope="module")
def followed(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert call("run", trained, *ARGUMENTS, "--checkpoints", "all", "--out", out) == 0
    return out


def test_the_curves(followed: Path) -> None:
    training = RunFolder(followed).read(Training)
    assert training.checkpoints == ["step-2", "step-10", LAST]
    right = training.accuracy.set_index("checkpoint").value
    assert right["step-2"] == 0
    assert right["step-10"] == pytest.approx(0.5, abs=0.05)
    assert right[LAST] == 1
    # One that is never right has no circuit, and the final one is not compared with itself.
    assert set(training.present.checkpoint) == {"step-10"}
    assert set(training.faithfulness.checkpoint) == set(training.knockout.checkpoint) == {"step-10", LAST}
    earlier, final = (RunFolder(f) for f in (followed / "checkpoints" / "step-10", followed))
    pairs = []
    for run in (earlier, final):
        matches = pd.read_parquet(run.path / "classify" / "matches.parquet")
        pairs.append(set(zip(matches.layer, matches.neuron, matches.heuristic, strict=True)))
    raw = training.present[training.present.criterion == "raw"].iloc[0]
    assert raw.n == len(pairs[1])
    assert raw.value == pytest.approx(len(pairs[0] & pairs[1]) / len(pairs[1]))
    mutual = training.faithfulness.set_index(["checkpoint", "neurons", "measure"])
    kept = {(layer, n) for layer, n, _ in pairs[0] & pairs[1]}
    assert mutual.loc[("step-10", "raw_mutual", "accuracy")].kept == len(kept)
    assert set(training.knockout["size"]) == {5, 10, 25}


def test_the_summary_and_the_figure(followed: Path) -> None:
    summary = json.loads((followed / "summary.json").read_text())
    assert set(summary["training"]) >= {"+", "mean"}
    share = summary["training"]["+"]["raw_mutual_share"]
    table = RunFolder(followed).read(Training).faithfulness.set_index(["checkpoint", "neurons", "measure"])
    all_, mutual = (table.loc[("step-10", name, "faithfulness")].value for name in ("raw", "raw_mutual"))
    assert share["value"] == pytest.approx(mutual / all_)
    floor = table.loc[("step-10", "none", "faithfulness")].value
    above = summary["training"]["+"]["raw_mutual_share_above_floor"]
    assert above["value"] == pytest.approx((mutual - floor) / (all_ - floor))
    assert above["n"] == 1
    assert summary["training"]["+"]["first_knockout_at"] == "step-10"
    assert (followed / "figures" / "training.png").stat().st_size > 10_000


def test_checkpoints_use_the_choices_of_the_final_model(followed: Path) -> None:
    manifest = json.loads((followed / "checkpoints" / "step-10" / "manifest.json").read_text())
    final = json.loads((followed / "topk" / "stage.json").read_text())["values"]["k"]
    assert manifest["configuration"]["topk"] == final
    stages = "means accuracy neurons topk patterns classify bag prompt_knockout"
    assert list(manifest["stages"]) == stages.split()
    assert {s["status"] for s in manifest["stages"].values()} == {"done"}
    assert not (followed / "checkpoints" / "step-2" / "neurons").exists()


def test_nothing_is_computed_twice(trained: Path, followed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {f: f.stat().st_mtime_ns for f in followed.rglob("stage.json")}
    capsys.readouterr()
    assert call("run", trained, *ARGUMENTS, "--checkpoints", "all", "--out", followed) == 0
    started = [line for line in capsys.readouterr().err.splitlines() if " to do" in line]
    assert {line.partition(":")[0] for line in started} == {"self-check"}
    assert {f: f.stat().st_mtime_ns for f in followed.rglob("stage.json")} == before


def test_a_stopped_checkpoint_continues(trained: Path, followed: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(followed, tmp_path / "run"))
    shutil.rmtree(out / "checkpoints" / "step-10" / "bag")
    before = {f: f.stat().st_mtime_ns for f in out.rglob("stage.json")}
    assert call("run", trained, *ARGUMENTS, "--checkpoints", "all", "--out", out) == 0
    assert (out / "checkpoints" / "step-10" / "bag" / "stage.json").exists()
    # The numbers are the same, so the training stage stays too.
    assert all(f.stat().st_mtime_ns == time for f, time in before.items())


def test_other_checkpoints_give_other_curves(
    trained: Path, followed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(followed, tmp_path / "run"))
    assert call("run", trained, *ARGUMENTS, "--checkpoints", "step-10", "--out", out) == 2
    assert "also follows the checkpoint step-" in capsys.readouterr().err
    assert RunFolder(out).read(Training).checkpoints == RunFolder(followed).read(Training).checkpoints
    assert call("run", trained, *ARGUMENTS, "--checkpoints", "step-10", "--out", out, "--overwrite") == 0
    assert RunFolder(out).read(Training).checkpoints == ["step-10", LAST]
    assert call("run", trained, *ARGUMENTS, "--checkpoints", "all", "--out", out) == 0  # nothing is lost


def test_a_run_without_checkpoints_keeps_the_training_stage(trained: Path, followed: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(followed, tmp_path / "run"))
    before = json.loads((out / "summary.json").read_text())
    assert call("run", trained, *ARGUMENTS, "--out", out) == 0
    assert json.loads((out / "summary.json").read_text()) == before
    # With other settings it is stale: kept, but no longer part of the summary.
    assert call("run", trained, *ARGUMENTS, "--seed", "1", "--out", out, "--overwrite") == 0
    assert "training" not in json.loads((out / "summary.json").read_text())
    assert json.loads((out / "manifest.json").read_text())["stages"]["training"]["status"] == "stale"


def test_a_checkpoint_with_the_final_weights_is_not_an_earlier_one(
    trained: Path, followed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is a copy of the final model, one has its weights in several files; both are later than the earlier ones."""
    folder = Path(shutil.copytree(trained, tmp_path / "adder"))
    saved(copy_and_add(), folder / "checkpoints" / "step-20")
    in_parts = folder / "checkpoints" / "step-30"
    saved(copy_and_add(), in_parts)
    (in_parts / "model.safetensors").unlink()
    copy_and_add().hf_model.save_pretrained(in_parts, max_shard_size="1MB")
    assert len(list(in_parts.glob("*.safetensors"))) > 1
    out = Path(shutil.copytree(followed, tmp_path / "run"))
    capsys.readouterr()
    assert call("run", folder, *ARGUMENTS, "--checkpoints", "all", "--out", out) == 0
    shown = capsys.readouterr().err
    assert "checkpoint step-20 is the final model itself" in shown
    assert "checkpoint step-30 is the final model itself" in shown
    assert RunFolder(out).read(Training).checkpoints == ["step-2", "step-10", LAST]
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-10", "step-2"]


@pytest.mark.parametrize("kind", ["values", "dtype", "meta"])
def test_other_weights_are_not_the_same(kind: str) -> None:
    """A last bit, or the type of the numbers; and weights that are not in memory cannot be compared."""

    def change(hf_model: Any) -> None:
        if kind == "values":
            hf_model.lm_head.weight[-1, -1] = torch.nextafter(hf_model.lm_head.weight[-1, -1], torch.tensor(9.0))
        else:
            hf_model.to(torch.float16 if kind == "dtype" else "meta")

    final, other = copy_and_add(), changed(change)
    other.identity = replace(other.identity, weight_hash="other")
    assert not same_weights(final, other)
    assert not same_weights(other, final)
    again = changed(lambda hf_model: None)
    again.identity = other.identity
    assert same_weights(final, again)


def test_the_final_model_gets_only_the_stages_that_the_curves_need(followed: Path) -> None:
    assert not (followed / "mlp0").exists()
    assert not (followed / "knockout").exists()
    assert (followed / "bag" / "stage.json").exists()


def test_bad_checkpoints_are_refused(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    command = ("run", trained, "--max-operand", "9", "--operators", "+", "--out", out)
    assert "no checkpoint 'step-7'; choose from step-2, step-10" in error_message(
        capsys, *command, "--checkpoints", "step-7"
    )
    assert "No checkpoint was named" in error_message(capsys, *command, "--checkpoints", ",")
    assert "needs checkpoints" in error_message(capsys, *command, "--stages", "training")
    assert "has no checkpoints" in error_message(capsys, "run", "tiny-llama", "--checkpoints", "all", "--out", out)
    assert "is one checkpoint" in error_message(
        capsys, "run", "tiny-pythia@step-00375", "--checkpoints", "all", "--out", out
    )
    assert "no checkpoint 'step-7'" in error_message(capsys, "run", f"{trained}@step-7", *ARGUMENTS, "--out", out)
    assert not out.exists()


def test_a_folder_with_an_at_sign_in_its_name(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "me@home"))
    assert load(str(folder)).identity.revision == ""
    assert load(f"{folder}@step-10").identity.revision == "step-10"
    assert list_checkpoints(str(folder)) == ["step-2", "step-10"]


def test_checkpoints_are_listed_in_the_order_of_training(trained: Path) -> None:
    assert list_checkpoints(str(trained)) == ["step-2", "step-10"]
    assert list_checkpoints("tiny-pythia")[:2] == ["step-00000", "step-00375"]
    assert select_checkpoints(str(trained), "step-10, step-2") == ["step-2", "step-10"]


def test_revisions_of_a_hub_model(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        def list_repo_refs(self, name: str) -> Any:
            if name != "lab/model":
                raise OSError("no such repository")
            branches = [SimpleNamespace(name=n) for n in ("main", "step1000", "step16", "step143000")]
            return SimpleNamespace(branches=branches)

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    assert select_checkpoints("lab/model", "all") == ["step16", "step1000", "step143000"]
    with pytest.raises(UserError, match="no checkpoint 'main'"):
        select_checkpoints("lab/model", "main")
    with pytest.raises(UserError, match="cannot be listed"):
        select_checkpoints("lab/other", "all")

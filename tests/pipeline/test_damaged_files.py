"""Damaged files of a run: a new run makes them again; commands that only read report them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from arithscope.errors import UserError
from arithscope.models.load import load
from arithscope.pipeline import unit_cache
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import RunFolder
from arithscope.prompts import OPERATORS
from arithscope.report.figure_files import draw_figures, figures_to_draw
from arithscope.report.page import write_report
from arithscope.settings import Settings
from arithscope.utils.executor import LOCAL
from arithscope.utils.files import is_intact, with_checksum
from arithscope.utils.progress import Silent
from tests.command_line import error_message
from tests.conftest import smaller
from tests.families import small
from tests.faults import records, snapshot
from tests.units import Counting

RESULTS = {stage.name: stage.result for stage in all_stages()}


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 2
    path.write_bytes(content)


def _removed(path: Path) -> None:
    path.unlink()


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "emptied": _emptied,
    "halved": _halved,
    "one bit": _one_bit,
    "removed": _removed,
    "a folder": _a_folder,
}
SETTINGS = Settings(("+",), 3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages of a small random model."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_stages(small("llama", "sdpa"), SETTINGS, folder, ["accuracy"], Silent())
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_stage_is_computed_again(finished: Path, tmp_path: Path, damage: str) -> None:
    """That stage and no other."""
    files = sorted(p.relative_to(finished) for p in finished.glob("*/*") if p.is_file())
    assert len(files) == 9
    for file in files:
        folder = Path(shutil.copytree(finished, tmp_path / str(file).replace("/", "-")))
        before, [stage] = records(folder), file.parent.parts
        DAMAGES[damage](folder / file)
        with pytest.raises(UserError, match=f"no complete stage '{stage}'"):
            RunFolder(folder).read(RESULTS[stage])
        run_stages(small("llama", "sdpa"), SETTINGS, folder, ["accuracy"], Silent())
        assert snapshot(folder) == snapshot(finished), file
        assert {name for name, record in records(folder).items() if record != before.get(name)} <= {stage}


def test_a_file_in_the_place_of_a_stage_is_replaced(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(folder / "accuracy")
    (folder / "accuracy").touch()
    run_stages(small("llama", "sdpa"), SETTINGS, folder, ["accuracy"], Silent())
    assert snapshot(folder) == snapshot(finished)


def test_damage_to_any_file_of_any_stage_is_noticed(small_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_run, tmp_path / "run"))
    files = [p for p in sorted(folder.glob("[!.]*/*")) if p.is_file() and (p.parent / "stage.json").exists()]
    assert len({p.parent for p in files}) == len([s for s in all_stages() if not s.on_request])
    whole = tmp_path / "whole"
    for path in files:
        stage = path.parent.name
        path.rename(whole)
        for damage in DAMAGES.values():
            shutil.copyfile(whole, path)
            damage(path)
            assert not RunFolder(folder).has(stage), (path, damage)
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        whole.rename(path)
        assert RunFolder(folder).has(stage)


@pytest.mark.slow
def test_each_stage_of_a_whole_run_is_computed_again(small_run: Path, tmp_path: Path) -> None:
    """Only that stage: its result is the same as before, so stages that need it stay."""
    folder, model = Path(shutil.copytree(small_run, tmp_path / "run")), load("tiny-llama")
    settings, wanted = smaller(("+", "-"), 40, topk=64, neurons="atp"), snapshot(small_run)
    for i, stage in enumerate(s for s in all_stages() if not s.on_request):
        before = records(folder)
        files = sorted(p for p in (folder / stage.name).iterdir())
        list(DAMAGES.values())[i % len(DAMAGES)](files[i % len(files)])
        run_stages(model, settings, folder, None, Silent())
        assert snapshot(folder) == wanted, stage.name
        assert {name for name, record in records(folder).items() if record != before.get(name)} <= {stage.name}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_units_are_computed_again(finished: Path, tmp_path: Path, damage: str) -> None:
    model, folder = small("llama", "sdpa"), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_stages(model, SETTINGS, folder, ["accuracy"], Silent(), executor=Counting(LOCAL, 2))
    first, second = sorted((folder / unit_cache.FOLDER).rglob("*.safetensors"))
    DAMAGES[damage](first)
    assert unit_cache.read_unit(first) is None
    assert unit_cache.read_unit(second) is not None
    executor = Counting(LOCAL)
    run_stages(model, SETTINGS, folder, ["accuracy"], Silent(), executor=executor)
    assert executor.units == len(OPERATORS) - 1
    assert snapshot(folder) == snapshot(finished)


@pytest.mark.parametrize("damage", ["emptied", "halved", "a folder"])
def test_a_damaged_manifest_is_refused(finished: Path, tmp_path: Path, damage: str) -> None:
    """The run may be of another model; once the manifest is removed, the same command reuses the stages."""
    folder, path = Path(shutil.copytree(finished, tmp_path / "run")), tmp_path / "run" / "manifest.json"
    DAMAGES[damage](path)
    for attempt in (
        lambda: RunFolder(folder),
        lambda: run_stages(small("llama", "sdpa"), SETTINGS, folder, None, Silent()),
    ):
        with pytest.raises(
            UserError, match=r"manifest.json cannot be read \(.*\); remove that file and run the same command"
        ):
            attempt()
    path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(UserError, match=r"no run at .*: manifest.json is missing"):
        RunFolder(folder)
    before = records(folder)
    run_stages(small("llama", "sdpa"), SETTINGS, folder, ["accuracy"], Silent())
    assert snapshot(folder) == snapshot(finished)
    assert records(folder) == before


@pytest.mark.parametrize("damage", ["emptied", "halved", "one bit", "removed"])
def test_a_damaged_summary_is_written_again(finished: Path, tmp_path: Path, damage: str) -> None:
    """It is there for other programs only: arithscope reads the numbers from the records of the stages."""
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    DAMAGES[damage](folder / "summary.json")
    assert (
        RunFolder(folder).summary == RunFolder(finished).summary == json.loads((finished / "summary.json").read_text())
    )
    run_stages(small("llama", "sdpa"), SETTINGS, folder, ["accuracy"], Silent())
    assert snapshot(folder) == snapshot(finished)


def test_a_changed_number_in_a_record_is_noticed(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    path = folder / "accuracy" / "stage.json"
    record = json.loads(path.read_text())
    assert is_intact(record)
    assert is_intact(with_checksum({"a": [1, 0.1, None, "ü"]}))
    record["summary"]["+"]["accuracy"]["n"] += 1
    path.write_text(json.dumps(record))
    assert not RunFolder(folder).has("accuracy")
    with pytest.raises(UserError, match="no complete stage 'accuracy'"):
        _ = RunFolder(folder).summary


@pytest.fixture(scope="module")
def illustrated(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(finished, tmp_path_factory.mktemp("runs") / "illustrated"))
    draw_figures(RunFolder(folder), Silent())
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_figures_are_drawn_again(illustrated: Path, tmp_path: Path, damage: str) -> None:
    wanted = snapshot(illustrated)
    figures = sorted(p.name for p in (illustrated / "figures").iterdir())
    assert len(figures) == 3
    for i, name in enumerate(figures):
        folder = Path(shutil.copytree(illustrated, tmp_path / str(i)))
        assert not figures_to_draw(RunFolder(folder))
        DAMAGES[damage](folder / "figures" / name)
        assert figures_to_draw(RunFolder(folder)), name
        if damage != "a folder":  # which is not removed, but reported
            draw_figures(RunFolder(folder), Silent())
            assert snapshot(folder) == wanted, name
        write_report(RunFolder(folder))


def test_commands_that_read_a_damaged_run_report_it(
    small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(small_run, tmp_path / "run"))
    patterns, accuracy = folder / "patterns" / "activations.npy", folder / "accuracy" / "stage.json"
    _one_bit(patterns)
    _halved(folder / "classify" / "matches.parquet")
    top = RunFolder(folder).read(RESULTS["topk"]).top.iloc[0]
    assert "no complete stage 'classify'" in error_message(capsys, "explain", folder, "1+1=")
    message = error_message(capsys, "neuron", folder, str(top.layer), str(top.neuron))
    assert "no complete stage 'patterns'; run it again" in message
    _halved(accuracy)
    assert "stage.json cannot be read" in error_message(capsys, "compare", folder, small_run, "--out", tmp_path / "c")
    _emptied(folder / "manifest.json")
    for command in (("explain", folder, "1+1="), ("report", folder), ("explore", folder, "--no-browser")):
        assert "manifest.json cannot be read" in error_message(capsys, *command)

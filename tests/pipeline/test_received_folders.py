"""Run folders made by a stranger: nothing in them leads out of them, and no table takes more memory than there is."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy
from arithscope.explorer.runs import RunRegistry
from arithscope.pipeline import table_files
from arithscope.pipeline.store import RunFolder
from arithscope.pipeline.table_files import read_table
from arithscope.results.run import Run
from tests.command_line import call, error_message
from tests.conftest import saved
from tests.families import small
from tests.fuzz.test_runs import update_checksums
from tests.pipeline.tree import tree


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(small("llama", "sdpa"), tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert call("run", model, "--operators", "+", "--max-operand", "3", "--stages", "accuracy", "--out", folder) == 0
    return folder


@pytest.fixture
def received(finished: Path, tmp_path: Path) -> Path:
    """A run folder beside the folder `victim`, which holds what nobody may lose."""
    (tmp_path / "victim" / "thesis").mkdir(parents=True)
    (tmp_path / "victim" / "thesis" / "chapter.txt").write_text("precious")
    (tmp_path / "victim" / "notes.txt").write_text("precious")
    return Path(shutil.copytree(finished, tmp_path / "run"))


def run_again(model: Path, folder: Path, *options: str) -> list[str | Path]:
    """The same command as before, which computes the stage accuracy again."""
    shutil.rmtree(folder / "accuracy", ignore_errors=True)
    return ["run", model, "--operators", "+", "--max-operand", "3", "--stages", "accuracy", "--out", folder, *options]


@pytest.mark.parametrize(
    "place", [".units", ".units/accuracy", ".units/accuracy/key", "figures", "means", "checkpoints"]
)
def test_nothing_is_removed_or_written_through_a_link(
    model: Path, received: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    link, victim = received / place, received.parent / "victim"
    link.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(link, ignore_errors=True)
    link.symlink_to(victim)
    commands = (run_again(model, received), run_again(model, received, "--overwrite"), ["report", received])
    before = tree(received.parent)
    for command in commands:
        message = error_message(capsys, *command)
        assert f"{place} in {received} is a link, which could lead out of the folder; remove it" in message
        assert tree(received.parent) == before


@pytest.mark.parametrize("name", [".lock", ".manifest.json.tmp", "summary.json", "report.html", "accuracy/stage.json"])
@pytest.mark.parametrize("where", ["victim/notes.txt", "victim/new.txt"])
def test_no_file_is_written_through_a_link(
    model: Path, received: Path, name: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (received / name).unlink(missing_ok=True)
    (received / name).symlink_to(received.parent / where)
    commands = ["run", model, "--max-operand", "4", "--out", received, "--overwrite"], ["report", received]
    before = tree(received.parent)
    for command in commands:
        assert "is a link" in error_message(capsys, *command)
        assert tree(received.parent) == before


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o20600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("devices cannot be made here")


def _socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


KINDS: dict[str, Callable[[Path], None]] = {"named pipe": os.mkfifo, "device": _device, "socket": _socket}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["manifest.json", "accuracy/table.parquet", "figures/index.json", ".lock"])
def test_pipes_devices_and_sockets_are_refused(received: Path, kind: str, name: str) -> None:
    """Reading a named pipe would wait forever."""
    (received / name).unlink(missing_ok=True)
    KINDS[kind](received / name)
    problem = "manifest.json cannot be read" if name == "manifest.json" else f"is a {kind}, which could lead out"
    with pytest.raises(UserError, match=problem):
        RunFolder(received)


def test_a_hard_link_in_the_place_of_a_temporary_file_is_not_written_through(model: Path, received: Path) -> None:
    victim = received.parent / "victim" / "notes.txt"
    for name in (".manifest.json.tmp", ".report.html.tmp"):
        os.link(victim, received / name)
    assert call(*run_again(model, received)) == 0
    assert victim.read_text() == "precious"


def test_a_link_to_a_run_folder_is_a_run_folder(received: Path) -> None:
    link = received.parent / "link"
    link.symlink_to(received)
    assert Run(link).stages == Run(received).stages


def test_names_of_stages_are_not_paths(received: Path) -> None:
    outside = Path(shutil.copytree(received / "accuracy", received.parent / "outside"))
    manifest = json.loads((received / "manifest.json").read_text())
    for name in ("../outside", str(outside), "a/../../outside", "..", "", "accuracy/"):
        stages = {**manifest["stages"], name: {"status": "done"}}
        (received / "manifest.json").write_text(json.dumps({**manifest, "stages": stages}))
        with pytest.raises(UserError, match=r"what manifest.json says about stages cannot be right"):
            RunFolder(received)


def test_names_of_files_are_not_paths(received: Path) -> None:
    path = received / "accuracy" / "stage.json"
    record = json.loads(path.read_text())
    shutil.copy(received / "accuracy" / "table.parquet", received.parent / "table.parquet")
    record["files"] = {
        "../../table.parquet" if name == "table.parquet" else name: x for name, x in record["files"].items()
    }
    path.write_text(json.dumps({name: value for name, value in record.items() if name != "checksum"}))
    with pytest.raises(UserError, match="no complete stage 'accuracy'"):
        RunFolder(received).read(Accuracy)


def test_names_of_checkpoints_are_not_paths(received: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [served] = RunRegistry([Run(received)])
    monkeypatch.setattr(Run, "stages", ["training"])
    for name in ("../../outside", str(received), "..", ""):
        monkeypatch.setattr(Run, "training", SimpleNamespace(checkpoints=[name, "final"]), raising=False)
        with pytest.raises(UserError, match="is not the name of anything in"):
            _ = served.checkpoints
        served.__dict__.pop("checkpoints", None)


def repeated(path: Path, rows: int, **columns: Any) -> None:
    """Write a table with the same row many times, a million rows at a time, and each text only once."""
    block = min(rows, 1_000_000)
    table = pa.table({name: _repeated(value, block) for name, value in columns.items()})
    with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=False) as writer:
        for _ in range(rows // block):
            writer.write_table(table)


def _repeated(value: Any, rows: int) -> pa.Array:
    if isinstance(value, str):
        return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0), rows), [value])
    return pa.repeat(pa.scalar(value), rows)


def test_a_small_file_of_many_rows_is_refused(received: Path) -> None:
    path = received / "accuracy" / "prompts.parquet"
    repeated(path, 300_000_000, correct=True)
    assert path.stat().st_size < 7_000_000
    update_checksums(received / "accuracy")
    before = psutil.Process().memory_info().rss
    with pytest.raises(UserError, match=r"it has 300,000,000 rows, and no run writes more than 50,000,000"):
        RunFolder(received).read(Accuracy)
    assert psutil.Process().memory_info().rss - before < 2**28


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (1_000_000, {f"c{i}": 1 for i in range(40)}),
        (1_000_000, {"text": "x" * 100_000}),
        (300, {"numbers": [1] * 100_000}),
    ],
    ids=["columns", "text", "lists"],
)
def test_a_small_file_that_would_fill_the_memory_is_refused(
    tmp_path: Path, rows: int, columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "SHARE", 2000)
    repeated(tmp_path / "table.parquet", rows, **columns)
    with pytest.raises(ValueError, match=r"it takes [\d,.]+ GiB, but only [\d,.]+ GiB may be used"):
        read_table(tmp_path / "table.parquet")


def test_the_bytes_of_a_table_are_those_that_pandas_takes(tmp_path: Path) -> None:
    texts = pd.Series(["a", "bb", None, "ü" * 50] * 5000)
    table = pd.DataFrame({"text": texts, "number": np.arange(20_000), "share": np.linspace(0, 1, 20_000)})
    table["list"] = [[1, 2, 3]] * 20_000
    table.to_parquet(tmp_path / "table.parquet", index=False)
    written = sum(len(text.encode()) for text in texts.dropna()) + 8 * 20_000 * (1 + 1 + 1 + 3)
    assert table_files._bytes_in_memory(tmp_path / "table.parquet") == written
    pd.testing.assert_frame_equal(read_table(tmp_path / "table.parquet"), pd.read_parquet(tmp_path / "table.parquet"))


def test_empty_tables_are_read(tmp_path: Path) -> None:
    for table in (pd.DataFrame(), pd.DataFrame({"a": []}), pd.DataFrame({"a": pd.Series([], dtype=str)})):
        table.to_parquet(tmp_path / "table.parquet", index=False)
        pd.testing.assert_frame_equal(
            read_table(tmp_path / "table.parquet"), pd.read_parquet(tmp_path / "table.parquet")
        )


def test_a_run_continues_in_its_own_folder(model: Path, received: Path) -> None:
    """Everything that a run itself leaves behind is accepted."""
    assert call(*run_again(model, received)) == 0
    assert call("report", received) == 0

"""A disk that is really full, and a folder that really cannot be written to: one sentence, and later the same result."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from arithscope.errors import UserError
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import RunFolder
from arithscope.results.run import Run
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests.families import small
from tests.faults import is_complete, records, snapshot
from tests.test_cli import call, complaint

ASKED = Settings(("+",), 15)


def study(folder: Path) -> None:
    run_stages(small("llama", "sdpa"), ASKED, folder, ["accuracy"], Silent())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    study(folder)
    return folder


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A file system in memory, where one may be mounted."""
    folder.mkdir()
    asked = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    done = shutil.which("mount") and subprocess.run(asked, capture_output=True, check=False).returncode == 0
    if not done:
        pytest.skip("no file system may be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The limit that every process can set itself: what would make a file larger fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """For root, who may write anywhere, by a read-only mount over the folder; else by its permissions."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(0o755)
        return
    for options in (["--bind"], ["-o", "remount,bind,ro"]):
        done = subprocess.run(["mount", *options, str(folder), str(folder)], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip("nothing may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def refused(folder: Path, reason: str, attempt: Callable[[], None]) -> None:
    with pytest.raises(UserError) as told:
        attempt()
    assert str(told.value).startswith(f"Cannot write to {folder} (")
    assert reason in str(told.value)
    assert all(is_complete(folder / stage) for stage in records(folder))
    assert not [p for p in folder.rglob(".*") if p.suffix in (".tmp", ".old")]


def test_a_full_disk(tmp_path: Path, undisturbed: Path) -> None:
    """With ever more room, from none to enough. Libraries in other languages write here, too, and say it in their own words."""
    with mounted(tmp_path / "disk", "-o", "size=1M") as disk:
        folder, filler = disk / "run", disk / "filler"
        refusals = 0
        for left in range(0, 128, 8):  # kilobytes
            filler.write_bytes(b"")
            free = shutil.disk_usage(disk).free
            filler.write_bytes(b"x" * max(0, free - left * 1024))
            try:
                study(folder)
                break
            except UserError:
                refusals += 1
            if folder.exists() and (folder / "manifest.json").exists():
                refused(folder, "No space left on device", lambda: study(folder))
        filler.unlink()
        study(folder)
        assert refusals > 2
        assert snapshot(folder) == snapshot(undisturbed)


def test_files_that_may_not_grow(tmp_path: Path, undisturbed: Path) -> None:
    folder = tmp_path / "run"
    largest = max(file.stat().st_size for file in undisturbed.rglob("*.npy"))
    for size in (largest // 4, largest // 2, largest - 1):  # bytes
        with files_of_at_most(size):
            refused(folder, "File too large", lambda: study(folder))
    assert RunFolder(folder).manifest["stages"]["means"]["status"] == "failed"
    study(folder)
    assert snapshot(folder) == snapshot(undisturbed)


def test_a_new_run_in_a_folder_that_cannot_be_written_to(
    tmp_path: Path, saved_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shelf").mkdir()
    with unwritable(tmp_path / "shelf"):
        asked = ("run", saved_model, "--max-operand", "3", "--out", tmp_path / "shelf" / "run")
        said = complaint(capsys, *asked)
        assert f"Cannot write to {tmp_path / 'shelf' / 'run'} (" in said
        assert "choose another --out" in said
    assert not list((tmp_path / "shelf").iterdir())


def test_a_run_that_becomes_read_only(tmp_path: Path, undisturbed: Path) -> None:
    folder, stack = tmp_path / "run", []

    def after_stage(run: RunFolder) -> None:
        stack.append(unwritable(folder))
        stack[0].__enter__()

    try:
        with pytest.raises(UserError, match=r"Cannot write to .*; finished work is kept"):
            run_stages(small("llama", "sdpa"), ASKED, folder, ["accuracy"], Silent(), after_stage)
    finally:
        stack[0].__exit__(None, None, None)
    before = records(folder)
    assert list(before) == ["means"]
    study(folder)
    assert records(folder)["means"] == before["means"]
    assert snapshot(folder) == snapshot(undisturbed)


def test_reading_needs_no_writing(tmp_path: Path, small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(small_run, tmp_path / "run"))
    top = Run(folder).topk.top.iloc[0]
    with unwritable(folder):
        assert call("explain", folder, "1+1=") == 0
        assert call("neuron", folder, str(top.layer), str(top.neuron), "--operator", top.operator) == 0
        assert "Cannot write to" in complaint(capsys, "report", folder)
        assert call("compare", folder, small_run, "--out", tmp_path / "comparison") == 0
        assert Run(folder).summary.equals(Run(small_run).summary)
        fastapi = pytest.importorskip("fastapi.testclient")
        from arithscope.explorer.server import make_app

        client = fastapi.TestClient(make_app([Run(folder)], None))
        [name] = [found["name"] for found in client.get("/api/runs").json()["runs"]]
        assert client.get(f"/api/runs/{name}/results").status_code == 200
        assert client.get(f"/api/runs/{name}/neurons").status_code == 200
    assert snapshot(folder) == snapshot(small_run)

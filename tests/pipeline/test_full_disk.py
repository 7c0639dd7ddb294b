"""A disk that is really full, and a folder that is really read-only: one sentence, and later the same result."""

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
from tests.command_line import call, error_message
from tests.families import small
from tests.faults import is_complete, records, snapshot

SETTINGS = Settings(("+",), 15)


def study(folder: Path) -> None:
    run_stages(small("llama", "sdpa"), SETTINGS, folder, ["accuracy"], Silent())


@pytest.fixture(scope="module")
def without_faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    study(folder)
    return folder


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A file system in memory; skips the test if it cannot be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    done = shutil.which("mount") and subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not done:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A limit on file size: writing more fails."""
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
    """By permissions, or for root, who ignores them, by a read-only mount over the folder."""
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
            pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def assert_refused(folder: Path, reason: str, attempt: Callable[[], None]) -> None:
    """The attempt fails with one sentence, and every stage in the folder is complete."""
    with pytest.raises(UserError) as caught:
        attempt()
    assert str(caught.value).startswith(f"Cannot write to {folder} (")
    assert reason in str(caught.value)
    assert all(is_complete(folder / stage) for stage in records(folder))
    assert not [p for p in folder.rglob(".*") if p.suffix in (".tmp", ".old")]


def test_a_full_disk(tmp_path: Path, without_faults: Path) -> None:
    """With more and more room, from none to enough. Some files are written by libraries with error messages of their own."""
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
                assert_refused(folder, "No space left on device", lambda: study(folder))
        filler.unlink()
        study(folder)
        assert refusals > 2
        assert snapshot(folder) == snapshot(without_faults)


def test_a_limit_on_file_size(tmp_path: Path, without_faults: Path) -> None:
    folder = tmp_path / "run"
    largest = max(file.stat().st_size for file in without_faults.rglob("*.npy"))
    for size in (largest // 4, largest // 2, largest - 1):  # bytes
        with files_of_at_most(size):
            assert_refused(folder, "File too large", lambda: study(folder))
    assert RunFolder(folder).manifest["stages"]["means"]["status"] == "failed"
    study(folder)
    assert snapshot(folder) == snapshot(without_faults)


def test_a_new_run_in_a_read_only_folder(tmp_path: Path, saved_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "read-only").mkdir()
    with unwritable(tmp_path / "read-only"):
        out = tmp_path / "read-only" / "run"
        message = error_message(capsys, "run", saved_model, "--max-operand", "3", "--out", out)
        assert f"Cannot write to {out} (" in message
        assert "choose another --out" in message
    assert not list((tmp_path / "read-only").iterdir())


def test_a_run_that_becomes_read_only(tmp_path: Path, without_faults: Path) -> None:
    folder, stack = tmp_path / "run", []

    def after_stage(run: RunFolder) -> None:
        stack.append(unwritable(folder))
        stack[0].__enter__()

    try:
        with pytest.raises(UserError, match=r"Cannot write to .*; finished work is kept"):
            run_stages(small("llama", "sdpa"), SETTINGS, folder, ["accuracy"], Silent(), after_stage)
    finally:
        stack[0].__exit__(None, None, None)
    before = records(folder)
    assert list(before) == ["means"]
    study(folder)
    assert records(folder)["means"] == before["means"]
    assert snapshot(folder) == snapshot(without_faults)


def test_a_read_only_run_can_be_read(tmp_path: Path, small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(small_run, tmp_path / "run"))
    top = Run(folder).topk.top.iloc[0]
    with unwritable(folder):
        assert call("explain", folder, "1+1=") == 0
        assert call("neuron", folder, str(top.layer), str(top.neuron), "--operator", top.operator) == 0
        assert "Cannot write to" in error_message(capsys, "report", folder)
        assert call("compare", folder, small_run, "--out", tmp_path / "comparison") == 0
        assert Run(folder).summary.equals(Run(small_run).summary)
        fastapi = pytest.importorskip("fastapi.testclient")
        from arithscope.explorer.access import HostNames
        from arithscope.explorer.server import make_app

        app = make_app([Run(folder)], HostNames("127.0.0.1"))
        client = fastapi.TestClient(app, base_url="http://127.0.0.1")
        [name] = [found["name"] for found in client.get("/api/runs").json()["runs"]]
        assert client.get(f"/api/runs/{name}/results").status_code == 200
        assert client.get(f"/api/runs/{name}/neurons").status_code == 200
    assert snapshot(folder) == snapshot(small_run)

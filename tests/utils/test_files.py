"""Folders that appear complete or not at all, and locks that end with their process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from arithscope.pipeline.runner import run_stages
from arithscope.settings import Settings
from arithscope.utils.files import atomic_folder, locked, write_json
from arithscope.utils.progress import Silent
from tests.families import small


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="in the middle"), atomic_folder(tmp_path / "x") as folder:
        (folder / "half").write_text("1")
        raise RuntimeError("in the middle")
    assert list(tmp_path.iterdir()) == []
    for content in ("1", "2"):
        with atomic_folder(tmp_path / "x") as folder:
            (folder / "file").write_text(content)
    assert (tmp_path / "x" / "file").read_text() == "2"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_json_files_can_hold_any_text(tmp_path: Path) -> None:
    """Names of files that are not UTF-8 have surrogates."""
    value = {"name": "caf\udce9 \x1b\x9b\u202e ½"}
    write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == value


def test_the_lock_of_a_killed_process_does_not_block(tmp_path: Path) -> None:
    """The file stays, but the lock is released with the process."""
    code = "import sys, os; from arithscope.utils.files import locked\nfrom pathlib import Path\n"
    code += "with locked(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    assert (tmp_path / ".lock").exists()
    run_stages(small("llama", "sdpa"), Settings(("+",), 3), tmp_path, ["means"], Silent())


def test_child_processes_do_not_inherit_a_lock(tmp_path: Path) -> None:
    """A process that was started under the lock, and outlives its parent, does not hold it."""
    code = "import subprocess, sys; from arithscope.utils.files import locked\nfrom pathlib import Path\n"
    code += "with locked(Path(sys.argv[1])): print(subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3).pid)"
    child = int(subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True).stdout)
    assert psutil.pid_exists(child)
    with locked(tmp_path):
        os.kill(child, signal.SIGKILL)

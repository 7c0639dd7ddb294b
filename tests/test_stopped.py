"""Commands stopped by a signal, in real processes: nothing is left running, and the same command continues. And two
commands on one folder: the second is refused.

tests/test_killed.py stops a command at every single write.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime as real_datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from arithscope.pipeline import store
from arithscope.pipeline.runner import run_stages
from arithscope.settings import Settings
from arithscope.utils.files import locked
from arithscope.utils.progress import Bars, Lines, Silent
from tests.families import small
from tests.faults import snapshot, stored

STOPPED = "Stopped; run the same command again to continue.\n"
MAIN = "from arithscope.cli.app import main; print('begun', flush=True); main()"


def start(*arguments: str | Path, threads: int = 2) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def run_arguments(model: Path, out: Path, stages: str = "localize") -> list[str]:
    return ["run", str(model), "--max-operand", "20", "--operators", "+", "--stages", stages, "--out", str(out)]


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def stop(process: subprocess.Popen[str], number: int, times: int = 1) -> None:
    """Send a signal and check that the process and all its children end."""
    children = psutil.Process(process.pid).children(recursive=True)
    for i in range(times):
        if i:
            time.sleep(0.05)
        process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 128 + number, stderr
    assert stderr.endswith(STOPPED)
    assert "Traceback" not in stderr
    psutil.wait_procs(children, timeout=20)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def finish(*arguments: str | Path) -> None:
    process = start(*arguments)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr


def test_stopped_while_loading(tmp_path: Path, saved_adder: Path) -> None:
    process = start(*run_arguments(saved_adder, tmp_path / "run"))
    time.sleep(0.3)
    stop(process, signal.SIGINT)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_stopped_at_several_moments(tmp_path: Path, saved_adder: Path) -> None:
    """Inside a unit whose passes run in threads, while a process draws a figure, and after it; by one or two signals."""
    finish(*run_arguments(saved_adder, tmp_path / "undisturbed"))
    out = tmp_path / "run"

    def drawing() -> list[psutil.Process]:
        return [c for c in psutil.Process(process.pid).children() if "--multiprocessing-fork" in c.cmdline()]

    moments: list[tuple[Callable[[], object], int, int]] = [
        ((out / "manifest.json").exists, signal.SIGINT, 1),
        (lambda: any((out / ".units" / "means").rglob("*.safetensors")), signal.SIGINT, 2),
        ((out / "accuracy").exists, signal.SIGTERM, 1),
        (drawing, signal.SIGINT, 1),
        (lambda: any((out / ".units" / "localize").rglob("*.safetensors")), signal.SIGTERM, 2),
    ]
    for condition, number, times in moments:
        process = start(*run_arguments(saved_adder, out))
        wait_until(condition, process)
        stop(process, number, times)
    finish(*run_arguments(saved_adder, out))
    assert snapshot(out) == snapshot(tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_cluster_that_is_stopped_leaves_nothing_running(tmp_path: Path, saved_adder: Path) -> None:
    pytest.importorskip("ray")
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start(*run_arguments(saved_adder, tmp_path / "run"), "--cluster", "local")
        wait_until(lambda: any((tmp_path / "run" / ".units").rglob("*.safetensors")), process)
        stop(process, number)


@pytest.mark.slow
def test_two_at_once(tmp_path: Path, saved_model: Path) -> None:
    """While the first is running, a second run and a report are refused."""
    command = ["run", str(saved_model), "--max-operand", "20", "--operators", "+", "--stages", "accuracy"]
    out = tmp_path / "run"
    first = start(*command, "--out", out, threads=1)
    wait_until((out / "manifest.json").exists, first)
    first.send_signal(signal.SIGSTOP)  # so that it does not finish before the others start
    for arguments in ([*command, "--out", str(out)], ["report", str(out)]):
        second = start(*arguments, threads=1)
        _, stderr = second.communicate(timeout=120)
        assert second.returncode == 2
        assert "Traceback" not in stderr
        messages = [line for line in stderr.splitlines() if line.startswith("arithscope: ")]
        assert messages in (
            [f"arithscope: Another process is writing to {out}; wait for it or choose another folder."],
            [f"arithscope: There is no run at {out}: manifest.json is missing."],  # the report, if it comes too early
        )
    first.send_signal(signal.SIGCONT)
    _, stderr = first.communicate(timeout=300)
    assert first.returncode == 0, stderr
    run_stages(small("llama", "sdpa"), Settings(("+",), 20), tmp_path / "alone", ["accuracy"], Silent())
    assert stored(out)[0]["means"][0] == stored(tmp_path / "alone")[0]["means"][0]


def test_a_lock_that_a_killed_run_left_does_not_block(tmp_path: Path) -> None:
    """The file stays, but the lock is released with the process."""
    code = "import sys, os; from arithscope.utils.files import locked\nfrom pathlib import Path\n"
    code += "with locked(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    assert (tmp_path / ".lock").exists()
    run_stages(small("llama", "sdpa"), Settings(("+",), 3), tmp_path, ["means"], Silent())


def test_a_lock_is_not_inherited(tmp_path: Path) -> None:
    """A process that was started under the lock, and outlives the run, does not hold it."""
    code = "import subprocess, sys; from arithscope.utils.files import locked\nfrom pathlib import Path\n"
    code += "with locked(Path(sys.argv[1])): print(subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3).pid)"
    child = int(subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True).stdout)
    assert psutil.pid_exists(child)
    with locked(tmp_path):
        os.kill(child, signal.SIGKILL)


class Jumping:
    """A clock that jumps by decades."""

    years = (2026, 1971, 2099, 1999, 2300)

    def __init__(self) -> None:
        self.calls = 0

    def now(self, zone: Any) -> real_datetime:
        self.calls += 1
        return real_datetime(self.years[self.calls % len(self.years)], 1, 1, tzinfo=zone)


@pytest.mark.parametrize("progress", ["lines", "bars"])
def test_a_clock_that_jumps_during_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: str) -> None:
    from rich.console import Console

    model, settings, lines = small("llama", "sdpa"), Settings(("+",), 3), list[str]()
    run_stages(model, settings, tmp_path / "steady", ["accuracy"], Silent())
    clock, seconds = Jumping(), iter(range(10**9, 0, -(10**5)))
    monkeypatch.setattr(store, "datetime", clock)
    monkeypatch.setattr(time, "time", lambda: float(next(seconds)))
    shown = Lines(lines.append, every=0.0) if progress == "lines" else Bars(Console(force_terminal=True, quiet=True))
    folder = run_stages(model, settings, tmp_path / "jumping", ["accuracy"], shown)
    assert clock.calls > 3
    assert all(entry["seconds"] >= 0 for entry in folder.manifest["stages"].values() if entry["status"] == "done")
    assert not [line for line in lines if "-" in line.replace("means", "")]
    assert stored(tmp_path / "jumping") == stored(tmp_path / "steady")
    for path in (tmp_path / "jumping").rglob("*"):
        if path.is_file():
            os.utime(path, (0, 0))  # the age of files must not matter
    before = snapshot(tmp_path / "jumping")
    notes: list[str] = []
    run_stages(model, settings, tmp_path / "jumping", ["accuracy"], Lines(notes.append))
    assert sum("unchanged, not run again" in note for note in notes) == 2
    assert snapshot(tmp_path / "jumping") == before

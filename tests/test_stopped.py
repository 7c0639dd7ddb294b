"""Stopped by a signal, in real processes: nothing stays behind, and the same command goes on. And two at once: one is refused.

(tests/test_killed.py stops a command at every single write.)
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
from arithscope.utils.progress import Bars, Lines, Silent
from tests.families import small
from tests.faults import snapshot, stored

STOPPED = "Stopped; the same command goes on from here.\n"
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


def asked(model: Path, out: Path, stages: str = "localize") -> list[str]:
    return ["run", str(model), "--max-operand", "20", "--operators", "+", "--stages", stages, "--out", str(out)]


def until(happens: Callable[[], object], process: subprocess.Popen[str]) -> None:
    while not happens():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def stop(process: subprocess.Popen[str], number: int, times: int = 1) -> None:
    """Send a signal, and see that the process and all that it started end."""
    children = psutil.Process(process.pid).children(recursive=True)
    for i in range(times):
        if i:
            time.sleep(0.05)
        process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + number, said
    assert said.endswith(STOPPED)
    assert "Traceback" not in said
    psutil.wait_procs(children, timeout=20)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def finish(*arguments: str | Path) -> None:
    process = start(*arguments)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said


def test_stopped_while_loading(tmp_path: Path, saved_adder: Path) -> None:
    process = start(*asked(saved_adder, tmp_path / "run"))
    time.sleep(0.3)
    stop(process, signal.SIGINT)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_stopped_at_several_moments(tmp_path: Path, saved_adder: Path) -> None:
    """In a unit whose passes run in threads, while a process draws a figure, and behind it; once, twice, by the system."""
    finish(*asked(saved_adder, tmp_path / "undisturbed"))
    out = tmp_path / "run"

    def draws() -> list[psutil.Process]:
        return [c for c in psutil.Process(process.pid).children() if "arithscope.report.figure_workers" in c.cmdline()]

    moments: list[tuple[Callable[[], object], int, int]] = [
        ((out / "manifest.json").exists, signal.SIGINT, 1),
        (lambda: any((out / ".units" / "means").rglob("*.safetensors")), signal.SIGINT, 2),
        ((out / "accuracy").exists, signal.SIGTERM, 1),
        (draws, signal.SIGINT, 1),
        (lambda: any((out / ".units" / "localize").rglob("*.safetensors")), signal.SIGTERM, 2),
    ]
    for happens, number, times in moments:
        process = start(*asked(saved_adder, out))
        until(happens, process)
        stop(process, number, times)
    finish(*asked(saved_adder, out))
    assert snapshot(out) == snapshot(tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_cluster_that_is_stopped_leaves_nothing_running(tmp_path: Path, saved_adder: Path) -> None:
    pytest.importorskip("ray")
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start(*asked(saved_adder, tmp_path / "run"), "--cluster", "local")
        until(lambda: any((tmp_path / "run" / ".units").rglob("*.safetensors")), process)
        stop(process, number)


@pytest.mark.slow
def test_two_at_once(tmp_path: Path, saved_model: Path) -> None:
    """The first is in the middle of its work; the second is refused, and so is a report."""
    command = ["run", str(saved_model), "--max-operand", "20", "--operators", "+", "--stages", "accuracy"]
    out = tmp_path / "run"
    first = start(*command, "--out", out, threads=1)
    until((out / "manifest.json").exists, first)
    first.send_signal(signal.SIGSTOP)  # so that it does not get done before the others are there
    for arguments in ([*command, "--out", str(out)], ["report", str(out)]):
        second = start(*arguments, threads=1)
        _, said = second.communicate(timeout=120)
        assert second.returncode == 2
        assert "Traceback" not in said
        told = [line for line in said.splitlines() if line.startswith("arithscope: ")]
        assert told in (
            [f"arithscope: Another process is writing to {out}; wait for it or choose another folder."],
            [
                f"arithscope: There is no run at {out}: manifest.json is missing."
            ],  # the report, if it is too early for it
        )
    first.send_signal(signal.SIGCONT)
    _, said = first.communicate(timeout=300)
    assert first.returncode == 0, said
    run_stages(small("llama", "sdpa"), Settings(("+",), 20), tmp_path / "alone", ["accuracy"], Silent())
    assert stored(out)[0]["means"][0] == stored(tmp_path / "alone")[0]["means"][0]


def test_a_lock_that_a_killed_run_left_does_not_block(tmp_path: Path) -> None:
    """The file stays; what locks is the process that holds it."""
    code = "import sys, os; from arithscope.utils.files import locked\nfrom pathlib import Path\n"
    code += "with locked(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    assert (tmp_path / ".lock").exists()
    run_stages(small("llama", "sdpa"), Settings(("+",), 3), tmp_path, ["means"], Silent())


class Jumping:
    """A clock that someone sets to and fro, by decades."""

    years = (2026, 1971, 2099, 1999, 2300)

    def __init__(self) -> None:
        self.calls = 0

    def now(self, zone: Any) -> real_datetime:
        self.calls += 1
        return real_datetime(self.years[self.calls % len(self.years)], 1, 1, tzinfo=zone)


@pytest.mark.parametrize("progress", ["lines", "bars"])
def test_a_clock_that_is_set_while_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: str
) -> None:
    from rich.console import Console

    model, settings, said = small("llama", "sdpa"), Settings(("+",), 3), list[str]()
    run_stages(model, settings, tmp_path / "steady", ["accuracy"], Silent())
    clock, seconds = Jumping(), iter(range(10**9, 0, -(10**5)))
    monkeypatch.setattr(store, "datetime", clock)
    monkeypatch.setattr(time, "time", lambda: float(next(seconds)))
    shown = Lines(said.append, every=0.0) if progress == "lines" else Bars(Console(force_terminal=True, quiet=True))
    folder = run_stages(model, settings, tmp_path / "jumping", ["accuracy"], shown)
    assert clock.calls > 3
    assert all(entry["seconds"] >= 0 for entry in folder.manifest["stages"].values() if entry["status"] == "done")
    assert not [line for line in said if "-" in line.replace("means", "")]
    assert stored(tmp_path / "jumping") == stored(tmp_path / "steady")
    for path in (tmp_path / "jumping").rglob("*"):
        if path.is_file():
            os.utime(path, (0, 0))  # how old files are decides nothing
    before = snapshot(tmp_path / "jumping")
    notes: list[str] = []
    run_stages(model, settings, tmp_path / "jumping", ["accuracy"], Lines(notes.append))
    assert sum("nothing has changed" in note for note in notes) == 2
    assert snapshot(tmp_path / "jumping") == before

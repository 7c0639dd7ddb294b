"""Commands stopped by a signal, in real processes: no child process survives, and the same command continues.

tests/pipeline/test_killed.py stops a command at every single write.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from arithscope.__main__ import main as entry_point
from arithscope.pipeline.runner import run_stages
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from arithscope.utils.signals import SIGNALS, stop_on_signals
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


def stop(process: subprocess.Popen[str], number: int, times: int = 1, message: str = STOPPED) -> None:
    """Send a signal and check that the process and all its children end."""
    children = psutil.Process(process.pid).children(recursive=True)
    for i in range(times):
        if i:
            time.sleep(0.05)
        process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 128 + number, stderr
    assert stderr.endswith(message)
    assert "Traceback" not in stderr
    psutil.wait_procs(children, timeout=20)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def finish(*arguments: str | Path) -> None:
    process = start(*arguments)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr


def test_no_task_begins_after_a_swallowed_signal() -> None:
    """Libraries may ignore KeyboardInterrupt; compiled modules do while they are imported."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with stop_on_signals():
            Silent().task("before", 1)
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                Silent().task("after", 1)
        Silent().task("of the next command", 1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_stopped_while_loading(tmp_path: Path, saved_adder: Path) -> None:
    process = start(*run_arguments(saved_adder, tmp_path / "run"))
    time.sleep(0.3)
    stop(process, signal.SIGINT)
    assert not (tmp_path / "run").exists()


def test_only_commands_that_resume_promise_to(saved_adder: Path) -> None:
    process = start("doctor", saved_adder)
    time.sleep(0.3)
    stop(process, signal.SIGINT, message="Stopped.\n")


def test_stopped_while_the_command_line_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "arithscope.cli.app", Interrupted())
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    with pytest.raises(SystemExit, match="130"):
        entry_point()
    assert capsys.readouterr().err == "Stopped.\n"
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"  # the user's
    monkeypatch.delenv("OMP_WAIT_POLICY")
    with pytest.raises(SystemExit, match="130"):
        entry_point()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.slow
def test_a_stopped_run_continues_to_the_same_result(tmp_path: Path, saved_adder: Path) -> None:
    """Stopped by one or two signals: inside a unit whose passes run in threads, while a process draws a figure, and later."""
    finish(*run_arguments(saved_adder, tmp_path / "uninterrupted"))
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
    assert snapshot(out) == snapshot(tmp_path / "uninterrupted")


@pytest.mark.slow
def test_a_stopped_cluster_leaves_no_process_running(tmp_path: Path, saved_adder: Path) -> None:
    pytest.importorskip("ray")
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start(*run_arguments(saved_adder, tmp_path / "run"), "--cluster", "local")
        wait_until(lambda: any((tmp_path / "run" / ".units").rglob("*.safetensors")), process)
        stop(process, number)


@pytest.mark.slow
def test_a_second_command_on_the_same_folder_is_refused(tmp_path: Path, saved_model: Path) -> None:
    """While a run is going on, a second run and a report are refused."""
    command = ["run", str(saved_model), "--max-operand", "20", "--operators", "+", "--stages", "accuracy"]
    out = tmp_path / "run"
    first = start(*command, "--out", out, threads=1)
    wait_until((out / "manifest.json").exists, first)
    first.send_signal(signal.SIGSTOP)  # it must not finish before the others start
    for arguments in ([*command, "--out", str(out)], ["report", str(out)]):
        second = start(*arguments, threads=1)
        _, stderr = second.communicate(timeout=120)
        assert second.returncode == 2
        assert "Traceback" not in stderr
        messages = [line for line in stderr.splitlines() if line.startswith("arithscope: ")]
        assert messages in (
            [f"arithscope: Another process is writing to {out}; wait for it or choose another folder."],
            [f"arithscope: There is no run at {out}: manifest.json is missing."],  # the report, if it starts too early
        )
    first.send_signal(signal.SIGCONT)
    _, stderr = first.communicate(timeout=300)
    assert first.returncode == 0, stderr
    run_stages(small("llama", "sdpa"), Settings(("+",), 20), tmp_path / "alone", ["accuracy"], Silent())
    assert stored(out)[0]["means"][0] == stored(tmp_path / "alone")[0]["means"][0]

"""Killed at any moment, or refused by the system at any write, a command goes on to what an undisturbed one comes to."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import saved
from tests.faults import FAULTS, KILL, REFUSALS, Case, at_every_point
from tests.hand_built import copy_and_add
from tests.training.test_loop import RECIPE

RUN = """
import sys
from arithscope.cli.app import main
main(["run", sys.argv[2], "--max-operand", "9", "--operators", "+", "--stages", sys.argv[3], "--out", sys.argv[1]])
"""


def start(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(code: str, *arguments: object) -> int:
    process = start(code, *arguments)
    _, error = process.communicate(timeout=300)
    assert b"Traceback" not in error, error.decode()
    return process.returncode


def summary(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.slow
def test_kill_at_random_moments(tmp_path: Path, saved_adder: Path) -> None:
    """Each time a little after another stage was stored: while its figures are drawn, or during the next stage."""
    asked = (saved_adder, "heads")
    assert finish(RUN, tmp_path / "undisturbed", *asked) == 0
    moments, folder = random.Random(0), tmp_path / "run"
    for stage in ("means", "accuracy", "localize", "circuit"):
        process = start(RUN, folder, *asked)
        while process.poll() is None and not (folder / stage).exists():
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert finish(RUN, folder, *asked) == 0
    assert summary(folder) == summary(tmp_path / "undisturbed")
    assert {p.name for p in folder.iterdir()} == {p.name for p in (tmp_path / "undisturbed").iterdir()}
    figures = [{p.name: p.read_bytes() for p in (f / "figures").iterdir()} for f in (folder, tmp_path / "undisturbed")]
    assert figures[0] == figures[1]


def check(found: list[Case], least: int) -> None:
    """`least`: how many points there must be, or else nothing was tried."""
    assert len(found) >= least
    for case in found:
        assert case.survived, case
        if case.fault in REFUSALS and case.code != 0:
            assert "out (" in case.said, case  # the folder, then the reason
        if case.fault != KILL:
            removing = case.point.startswith(("unlink", "rmdir"))
            assert not case.leftovers or removing or case.fault in ("read-only", "two Ctrl-C"), case


RUN_MEANS = ("--max-operand", "2", "--operators", "+", "--stages", "means", "--out", "OUT")


def test_killed_at_every_fifth_point(tmp_path: Path, saved_model: Path) -> None:
    check(at_every_point(["run", saved_model, *RUN_MEANS], tmp_path, [KILL], [saved_model], every=5), 12)


def test_refused_or_stopped_at_some_points(tmp_path: Path, saved_model: Path) -> None:
    check(at_every_point(["run", saved_model, *RUN_MEANS], tmp_path, FAULTS[1:], [saved_model], every=16), 24)


@pytest.mark.slow
def test_every_fault_at_every_point(tmp_path: Path, saved_model: Path) -> None:
    found = at_every_point(["run", saved_model, *RUN_MEANS], tmp_path, FAULTS, [saved_model])
    check(found, 60 * len(FAULTS))
    struck = {case.point.split()[0] for case in found}
    assert struck == {"mkdir", "open", "close", "fsync", "replace", "safetensors", "unlink", "rmdir"}


@pytest.mark.slow
def test_stages_with_figures_at_every_point(tmp_path: Path, saved_adder: Path) -> None:
    """Parts, tables, figures and the report."""
    asked = ("run", saved_adder, "--max-operand", "4", "--operators", "+", "--stages", "localize", "--out", "OUT")
    check(at_every_point(asked, tmp_path, models=[saved_adder]), 500)


@pytest.mark.slow
def test_report_and_comparison_at_every_point(tmp_path: Path, small_run: Path) -> None:
    """The report of a run that has a few of its stages, hence some figures to draw; and comparing it with another."""
    few = tmp_path / "few"
    keep = ("manifest.json", "summary.json", "means", "accuracy", "localize")
    few.mkdir()
    for name in keep:
        subprocess.run(["cp", "-r", str(small_run / name), str(few / name)], check=True)
    check(at_every_point(["report", "OUT"], tmp_path / "report", before=few), 50)
    check(at_every_point(["compare", few, few, "--out", "OUT"], tmp_path / "compare"), 50)


@pytest.mark.slow
def test_training_at_every_point(tmp_path: Path) -> None:
    recipe = tmp_path / "toy.toml"
    recipe.write_text(RECIPE.replace("steps = 60", "steps = 4").replace("checkpoints = 3", "checkpoints = 2"))
    check(at_every_point(["train", recipe, "--device", "cpu", "--out", "OUT"], tmp_path / "cases"), 100)


@pytest.mark.slow
def test_checkpoints_killed_at_every_point(tmp_path: Path) -> None:
    """Sub-runs below the run. That many points would take an hour: every seventh."""
    folder = saved(copy_and_add(), tmp_path / "adder")
    saved(copy_and_add(), folder / "checkpoints" / "step-1")
    asked = ("--max-operand", "3", "--operators", "+", "--neurons", "atp", "--stages", "accuracy")
    command = ["run", folder, *asked, "--checkpoints", "all", "--out", "OUT"]
    models = [folder, f"{folder}@step-1"]
    check(at_every_point(command, tmp_path / "cases", [KILL, "disk full"], models, every=7), 100)

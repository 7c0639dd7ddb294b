"""A command that is killed or stopped at any moment, or whose writes fail, ends with the same result when run again."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from arithscope.pipeline.runner import run_stages
from arithscope.utils.progress import Silent
from tests.conftest import saved, smaller
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
def test_killed_at_random_moments(tmp_path: Path, saved_adder: Path) -> None:
    """Each time shortly after another stage was stored: while its figures are drawn, or during the next stage."""
    arguments = (saved_adder, "heads")
    assert finish(RUN, tmp_path / "uninterrupted", *arguments) == 0
    moments, folder = random.Random(0), tmp_path / "run"
    for stage in ("means", "accuracy", "localize", "circuit"):
        process = start(RUN, folder, *arguments)
        while process.poll() is None and not (folder / stage).exists():
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert finish(RUN, folder, *arguments) == 0
    assert summary(folder) == summary(tmp_path / "uninterrupted")
    assert {p.name for p in folder.iterdir()} == {p.name for p in (tmp_path / "uninterrupted").iterdir()}
    figures = [
        {p.name: p.read_bytes() for p in (f / "figures").iterdir()} for f in (folder, tmp_path / "uninterrupted")
    ]
    assert figures[0] == figures[1]


def assert_all_recover(found: list[Case], least: int) -> None:
    """Every case recovered; there must be at least `least`, else too little was tried."""
    assert len(found) >= least
    for case in found:
        assert case.survived, case
        if case.fault in REFUSALS and case.code != 0:
            assert re.search(r"/out(/checkpoints/\S+)? \(", case.stderr), case  # the folder, then the reason
        if case.fault != KILL:
            removing = case.point.startswith(("unlink", "rmdir"))
            assert not case.leftovers or removing or case.fault in ("read-only", "two Ctrl-C"), case


RUN_MEANS = ("--max-operand", "2", "--operators", "+", "--stages", "means", "--out", "OUT")


def test_every_fault_at_every_twenty_fourth_point(tmp_path: Path, saved_model: Path) -> None:
    found = at_every_point(["run", saved_model, *RUN_MEANS], tmp_path, FAULTS, [saved_model], every=24)
    assert_all_recover(found, 3 * len(FAULTS))


@pytest.mark.slow
def test_every_fault_at_every_point(tmp_path: Path, saved_model: Path) -> None:
    found = at_every_point(["run", saved_model, *RUN_MEANS], tmp_path, FAULTS, [saved_model])
    assert_all_recover(found, 60 * len(FAULTS))
    struck = {case.point.split()[0] for case in found}
    assert struck == {"mkdir", "open", "close", "fsync", "replace", "safetensors", "unlink", "rmdir"}


@pytest.mark.slow
def test_stages_with_figures_at_every_fifth_point(tmp_path: Path, saved_adder: Path) -> None:
    """Units, tables, figures and the report. All points would take more than half an hour."""
    command = ("run", saved_adder, "--max-operand", "4", "--operators", "+", "--stages", "localize", "--out", "OUT")
    assert_all_recover(at_every_point(command, tmp_path, models=[saved_adder], every=5), 100)


@pytest.mark.slow
def test_report_and_comparison_at_every_point(tmp_path: Path) -> None:
    """The report of a run with one figure to draw, and a comparison of that run with a copy of it."""
    few = tmp_path / "few"
    run_stages(copy_and_add(), smaller(("+",), 6), few, ["accuracy"], Silent())
    assert_all_recover(at_every_point(["report", "OUT"], tmp_path / "report", before=few), 50)
    other = shutil.copytree(few, tmp_path / "other")
    # A comparison is written beside OUT and takes its place in one step, so there is one point.
    found = at_every_point(["compare", few, other, "--out", "OUT"], tmp_path / "compare")
    assert_all_recover(found, len(FAULTS))


@pytest.mark.slow
def test_training_at_every_point(tmp_path: Path) -> None:
    recipe = tmp_path / "toy.toml"
    recipe.write_text(RECIPE.replace("steps = 60", "steps = 4").replace("checkpoints = 3", "checkpoints = 2"))
    assert_all_recover(at_every_point(["train", recipe, "--device", "cpu", "--out", "OUT"], tmp_path / "cases"), 100)


@pytest.mark.slow
def test_checkpoints_killed_at_eight_points(tmp_path: Path) -> None:
    """Runs of checkpoints inside a run. There are 1,500 points, and all figures are drawn again after each."""
    folder = saved(copy_and_add(), tmp_path / "adder")
    saved(copy_and_add(), folder / "checkpoints" / "step-1")
    settings = ("--max-operand", "3", "--operators", "+", "--neurons", "atp", "--stages", "accuracy")
    command = ["run", folder, *settings, "--checkpoints", "all", "--out", "OUT"]
    models = [folder, f"{folder}@step-1"]
    assert_all_recover(at_every_point(command, tmp_path / "cases", [KILL, "disk full"], models, every=197), 14)

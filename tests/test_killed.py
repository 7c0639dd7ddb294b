"""Killed at any moment, a run goes on to the same summary as one that was left alone."""

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

RUN = """
import sys
from arithscope.cli import main
main(["run", sys.argv[2], "--max-operand", "9", "--operators", "+", "--stages", sys.argv[3], "--out", sys.argv[1]])
"""
# The same, again and again, each time in a process that dies, without any clean-up, at the n-th time that something is put
# into its place on disk, and then in one that goes on from there; until there is no n-th time. Each is a fork of one that has
# imported everything, as imports take far longer than the run. Writes down how many died.
DIE_AT_EVERY_REPLACE = """
import os, sys
import arithscope.checkpoints, arithscope.report.page, arithscope.report.plates, arithscope.report.terminal
import arithscope.subject.load, transformers.models.llama.modeling_llama
from arithscope.cli import main

def run(folder, dies_at):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    replace, left = os.replace, [dies_at]
    def dying(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            os._exit(9)
        return replace(*args, **kwargs)
    os.replace = dying
    try:
        main(["run", sys.argv[2], "--max-operand", "9", "--operators", "+", "--stages", sys.argv[3], "--out", folder])
    except SystemExit as ended:
        os._exit(ended.code or 0)

deaths = 0
while (code := run(f"{sys.argv[1]}/{deaths}", deaths + 1)) == 9:
    assert run(f"{sys.argv[1]}/{deaths}", 0) == 0
    deaths += 1
assert code == 0
open(f"{sys.argv[1]}/deaths", "w").write(str(deaths))
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


def stored(folder: Path) -> Any:
    """Every stage's checksums and summary, and the statuses of all."""
    records = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/stage.json"))}
    status = {
        name: entry["status"] for name, entry in json.loads((folder / "manifest.json").read_text())["stages"].items()
    }
    return {name: (r["files"], r["summary"], r["key"]) for name, r in records.items()}, status, summary(folder)


def test_kill_at_every_write(tmp_path: Path, saved_model: Path) -> None:
    asked = (saved_model, "means")
    assert finish(RUN, tmp_path / "undisturbed", *asked) == 0
    assert finish(DIE_AT_EVERY_REPLACE, tmp_path, *asked) == 0
    deaths = int((tmp_path / "deaths").read_text())
    assert deaths > 5  # manifest, summary, stage record, stage folder and report at the least
    for n in range(deaths + 1):
        assert stored(tmp_path / str(n)) == stored(tmp_path / "undisturbed")
        assert (tmp_path / str(n) / "report.html").exists()

"""Whether the wheel works with other versions of Python and of the packages it needs.

For each environment named, the wheel is installed into a virtual environment, and some of the tests and a small study are run
with it. An environment is an interpreter and a choice of versions:

    tested   those of constraints.txt
    oldest   the oldest of each package that pyproject.toml allows
    newest   whatever pip installs by default

    python -m benchmarks.matrix python3.11:tested python3.11:oldest python3.13:newest [--record NAME]

Environments are kept in build/matrix. They take gigabytes, so they may be tried one at a time and removed: --record keeps
recorded rows of this version of arithscope, unless the same environment is tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from arithscope import __version__
from arithscope.errors import UserError
from benchmarks.record import ROOT, Table, machine, record, record_option, result_path

TESTS = [
    *(f"tests/models/test_{name}.py" for name in ("load", "tokenization", "hooks", "offload")),
    "tests/models/engine/test_replay.py",
    "tests/pipeline/test_store.py",
    "tests/pipeline/test_runner.py",
    "tests/test_examples.py",
]
KEPT = ROOT / "build" / "matrix"
TOOLS = ["pytest", "hypothesis"]
SMALL = ["--operators", "+-", "--max-operand", "30", "--topk", "8", "--neurons", "atp", "--out", "small"]
SHOWN = ["torch", "transformers", "numpy", "pandas", "pyarrow"]
COLUMNS = ["arithscope", "environment", "python", *SHOWN, "passed", "failed", "skipped", "small run"]


def oldest() -> list[str]:
    """The packages that arithscope needs, each at its lower bound."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    return [need.replace(">=", "==") for need in needs]


def ran(*words: str | Path, folder: Path = ROOT, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command without this process's PYTHONPATH. With `check`, a failure raises with the command's output."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(w) for w in words], cwd=folder, env=plain, capture_output=True, text=True)
    if check and done.returncode:
        raise UserError(f"{' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    return done


def made(interpreter: str, versions: str, wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel in it; returns its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        ran(interpreter, "-m", "venv", folder)
    wanted: dict[str, list[Any]] = {
        "tested": ["--constraint", ROOT / "constraints.txt"],
        "oldest": oldest(),
        "newest": ["--upgrade"],
    }
    if versions not in wanted:
        raise UserError(f"There are no versions {versions!r}; choose from {', '.join(wanted)}.")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir")
    ran(*pip, *TOOLS, *wanted[versions], wheel)
    ran(*pip, "--no-deps", "--force-reinstall", wheel)  # it may be another one of the same version
    return python


def tried(python: Path) -> dict[str, Any]:
    """The versions in an environment, the results of its tests, and whether a small study runs."""
    has = f"import json, platform; from importlib.metadata import version as v; found = [*map(v, {SHOWN})]; "
    has += "print(json.dumps([platform.python_version(), *found]))"
    with tempfile.TemporaryDirectory() as name:
        elsewhere = Path(name)
        found = json.loads(ran(python, "-c", has, folder=elsewhere).stdout)
        where = ran(python, "-c", "import arithscope; print(arithscope.__file__)").stdout
        if not Path(where).is_relative_to(python.parent.parent):
            raise UserError(f"The tests would import {where.strip()} instead of the wheel.")
        report = elsewhere / "tests.xml"
        tests = ran(
            python, "-m", "pytest", "-rf", "-p", "no:cacheprovider", f"--junit-xml={report}", *TESTS, check=False
        )
        print(tests.stdout[-4000:])
        if not report.is_file():
            raise UserError(f"The tests could not be started: {tests.stderr[-4000:]}")
        [suite] = ElementTree.parse(report).getroot().iter("testsuite")
        count = {word: int(suite.attrib[word]) for word in ("tests", "failures", "errors", "skipped")}
        failed = count["failures"] + count["errors"]
        study = ran(python.parent / "arithscope", "run", "tiny-llama", *SMALL, folder=elsewhere, check=False)
        done = study.returncode == 0 and (elsewhere / "small" / "report.html").is_file()
        if not done:
            print(study.stderr[-4000:])
    passed = count["tests"] - failed - count["skipped"]
    counted = {"passed": passed, "failed": failed, "skipped": count["skipped"], "small run": "yes" if done else "no"}
    return dict(zip(["python", *SHOWN], found, strict=True)) | counted


def earlier(name: str, again: set[str]) -> list[list[Any]]:
    """The rows of a result file that still hold: of this version, and of environments that are not tried again."""
    path = result_path(name)
    if not path.is_file():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))["tables"]["environments"]["rows"]
    return [row for row in rows if row[0] == __version__ and row[1] not in again]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="+", metavar="PYTHON:VERSIONS")
    record_option(parser)
    arguments = parser.parse_args()
    rows: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", scratch)
        [wheel] = Path(scratch).glob("*.whl")
        for environment in arguments.environments:
            interpreter, versions = environment.rsplit(":", 1)
            name = f"{Path(interpreter).name} {versions}"
            row = tried(made(interpreter, versions, wheel, KEPT / name.replace(" ", "-")))
            rows[name] = [{"arithscope": __version__, "environment": name, **row}[column] for column in COLUMNS]
            print(dict(zip(COLUMNS, rows[name], strict=True)))
    if arguments.record:
        kept = earlier(arguments.record, set(rows))
        notes = [
            "tests of loading, edits, replay, models on disk, run folders, studies and examples; a small study of all stages",
            "environments may have been tried one at a time",
        ]
        table = Table(COLUMNS, [*kept, *rows.values()])
        record(arguments.record, {"environments": table}, notes, machine())  # versions are in the rows


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))

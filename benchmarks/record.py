"""Result files: what a benchmark measured, with its command, the machine, the date and the versions of everything.

With `--record NAME` a benchmark writes benchmarks/results/NAME.json, from which `benchmarks/tables.py` fills tables in
documents. This needs no package beyond those that arithscope needs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.utils.files import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Table:
    """Columns, and rows as measured: plain numbers, texts, or None for no value."""

    columns: list[str]
    rows: list[list[Any]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} in a table of {len(self.columns)} columns: {row}")


def record(name: str, tables: Mapping[str, Table], notes: Sequence[str] = (), measured_on: str | None = None) -> Path:
    """Write what was measured to results/NAME.json.

    Args:
        name: Name of the result file.
        tables: Tables by the key under which documents show them.
        notes: What a reader must know about the measurement.
        measured_on: The machine, if it is not this one; versions are then not recorded.
    """
    result = {
        "name": name,
        "command": command(),
        "machine": machine() if measured_on is None else measured_on,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions() if measured_on is None else {},
        "notes": list(notes),
        "tables": {key: asdict(table) for key, table in tables.items()},
    }
    path = result_path(name)
    path.parent.mkdir(exist_ok=True)
    write_text(path, _folded(json.dumps(result, indent=2, ensure_ascii=False)) + "\n")
    print(f"Recorded in {os.path.relpath(path)}")
    return path


def record_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", metavar="NAME", help="also write what was measured to benchmarks/results/NAME.json")


def result_path(name: str) -> Path:
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise UserError(f"{name!r} is no name for a result file; use lowercase letters, digits and hyphens.")
    return RESULTS / f"{name}.json"


def command() -> str:
    """The command line that started this process, with `python` as the interpreter and paths relative to the repository."""
    return shlex.join(["python", *(word.removeprefix(f"{ROOT}{os.sep}") for word in sys.orig_argv[1:])])


def machine() -> str:
    """The GPUs if this process has used one, else the processor; nothing that identifies a single machine."""
    if torch.cuda.is_initialized():
        n = torch.cuda.device_count()
        return f"{'one' if n == 1 else n} {torch.cuda.get_device_name()}"
    threads = torch.get_num_threads()
    return f"{_processor()}, {os.cpu_count()} cores, {threads} thread{'s' if threads > 1 else ''}"


def _processor() -> str:
    """The processor's model name if Linux reports it, and its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.M)
    return f"{named[1].strip()} ({platform.machine()})" if named else platform.machine()


def versions() -> dict[str, str]:
    return {
        "arithscope": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def _folded(text: str) -> str:
    """Indented JSON with every list of plain values, such as a row, on a single line."""
    return re.sub(r"\[\n\s+([^\[\]]*?)\n\s+\]", lambda found: "[" + re.sub(r"\n\s+", " ", found[1]) + "]", text)

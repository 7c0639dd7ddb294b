"""Result files: what a benchmark measured, with its command, the machine, the date and the versions of everything.

A benchmark that is given `--record NAME` writes benchmarks/results/NAME.json, from which `benchmarks/tables.py` fills tables in
documents. It needs no more than the package itself does.
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
    """Columns and rows as they were measured: plain numbers, texts, or None where there is nothing."""

    columns: list[str]
    rows: list[list[Any]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} in a table of {len(self.columns)} columns: {row}")


def record(name: str, tables: Mapping[str, Table], notes: Sequence[str] = (), measured_on: str | None = None) -> Path:
    """Write what was measured, on this machine and with these versions unless another machine is named, to results/NAME.json;
    tables by a key that documents name them by."""
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
        raise UserError(f"{name!r} is no name for a result file; use small letters, digits and hyphens.")
    return RESULTS / f"{name}.json"


def command() -> str:
    """What was typed, whichever interpreter it was typed for; the repository's own files relative to it."""
    return shlex.join(["python", *(word.removeprefix(f"{ROOT}{os.sep}") for word in sys.orig_argv[1:])])


def machine() -> str:
    """The GPUs if this process has used one, else the processor; nothing that names one machine among its like."""
    if torch.cuda.is_initialized():
        n = torch.cuda.device_count()
        return f"{'one' if n == 1 else n} {torch.cuda.get_device_name()}"
    threads = torch.get_num_threads()
    return f"{_processor()}, {os.cpu_count()} cores, {threads} thread{'s' if threads > 1 else ''}"


def _processor() -> str:
    """As the processor calls itself, where Linux tells; else its kind."""
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
    """Indented JSON with every list of plain values, a row say, on a line of its own."""
    return re.sub(r"\[\n\s+([^\[\]]*?)\n\s+\]", lambda found: "[" + re.sub(r"\n\s+", " ", found[1]) + "]", text)

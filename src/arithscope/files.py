"""Writing so that a kill at any moment leaves either the old file or the new one, never half of one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A file to write, which takes its name (and the place of an older one) only once it is complete."""
    temporary = path.with_name(f".{path.name}.tmp")
    yield temporary
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name (and the place of an older one) only once it is complete."""
    temporary, old = path.with_name(f".{path.name}.tmp"), path.with_name(f".{path.name}.old")
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync(file)
        if path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    """Make sure that a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

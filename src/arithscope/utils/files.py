"""Writing so that a kill at any moment leaves either the old file or the new one, never half of one."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from arithscope.errors import UserError

LOCK = ".lock"
GOES_ON = "what is complete is kept, and the same command goes on from there once that is mended"


@contextmanager
def writing(folder: Path, what_then: str = GOES_ON) -> Iterator[None]:
    """Whatever the system says while something is written to a folder (that the disk is full, say) becomes a sentence."""
    try:
        yield
    except Exception as error:
        if (reason := _reason(error)) is None:
            raise
        raise UserError(f"Cannot write to {folder} ({reason}); {what_then}.") from error


def _reason(error: Exception) -> str | None:
    """What the system said, with the file's name where that is known; None if it said nothing."""
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        file = error.filename2 or error.filename
        said = error.strerror or " ".join(str(error).split())
        return f"{Path(os.fsdecode(file)).name}: {said}" if isinstance(file, str | bytes | os.PathLike) else said
    # Libraries in Rust raise errors of their own for it.
    found = re.search(r"([^:]+) \(os error \d+\)", str(error))
    return found[1].strip() if found else None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes that ask for the same from writing to a folder. It ends with the process, however that ends."""
    with writing(path, "choose another folder"):
        lock = open(path / LOCK, "a")  # noqa: SIM115 (held until the writing ends)
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"Another process is writing to {path}; wait for it or choose another folder.") from None
        yield


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A file to write, which takes its name (and the place of an older one) only once it is complete."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name (and the place of whatever was there) only once it is complete."""
    temporary, old = _beside(path)
    remove_leftovers(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync(file)
        if os.path.lexists(path):
            os.replace(path, old)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        remove(temporary)
    remove(old)


def remove_leftovers(path: Path) -> None:
    """Remove what a kill left of the making of a folder."""
    for leftover in _beside(path):
        remove(leftover)


def _beside(path: Path) -> tuple[Path, Path]:
    """Where a folder is filled, and where an older one goes."""
    return path.with_name(f".{path.name}.tmp"), path.with_name(f".{path.name}.old")


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        with suppress(OSError):
            path.unlink()


def checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """A record with a checksum over itself, as JSON."""
    return {**record, "checksum": _digest(record)}


def is_whole(record: dict[str, Any]) -> bool:
    """Whether a record is as it was when it was sealed. One that never was, as earlier versions wrote them, counts as whole."""
    rest = {name: value for name, value in record.items() if name != "checksum"}
    return "checksum" not in record or record["checksum"] == _digest(rest)


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    """Make sure that a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

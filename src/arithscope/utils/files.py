"""Paths as a user writes them; crash-safe files and folders: a kill at any moment leaves the old version or the new one, never
half of one; and folders that a stranger may have made: nothing in them is followed out of them."""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any

from arithscope.errors import UserError
from arithscope.utils.printing import printable

LOCK = ".lock"
PATIENCE = (
    1.0  # seconds to wait for a lock, which a process that was just forked from a killed run holds until it is replaced
)
CONTINUE = "finished work is kept; fix the problem and run the same command again to continue"


@contextmanager
def explain_write_errors(folder: Path, advice: str = CONTINUE) -> Iterator[None]:
    """Turn system errors while writing to `folder` (a full disk, for example) into a UserError."""
    try:
        yield
    except Exception as error:
        if (reason := _reason(error)) is None:
            raise
        raise UserError(f"Cannot write to {folder} ({reason}); {advice}.") from error


def _reason(error: Exception) -> str | None:
    """The system's message, with the file name if known; None if the error did not come from the system."""
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        file = error.filename2 or error.filename
        message = error.strerror or " ".join(str(error).split())
        return f"{Path(os.fsdecode(file)).name}: {message}" if isinstance(file, str | bytes | os.PathLike) else message
    match = re.search(r"([^:]+) \(os error \d+\)", str(error))  # raised by libraries written in Rust
    return match[1].strip() if match else None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's write lock, which the system releases when this process ends, even if it is killed. Raises UserError
    if another process holds it, the folder cannot be written to, or something in it leads out of it."""
    from filelock import FileLock, Timeout  # here, since every command imports this module and few lock anything

    refuse_links(folder)
    with explain_write_errors(folder, "choose another folder"):
        try:
            lock = FileLock(folder / LOCK, timeout=PATIENCE).acquire()
        except Timeout:
            raise UserError(f"Another process is writing to {folder}; wait for it or choose another folder.") from None
    with lock:
        yield


def refuse_links(folder: Path) -> None:
    """Raise UserError if a folder contains, at any depth, anything but files and folders: a link, for example, which could
    lead out of it. The folder itself may be a link."""
    todo = [folder]
    while todo:
        try:
            entries = list(os.scandir(todo.pop()))
        except FileNotFoundError:  # another process has just replaced it
            continue
        except OSError as error:
            raise UserError(f"{folder} cannot be read ({_reason(error)}); check its permissions.") from None
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                todo.append(Path(entry.path))
            elif not entry.is_file(follow_symlinks=False):
                _refuse_kind(Path(entry.path), folder)


def _refuse_kind(path: Path, folder: Path) -> None:
    """Raise UserError for something in a folder that is neither a file nor a folder, unless it is gone."""
    with suppress(FileNotFoundError):
        kinds = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
        problem = f"is {kinds.get(stat.S_IFMT(path.lstat().st_mode), 'a device')}, which could lead out of the folder"
        raise UserError(f"{path.relative_to(folder)} in {folder} {problem}; remove it, or put a copy in its place.")


def read_text(path: Path) -> str:
    """Content of a file. Raises OSError if it is not a file but, say, a link or a named pipe, which could block forever."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        return file.read()


def child(folder: Path, name: str) -> Path:
    """Path of something in a folder, by a name from a file. Raises UserError if the name leads out of the folder."""
    path = PurePath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
        raise UserError(f"{name[:80]!r} is not the name of anything in {folder}; the run is damaged.")
    return folder / path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; on success it replaces `path`, on failure it is removed."""
    temporary = path.with_name(f".{path.name}.tmp")
    remove(temporary)  # anything there was left by a killed process
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, printable(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; on success it replaces `path`, on failure it is removed."""
    temporary, old = remove_leftovers(path)
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


def remove_leftovers(path: Path) -> tuple[Path, Path]:
    """Remove what a killed `atomic_folder` left behind: the temporary folder and the old one, whose paths are returned."""
    temporary, old = path.with_name(f".{path.name}.tmp"), path.with_name(f".{path.name}.old")
    remove(temporary)
    remove(old)
    return temporary, old


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder; errors are ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        with suppress(OSError):
            path.unlink()


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def with_checksum(record: dict[str, Any]) -> dict[str, Any]:
    """A JSON record with a checksum of its content added."""
    return {**record, "checksum": hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()}


def is_intact(record: dict[str, Any]) -> bool:
    """Whether a record still matches its checksum. Records without one, from earlier versions, count as intact."""
    content = {name: value for name, value in record.items() if name != "checksum"}
    return "checksum" not in record or record["checksum"] == with_checksum(content)["checksum"]


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    windows = os.name == "nt"  # where folders cannot be flushed, and files only if they are open for writing
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_path(text: str | Path) -> Path:
    """Expand ~ in a path, which need not exist. Raises UserError if no file can have this path."""
    written = str(text)
    try:
        written.encode()  # a manifest can only store names that are valid text
        path = Path(written).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "not a valid file name"
        shown = ascii(written if len(written) <= 80 else written[:79] + "…")
        raise UserError(f"{shown} cannot be used as a path ({reason}); check the path.") from None
    if not written:
        raise UserError("A path is empty; name a file or a folder.")
    return path

"""Everything in a folder, to see whether anything has changed."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

Entry = tuple[int, str]


def tree(folder: Path, without: Path | None = None) -> dict[str, Entry]:
    """Kind, permissions and content of every file, folder, link and special file, by path; links are not followed."""
    found: dict[str, Entry] = {}
    todo = [folder]
    while todo:
        for entry in os.scandir(todo.pop()):
            path = Path(entry.path)
            if path == without:
                continue
            mode = path.lstat().st_mode
            content = ""
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISDIR(mode):
                todo.append(path)
            elif stat.S_ISREG(mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(folder))] = mode, content
    return found

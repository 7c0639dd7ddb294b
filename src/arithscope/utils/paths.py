"""Paths as a person writes them."""

from __future__ import annotations

from pathlib import Path

from arithscope.errors import UserError


def user_path(text: str | Path) -> Path:
    """A path with ~ filled in, whether something is there or not; refused if nothing can be there."""
    written = str(text)
    try:
        written.encode()  # names of files that are no text cannot be stored in a manifest
        path = Path(written).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "it is no name that a file can have"
        shown = ascii(written if len(written) <= 80 else written[:79] + "…")
        raise UserError(f"{shown} cannot be used as a path ({reason}); check the path.") from None
    if not written:
        raise UserError("A path is empty; name a file or a folder.")
    return path

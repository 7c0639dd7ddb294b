"""Paths as a user writes them."""

from pathlib import Path

from arithscope.errors import UserError


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

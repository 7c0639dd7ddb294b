"""The subjects that come with the package. Knows only files, so that it is quick to import."""

from __future__ import annotations

from pathlib import Path

from arithscope.errors import UserError

FOLDER = Path(__file__).resolve().parent.parent / "subjects"
DEFAULT = "tiny-llama"


def embedded_names() -> list[str]:
    return sorted(folder.name for folder in FOLDER.iterdir() if (folder / "config.json").is_file())


def checkpoints(name: str) -> list[str]:
    """Earlier stages of training that come with a subject, in order, for `name@step-…`."""
    return sorted(folder.parent.name for folder in (FOLDER / name).glob("checkpoints/*/config.json"))


def embedded_folder(name: str, checkpoint: str | None = None) -> Path:
    if checkpoint is None:
        return FOLDER / name
    if checkpoint not in checkpoints(name):
        known = ", ".join(checkpoints(name)) or "none"
        raise UserError(f"{name} has no checkpoint {checkpoint!r}; it has: {known}.")
    return FOLDER / name / "checkpoints" / checkpoint

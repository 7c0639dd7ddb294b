"""The subjects that come with the package. Knows only files, so that it is quick to import."""

from __future__ import annotations

from pathlib import Path

from arithscope.errors import UserError

FOLDER = Path(__file__).resolve().parent.parent / "pretrained"
DEFAULT = "tiny-llama"


def embedded_names() -> list[str]:
    return sorted(folder.name for folder in FOLDER.iterdir() if (folder / "config.json").is_file())


def checkpoint_folders(folder: Path) -> list[str]:
    """Earlier stages of training that lie beside a subject, for `name@step-…`."""
    return sorted(path.parent.name for path in folder.glob("checkpoints/*/config.json"))


def checkpoint_folder(folder: Path, checkpoint: str | None) -> Path:
    """Where a subject lies, or one of its checkpoints."""
    if checkpoint is None:
        return folder
    if checkpoint not in checkpoint_folders(folder):
        known = ", ".join(checkpoint_folders(folder)) or "none"
        raise UserError(f"{folder.name} has no checkpoint {checkpoint!r}; it has: {known}.")
    return folder / "checkpoints" / checkpoint

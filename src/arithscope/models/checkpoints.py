"""Earlier stages of a model's training: folders beside an embedded or local subject, revisions of a hub model."""

from __future__ import annotations

import re

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from arithscope.errors import UserError
from arithscope.models.sources import FOLDER, checkpoint_folders, embedded_names
from arithscope.utils.paths import user_path

ALL = "all"
MAIN = "main"  # the hub's name for the latest revision


def checkpoints_of(model: str) -> list[str]:
    """The names of a subject's checkpoints, in the order of training, each for `SUBJECT@NAME`."""
    if model in embedded_names():
        names = checkpoint_folders(FOLDER / model)
    elif user_path(model).exists():
        names = checkpoint_folders(user_path(model))
    else:
        names = _revisions(model)
    return sorted(names, key=_in_order)


def chosen_checkpoints(model: str, wanted: str) -> list[str]:
    """The names that `all`, or a list with commas between, stands for."""
    if "@" in model and not user_path(model).exists():
        raise UserError(f"{model} is one checkpoint; name the subject itself to follow its training.")
    known = checkpoints_of(model)
    if not known:
        raise UserError(f"{model} has no checkpoints; train one with checkpoints, or name a hub model with revisions.")
    asked = known if wanted == ALL else [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in asked if name not in known]
    if unknown or not asked:
        said = f"{model} has no checkpoint {unknown[0]!r}" if unknown else "No checkpoint was named"
        raise UserError(f"{said}; choose from {', '.join(known)}, or all.")
    return [name for name in known if name in asked]


def _revisions(model: str) -> list[str]:
    try:
        branches = HfApi().list_repo_refs(model).branches
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"The revisions of {model!r} could not be had from the model hub: {reason}") from None
    return [branch.name for branch in branches if branch.name != MAIN]


def _in_order(name: str) -> tuple[list[int], str]:
    """Numbers in names count as numbers: step2 comes before step10."""
    return [int(digits) for digits in re.findall(r"\d+", name)], name

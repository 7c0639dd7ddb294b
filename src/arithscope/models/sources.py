"""Where models come from: embedded models, folders, GGUF files and the model hub; and their checkpoints.

torch, transformers and huggingface_hub are imported only when needed, since every command imports this module.
"""

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path

from arithscope.errors import UserError
from arithscope.utils.files import user_path

FOLDER = Path(__file__).resolve().parent.parent / "pretrained"
DEFAULT = "tiny-llama"
RECIPE, TWIN = "recipe.toml", "twin.toml"  # how an embedded model was trained, and how its twin without penalty is
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


class ModelNotFound(UserError):
    """There is no model of that name on this machine; if it is a hub id, one could be downloaded."""

    def __init__(self, message: str, hub: bool = False):
        super().__init__(message)
        self.hub = hub


def embedded_names() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(folder.name for folder in FOLDER.iterdir() if (folder / CONFIG).is_file())


def embedded_recipes() -> dict[str, Path]:
    """Recipes that come with the package, by name: of each embedded model, and of its twin, which is not embedded."""
    recipes = {name: FOLDER / name / RECIPE for name in embedded_names()}
    twins = {f"{name}-twin": FOLDER / name / TWIN for name in embedded_names()}
    return recipes | {name: path for name, path in twins.items() if path.is_file()}


def local_checkpoints(folder: Path) -> list[str]:
    """Names of the checkpoints in a model's folder, for `name@step-…`."""
    return sorted(path.parent.name for path in folder.glob(f"checkpoints/*/{CONFIG}"))


def checkpoint_folder(folder: Path, checkpoint: str) -> Path:
    """Folder of a model's checkpoint. Raises UserError if there is none of that name."""
    known = local_checkpoints(folder)
    if checkpoint not in known:
        raise ModelNotFound(f"{folder.name} has no checkpoint {checkpoint!r}; it has: {', '.join(known) or 'none'}.")
    return folder / "checkpoints" / checkpoint


def list_checkpoints(model: str) -> list[str]:
    """A model's checkpoints in training order, for `MODEL@NAME`: folders of a local model, revisions of a hub model."""
    folder = FOLDER / model if model in embedded_names() else user_path(model)
    names = local_checkpoints(folder) if folder.exists() else _hub_revisions(model)
    # Numbers in names count as numbers: step2 comes before step10.
    return sorted(names, key=lambda name: ([int(digits) for digits in re.findall(r"\d+", name)], name))


def select_checkpoints(model: str, wanted: str) -> list[str]:
    """The checkpoints in a comma-separated list, or all of them for `all`, in training order."""
    if "@" in model and not user_path(model).exists():
        raise UserError(f"{model} is one checkpoint; name the model itself to follow its training.")
    known = list_checkpoints(model)
    if not known:
        raise UserError(f"{model} has no checkpoints; train one with checkpoints, or name a hub model with revisions.")
    chosen = known if wanted == "all" else [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        problem = f"{model} has no checkpoint {unknown[0]!r}" if unknown else "No checkpoint was named"
        raise UserError(f"{problem}; choose from {', '.join(known)}, or all.")
    return [name for name in known if name in chosen]


def _cached_folder(model: str, revision: str | None) -> Path:
    """Folder of a hub model in the local cache, which is named after the commit."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, CONFIG, revision=revision)
    except HFValidationError:
        raise ModelNotFound(f"{model!r} is neither a folder nor a hub id; check the name.") from None
    folder = Path(cached).parent if isinstance(cached, str) else None
    if folder is None or not any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir()):
        raise ModelNotFound(f"The hub model {model} has not been downloaded to this machine.", hub=True)
    return folder


def _hub_revisions(model: str) -> list[str]:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        branches = HfApi().list_repo_refs(model).branches
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"The revisions of {model!r} cannot be listed by the model hub: {reason}") from None
    return [branch.name for branch in branches if branch.name != "main"]  # the latest one is the model itself


@dataclass(frozen=True)
class ModelSource:
    """Location of a model's files."""

    name: str
    location: str  # a folder or a hub id
    revision: str | None
    gguf: str | None  # file name
    local: bool

    def folder(self) -> Path:
        """The folder of the files; for a hub model, its folder in the local cache, which is named after the commit."""
        if self.local:
            return Path(self.location)
        from transformers.utils import cached_file

        return Path(cached_file(self.location, CONFIG, revision=self.revision)).parent

    def weight_files(self) -> list[Path]:
        folder = self.folder()
        return [folder / self.gguf] if self.gguf is not None else sorted(folder.glob("*.safetensors"))

    def max_numbers(self) -> int:
        """Upper bound on parameters and buffer entries: what the files can hold, with room for computed tables."""
        if not self.local:
            return 10**13
        files = [f for f in self.folder().iterdir() if self.gguf in (None, f.name) and f.is_file()]
        return 2**30 + 8 * sum(f.stat().st_size for f in files)

    def check_index(self) -> None:
        """Refuse an index that names anything but safetensors files beside it: others would not be hashed."""
        folder = self.folder()
        if self.local and not (folder / WEIGHTS).exists() and (folder / INDEX).exists():
            names = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
            present = {file.name for file in self.weight_files()}
            if missing := [name for name in names if name not in present]:
                absent = f"there is no file {missing[0]!r} beside the index"
                raise UserError(f"The weights of {self.name} are incomplete: {absent}.")


def find_model(model: str, local_files_only: bool = False) -> ModelSource:
    """Locate an embedded model, a folder, a GGUF file or a hub id, optionally followed by `@` and a checkpoint.

    With `local_files_only`, a hub model is its folder in the local cache, and no other computer is contacted.
    """
    if local_files_only and re.match(r"[\\/]{2}|[\w+.-]+:[\\/]{2}", model):
        raise ModelNotFound(f"{model!r} is on another computer; name a model on this one.")
    if not model.strip():
        raise UserError(f"No model was named; use an embedded one ({', '.join(embedded_names())}) or a path.")
    base, revision = model, ""
    if "@" in model and not user_path(model).exists():
        base, _, revision = model.rpartition("@")
    path = FOLDER / base if base in embedded_names() else user_path(base)
    if path.is_dir():
        folder = checkpoint_folder(path, revision) if revision else path
        if not (folder / CONFIG).is_file():
            raise ModelNotFound(f"The folder {base} has no config.json; name a folder in Hugging Face format.")
        if special := [f for f in folder.iterdir() if f.exists() and not f.is_file() and not f.is_dir()]:
            raise UserError(f"{special[0]} is not a regular file (reading it may never end); remove it from the model.")
        return ModelSource(path.resolve().name, str(folder), revision or None, gguf=None, local=True)
    if path.is_file():
        if path.suffix != ".gguf":
            raise UserError(f"{base} is not a GGUF file; name one, or a folder in Hugging Face format.")
        if importlib.util.find_spec("gguf") is None:
            raise UserError("Reading a GGUF file needs the package gguf; run: pip install 'arithscope[quant]'.")
        return ModelSource(path.stem, str(path.parent), revision=None, gguf=path.name, local=True)
    if base.startswith((".", "/", "~")) or base.endswith(".gguf") or base.count("/") > 1:
        raise ModelNotFound(f"There is no folder or file {base!r}; check the path.")
    if local_files_only:
        folder = _cached_folder(base, revision or None)
        return ModelSource(base, str(folder), folder.name, gguf=None, local=True)
    return ModelSource(base, base, revision or None, gguf=None, local=False)

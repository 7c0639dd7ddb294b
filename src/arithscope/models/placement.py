"""Where a subject's files are: beside the package, in a folder, in a GGUF file, or on the model hub."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from arithscope.errors import UserError
from arithscope.models.sources import FOLDER, checkpoint_folder, embedded_names
from arithscope.utils.paths import user_path


@dataclass(frozen=True)
class ModelSource:
    """Where a subject's files are, and what it is called."""

    name: str
    source: str  # a folder, or a hub id
    revision: str | None
    gguf: str | None
    local: bool

    def folder(self) -> Path:
        """Where the files lie; those of a hub model, once fetched, in a folder of the hub's cache named after the commit."""
        if self.local:
            return Path(self.source)
        return Path(cached_file(self.source, CONFIG_NAME, revision=self.revision)).parent

    def weight_files(self) -> list[Path]:
        folder = self.folder()
        return [folder / self.gguf] if self.gguf is not None else sorted(folder.glob("*.safetensors"))

    def most_numbers(self) -> int:
        """How many numbers a model may have: no more than its files can hold, with room for tables that are computed."""
        if not self.local:
            return 10**13
        files = [f for f in self.folder().iterdir() if self.gguf in (None, f.name) and f.is_file()]
        return 2**30 + 8 * sum(f.stat().st_size for f in files)

    def check_index(self) -> None:
        """The parts of a model must be safetensors beside their index: others are not hashed, and can be anything."""
        folder = self.folder()
        if self.local and not (folder / SAFE_WEIGHTS_NAME).exists() and (folder / SAFE_WEIGHTS_INDEX_NAME).exists():
            found = json.loads((folder / SAFE_WEIGHTS_INDEX_NAME).read_text(encoding="utf-8"))["weight_map"].values()
            elsewhere = [name for name in found if name not in {file.name for file in self.weight_files()}]
            if elsewhere:
                raise UserError(
                    f"The weights of {self.name} are incomplete: there is no file {elsewhere[0]!r} beside its index."
                )


def find(model: str) -> ModelSource:
    """Where the files of an embedded subject, a folder, a GGUF file or a hub id are."""
    if not model.strip():
        raise UserError(f"No subject was named; use an embedded one ({', '.join(embedded_names())}) or a path.")
    whole = user_path(model)
    base, _, revision = (model, "", "") if whole.exists() or "@" not in model else model.rpartition("@")
    if base in embedded_names():
        folder = checkpoint_folder(FOLDER / base, revision or None)
        return ModelSource(base, str(folder), revision or None, None, True)
    path = user_path(base)
    if path.is_dir():
        folder = checkpoint_folder(path, revision or None)
        if not (folder / "config.json").is_file():
            raise UserError(f"The folder {base} holds no config.json; name a folder in Hugging Face format.")
        return ModelSource(path.resolve().name, str(folder), revision or None, None, True)
    if path.is_file():
        if path.suffix != ".gguf":
            raise UserError(f"{base} is a file, but not a GGUF file; name a folder in Hugging Face format.")
        if importlib.util.find_spec("gguf") is None:
            raise UserError("Reading a GGUF file needs the package gguf; run: pip install 'arithscope[quant]'.")
        return ModelSource(path.stem, str(path.parent), None, path.name, True)
    looks_like_a_path = base.startswith((".", "/", "~")) or base.endswith(".gguf") or base.count("/") > 1
    if looks_like_a_path:
        raise UserError(f"There is no folder or file {base!r}; check the path.")
    return ModelSource(base, base, revision or None, None, False)

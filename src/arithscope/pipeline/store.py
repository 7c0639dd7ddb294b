"""The run folder: everything a study found, readable with any parquet, safetensors and JSON reader.

    manifest.json          what was run on what: subject, versions, configuration, and each stage's status and seconds
    summary.json           every headline number: experiment, then operator
    <stage>/stage.json     what the stage was computed from (its key), its files with checksums, its summary
    <stage>/*.parquet      one table a dataframe
    <stage>/arrays.safetensors

A stage folder appears complete or not at all, and says itself what it was computed from; manifest and summary are
derived from the stage folders, so a kill at any moment loses at most the stage in work.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from safetensors.numpy import save_file

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.experiments.common.result import Result
from arithscope.pipeline.schema import check_manifest, is_record, schema_problem
from arithscope.utils.files import (
    LOCK,
    checksum,
    is_whole,
    locked,
    new_folder,
    remove_leftovers,
    sealed,
    write_json,
    writing,
)

SCHEMA = 1
R = TypeVar("R")


class SchemaMismatch(UserError):
    """A stage that is there, but is not what this version writes."""


class RunFolder:
    """A run folder, open for reading; `claim` opens one for writing."""

    def __init__(self, path: Path):
        self.path = path
        self._whole: set[str] = set()  # stages whose files were already compared with their checksums
        self.manifest = _read_json(path / "manifest.json", "run")
        schema = self.manifest.get("schema")
        if schema != SCHEMA:
            raise UserError(
                f"The run in {path} has schema {schema}, but this version of arithscope reads schema {SCHEMA}; "
                "choose another --out."
            )
        check_manifest(self.manifest, path)

    def has(self, stage: str, key: str | None = None) -> bool:
        """Whether a stage is there, whole, and (if a key is given) computed from exactly that."""
        try:
            record = json.loads((self.path / stage / "stage.json").read_text(encoding="utf-8"))
            if not is_record(record) or not is_whole(record) or (key is not None and record["key"] != key):
                return False
            if stage not in self._whole:
                if any(checksum(self.path / stage / name) != digest for name, digest in record["files"].items()):
                    return False
                self._whole.add(stage)
            return True
        except (OSError, ValueError, RecursionError):
            return False

    def is_done(self, stage: str) -> bool:
        """Whether a stage is there as the run's present settings want it: one left from other settings is not."""
        return self.manifest["stages"].get(stage, {}).get("status") == "done" and self.has(stage)

    def key(self, stage: str) -> str | None:
        """What a stage on disk was computed from; None if it is not there."""
        return _read_json(self.path / stage / "stage.json", "stage")["key"] if self.has(stage) else None

    def read(self, stage: str, kind: type[R]) -> R:
        """A stage's result, as the dataclass it was written from."""
        folder = self.path / stage
        if not self.has(stage):
            raise self._incomplete(stage)
        record = _read_json(folder / "stage.json", "stage")
        try:
            arrays = mapped_arrays(folder / "arrays.safetensors") if "arrays.safetensors" in record["files"] else {}
            values: dict[str, Any] = {**arrays, **record["values"]}
            for name in record["files"]:
                if name.endswith(".parquet"):
                    values[name.removesuffix(".parquet")] = pd.read_parquet(folder / name)
        except Exception as error:  # whatever the libraries make of files that are none
            wrong: str | None = f"it cannot be read ({' '.join(str(error).split())[:200]})"
        else:
            wrong = schema_problem(stage, kind, values)
        if wrong is not None:  # although its checksums are right
            raise SchemaMismatch(
                f"The stage {stage!r} of the run in {self.path} was written by another version of arithscope, or changed: "
                f"{wrong}; run it again to compute it."
            )
        return kind(**values)

    @property
    def summary(self) -> dict[str, Any]:
        """Every headline number of the stages that are done, from their own records, which are guarded by checksums."""
        found = {}
        for stage, entry in self.manifest["stages"].items():
            if entry.get("status") == "done":
                record = _read_json(self.path / stage / "stage.json", "stage")
                if not is_record(record) or not is_whole(record):
                    raise self._incomplete(stage)
                if record["summary"]:
                    found[stage] = record["summary"]
        return found

    def _incomplete(self, stage: str) -> UserError:
        return UserError(f"The run in {self.path} has no complete stage {stage!r}; run it again to compute it.")


class RunWriter(RunFolder):
    """A run folder that this process alone may write. `keys` says what each stage of the study must be computed from."""

    def __init__(self, path: Path, keys: dict[str, str]):
        super().__init__(path)
        self.keys = keys
        for stage in keys:
            remove_leftovers(path / stage)
        self.refresh()

    def is_done(self, stage: str) -> bool:
        return stage in self.keys and self.has(stage, self.keys[stage])

    def start(self, stage: str) -> None:
        self._note(stage, {"status": "running", "started": _now()})

    def fail(self, stage: str, reason: str) -> None:
        self._note(stage, {"status": "failed", "reason": reason})

    def write(self, stage: str, result: Result, seconds: float) -> None:
        """Store a finished stage, then bring manifest and summary up to date."""
        frames, arrays, values = _sorted_fields(result)
        with new_folder(self.path / stage) as folder:
            for name, frame in frames.items():
                frame.to_parquet(folder / f"{name}.parquet", index=False)
            if arrays:
                save_file(arrays, folder / "arrays.safetensors")
            record = {
                "stage": stage,
                "key": self.keys[stage],
                "finished": _now(),
                "seconds": round(seconds, 3),
                "values": plain(values),
                "summary": plain(result.summary()),
                "files": {f.name: checksum(f) for f in sorted(folder.iterdir())},
            }
            write_json(folder / "stage.json", sealed(record))
        self._whole.add(stage)
        self.refresh()

    def refresh(self) -> None:
        """Derive manifest and summary from the stage folders. Stages computed from other inputs are kept, but stale."""
        summary = {}
        for stage in self.keys:
            if self.is_done(stage):
                record = _read_json(self.path / stage / "stage.json", "stage")
                entry = {"status": "done", "finished": record["finished"], "seconds": record["seconds"]}
                if record["summary"]:
                    summary[stage] = record["summary"]
            else:
                entry = {"status": "stale" if (self.path / stage).exists() else "pending"}
            self.manifest["stages"][stage] = entry
        write_json(self.path / "manifest.json", self.manifest)
        write_json(self.path / "summary.json", summary)

    def _note(self, stage: str, entry: dict[str, Any]) -> None:
        self.manifest["stages"][stage] = entry
        write_json(self.path / "manifest.json", self.manifest)


def refuse_others(path: Path, model: dict[str, Any]) -> dict[str, Any] | None:
    """Raise UserError if a folder cannot be written to, or holds something else than a run of this subject; else the manifest
    that it has, if any."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not os.access(there, os.W_OK):
        raise UserError(f"Cannot write to {path} (not allowed in {there}); choose another --out.")
    with writing(path, "choose another --out"):
        if not _holds_a_run(path):
            raise UserError(f"{path} is not empty and holds no run; choose another --out.")
        if not (path / "manifest.json").exists():
            return None
    earlier = RunFolder(path).manifest
    if any(earlier["model"].get(k) != model[k] for k in ("weight_hash", "tokenizer_hash")):
        raise UserError(
            f"{path} holds a run of another subject ({earlier['model'].get('name')}); choose another --out."
        )
    return earlier


@contextmanager
def claim(
    path: Path, model: dict[str, Any], configuration: dict[str, Any], keys: dict[str, str]
) -> Iterator[RunWriter]:
    """Open a run folder for writing, new or with earlier stages in it; refuse one that is in use or is another subject's."""
    refuse_others(path, model)  # before anything is written
    with writing(path, "choose another --out"):
        path.mkdir(parents=True, exist_ok=True)
    with locked(path):
        earlier = refuse_others(path, model)
        fresh = {
            "schema": SCHEMA,
            "version": __version__,
            "created": _now() if earlier is None else earlier["created"],
            "model": model,
            "configuration": configuration,
            "stages": {},
        }
        with writing(path):
            write_json(path / "manifest.json", fresh)
            yield RunWriter(path, keys)


def _holds_a_run(path: Path) -> bool:
    """Whether there is a run in a folder, or nothing yet. Stages are a run even if the manifest was removed."""
    ours = {LOCK, ".manifest.json.tmp"}  # all that a run killed at its very beginning leaves
    names = {entry.name for entry in path.iterdir()} - ours if path.exists() else set()
    return not names or "manifest.json" in names or any((path / name / "stage.json").exists() for name in names)


def damaged_files(stage: Path) -> list[str]:
    """Which files of a stage's folder are missing, or are not those that were written."""
    try:
        record = _read_json(stage / "stage.json", "stage")
        if not is_whole(record):
            return ["stage.json"]
        return [name for name, digest in record["files"].items() if not _has_digest(stage / name, digest)]
    except (UserError, KeyError, AttributeError):
        return ["stage.json"]


def _has_digest(path: Path, digest: str) -> bool:
    try:
        return checksum(path) == digest
    except OSError:
        return False


def mapped_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a safetensors file, mapped into memory: of a pattern among thousands only its own bytes are read.

    The file begins with the length of its header, eight bytes, and the header, in JSON: of each array its type, its shape and
    where its bytes are behind the header. Mapped privately: what is written to an array does not reach the file.
    """
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        return {name: _mapped(path, 8 + length, entry) for name, entry in header.items()}
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path.name} has a header that is not as it should be ({error})") from None


def _mapped(path: Path, start: int, entry: Any) -> np.ndarray[Any, Any]:
    kind, shape, (begin, end) = np.dtype(_TYPES[entry["dtype"]]), tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin)) or end - begin != kind.itemsize * math.prod(shape):
        raise ValueError(f"{path.name} has an array whose shape and place do not fit together")
    return np.memmap(path, kind, "c", start + begin, shape) if end > begin else np.zeros(shape, kind)


_TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def stage_key(**inputs: Any) -> str:
    """A hash of everything that a stage's numbers depend on."""
    text = json.dumps(plain(inputs), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _sorted_fields(
    result: Any,
) -> tuple[dict[str, pd.DataFrame], dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    frames: dict[str, pd.DataFrame] = {}
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if isinstance(value, pd.DataFrame):
            frames[field.name] = value
        elif isinstance(value, np.ndarray):
            arrays[field.name] = np.ascontiguousarray(value)
        else:
            values[field.name] = value
    return frames, arrays, values


def plain(value: Any) -> Any:
    """JSON has no NaN, no numpy numbers and no dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
        reason = "it is not a JSON object"
    except FileNotFoundError:
        raise UserError(f"There is no {what} at {path.parent}: {path.name} is missing.") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise UserError(
        f"The {what} at {path.parent} is damaged: {path.name} cannot be read ({reason}); remove that file and run the same "
        "command as then again, which keeps what is whole."
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

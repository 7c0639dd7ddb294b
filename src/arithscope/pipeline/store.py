"""The run folder: everything a study found, readable with any parquet, npy and JSON reader.

    manifest.json          what was run on what: model, versions, configuration, and each stage's status and seconds
    summary.json           summaries of all stages, by operator
    <stage>/stage.json     what the stage was computed from (its key), its files with checksums, its summary
    <stage>/*.parquet      one file per table
    <stage>/*.npy          one file per array

A stage folder appears complete or not at all, and records what it was computed from. Manifest and summary are derived from the
stage folders, so killing a run loses at most the stage in progress.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.experiments.common.result import Result
from arithscope.pipeline.registry import stage_of
from arithscope.pipeline.schema import check_manifest, is_record, schema_problem
from arithscope.utils import files

SCHEMA = 2
MANIFEST = "manifest.json"
R = TypeVar("R", bound=Result)


class SchemaMismatch(UserError):
    """A stored stage that is not what this version writes."""


class RunFolder:
    """A run folder, open for reading; `open_for_writing` opens one for writing."""

    def __init__(self, path: Path):
        self.path = path
        self._intact: set[str] = set()  # stages whose checksums have been verified
        _refuse_a_part(path)
        self.manifest = _read_json(path / MANIFEST, "run")
        schema = self.manifest.get("schema")
        if schema != SCHEMA:
            problem = f"The run in {path} has schema {schema}, but this version of arithscope reads schema {SCHEMA}"
            raise UserError(f"{problem}; choose another --out.")
        check_manifest(self.manifest, path)

    def has(self, stage: str, key: str | None = None) -> bool:
        """Whether a stage is stored intact and, if a key is given, has that key."""
        try:
            record = _stage_record(self.path / stage)
        except (UserError, RecursionError):
            return False
        if key not in (None, record["key"]):
            return False
        if stage not in self._intact and not damaged_files(self.path / stage):
            self._intact.add(stage)
        return stage in self._intact

    def is_done(self, stage: str) -> bool:
        """Whether a stage is stored and belongs to the run's current settings, not to earlier ones."""
        return self.manifest["stages"].get(stage, {}).get("status") == "done" and self.has(stage)

    def key(self, stage: str) -> str | None:
        """Key of a stored stage: a hash of what it was computed from. None if it is not stored."""
        return _stage_record(self.path / stage)["key"] if self.has(stage) else None

    def read(self, kind: type[R]) -> R:
        """Read a result by its class.

        Raises:
            UserError: If its stage is missing or damaged.
            SchemaMismatch: If it is not what this version writes.
        """
        stage = stage_of(kind).name
        folder = self.path / stage
        if not self.has(stage):
            raise _incomplete(folder)
        record = _stage_record(folder)
        values: dict[str, Any] = dict(record["values"])
        try:
            for file in map(Path, record["files"]):
                if file.suffix == ".parquet":
                    values[file.stem] = pd.read_parquet(folder / file)
                elif file.suffix == ".npy":  # mapped copy-on-write: only what is used is read, and no change is stored
                    values[file.stem] = np.load(folder / file, mmap_mode="c", allow_pickle=False)
        except Exception as error:  # whatever the libraries raise for files of another kind
            problem: str | None = f"it cannot be read ({' '.join(str(error).split())[:200]})"
        else:
            problem = schema_problem(kind, values)
        if problem is not None:  # although its checksums are right
            written = f"The stage {stage!r} of the run in {self.path} was written by another version of arithscope"
            raise SchemaMismatch(f"{written}, or changed: {problem}; run it again to compute it.")
        return kind(**values)

    @property
    def summary(self) -> dict[str, Any]:
        """Summaries of the stages that are done, from their own records, which carry checksums."""
        done = [stage for stage, entry in self.manifest["stages"].items() if entry.get("status") == "done"]
        summaries = {stage: _stage_record(self.path / stage)["summary"] for stage in done}
        return {stage: summary for stage, summary in summaries.items() if summary}


class RunWriter(RunFolder):
    """A run folder that only this process may write. `keys` gives each stage's key under the current settings."""

    def __init__(self, path: Path, keys: dict[str, str]):
        super().__init__(path)
        self.keys = keys
        for stage in keys:
            files.remove_leftovers(path / stage)
        self.refresh()

    def is_done(self, stage: str) -> bool:
        return stage in self.keys and self.has(stage, self.keys[stage])

    def start(self, stage: str) -> None:
        self._write_manifest({stage: {"status": "running", "started": _now()}})

    def fail(self, stage: str, reason: str) -> None:
        self._write_manifest({stage: {"status": "failed", "reason": reason}})

    def write(self, stage: str, result: Result, seconds: float) -> None:
        """Store a finished stage, then update manifest and summary."""
        values = {}
        with files.atomic_folder(self.path / stage) as folder:
            for field in dataclasses.fields(result):  # type: ignore[arg-type]
                value = getattr(result, field.name)
                if isinstance(value, pd.DataFrame):
                    value.to_parquet(folder / f"{field.name}.parquet", index=False)
                elif isinstance(value, np.ndarray):
                    np.save(folder / f"{field.name}.npy", np.ascontiguousarray(value), allow_pickle=False)
                else:
                    values[field.name] = value
            record = {"stage": stage, "key": self.keys[stage], "finished": _now(), "seconds": round(seconds, 3)}
            record |= {"values": plain(values), "summary": plain(result.summary())}
            record["files"] = {f.name: files.checksum(f) for f in sorted(folder.iterdir())}
            files.write_json(folder / "stage.json", files.with_checksum(record))
        self._intact.add(stage)
        self.refresh()

    def refresh(self) -> None:
        """Derive manifest and summary from the stage folders. Stages computed from other inputs are kept and marked stale."""
        entries = {}
        for stage in self.keys:
            if self.is_done(stage):
                record = _stage_record(self.path / stage)
                entries[stage] = {"status": "done", "finished": record["finished"], "seconds": record["seconds"]}
            else:
                entries[stage] = {"status": "stale" if (self.path / stage).exists() else "pending"}
        self._write_manifest(entries)
        files.write_json(self.path / "summary.json", self.summary)

    def _write_manifest(self, entries: dict[str, Any]) -> None:
        self.manifest["stages"] |= entries
        files.write_json(self.path / MANIFEST, self.manifest)


def check_writable(path: Path, model: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest in a folder, or None. Raises UserError if it is not writable or holds anything but a run of this model."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        raise UserError(f"Cannot write to {path} (not allowed in {existing}); choose another --out.")
    with files.explain_write_errors(path, "choose another --out"):
        ours = {files.LOCK, ".manifest.json.tmp"}  # all that a run killed at its very beginning leaves
        names = {entry.name for entry in path.iterdir()} - ours if path.exists() else set()
        # Stages are a run even if the manifest was removed.
        if names and MANIFEST not in names and not any((path / n / "stage.json").exists() for n in names):
            raise UserError(f"{path} is not empty and holds no run; choose another --out.")
        if MANIFEST not in names:
            return None
    manifest = RunFolder(path).manifest
    if any(manifest["model"].get(k) != model[k] for k in ("weight_hash", "tokenizer_hash")):
        raise UserError(f"{path} holds a run of another model ({manifest['model'].get('name')}); choose another --out.")
    return manifest


@contextmanager
def open_for_writing(
    path: Path, model: dict[str, Any], configuration: dict[str, Any], keys: dict[str, str]
) -> Iterator[RunWriter]:
    """Create a run folder, or open one to complete it, and lock it while the context lasts. Raises UserError if another
    process is writing to it, or it holds something other than a run of this model."""
    check_writable(path, model)  # before anything is written
    with files.explain_write_errors(path, "choose another --out"):
        path.mkdir(parents=True, exist_ok=True)
    with files.locked(path):
        earlier = check_writable(path, model)
        created = _now() if earlier is None else earlier["created"]
        about = {"schema": SCHEMA, "version": __version__, "created": created, "model": model}
        with files.explain_write_errors(path):
            files.write_json(path / MANIFEST, {**about, "configuration": configuration, "stages": {}})
            yield RunWriter(path, keys)


def damaged_files(stage: Path) -> list[str]:
    """Files of a stage folder that are missing, or differ from what was written."""
    try:
        record = _stage_record(stage)
    except UserError:
        return ["stage.json"]
    damaged = []
    for name, digest in record["files"].items():
        with suppress(OSError):
            if files.checksum(stage / name) == digest:
                continue
        damaged.append(name)
    return damaged


def stage_key(**inputs: Any) -> str:
    """A hash of everything that a stage's numbers depend on."""
    text = json.dumps(plain(inputs), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def plain(value: Any) -> Any:
    """A value that JSON can hold: NaN becomes None, and there are no numpy numbers or dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _refuse_a_part(path: Path) -> None:
    """Raise UserError for a file, or for a folder inside a run folder: which folder to name instead."""
    exists = os.path.exists
    if not exists(path) or exists(path / MANIFEST):
        return
    for folder in path.absolute().parents:
        if exists(folder / MANIFEST) and exists(folder / "summary.json"):
            raise UserError(f"{path} is only a part of a run; name the run folder {folder}.")
    if not os.path.isdir(path):
        raise UserError(f"{path} is not a folder; name a run folder, which holds a {MANIFEST}.")


def _stage_record(folder: Path) -> dict[str, Any]:
    """Content of a stage's stage.json. Raises UserError if it is missing or damaged."""
    record = _read_json(folder / "stage.json", "stage")
    if not is_record(record) or not files.is_intact(record):
        raise _incomplete(folder)
    return record


def _incomplete(stage: Path) -> UserError:
    return UserError(f"The run in {stage.parent} has no complete stage {stage.name!r}; run it again to compute it.")


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
    problem = f"The {what} at {path.parent} is damaged: {path.name} cannot be read ({reason})"
    raise UserError(f"{problem}; remove that file and run the same command again, which keeps all intact stages.")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

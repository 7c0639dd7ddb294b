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
from arithscope.pipeline.table_files import read_table
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
        self._intact: dict[str, dict[str, Any]] = {}  # records of the stages whose checksums have been verified
        _refuse_a_part(path)
        self.stamp = manifest_stamp(path)  # before it is read: a change while it is read is then noticed
        self.manifest = _read_json(path / MANIFEST, "run")
        schema = self.manifest.get("schema")
        if schema != SCHEMA:
            problem = f"The run in {path} has schema {schema}, but this version of arithscope reads schema {SCHEMA}"
            raise UserError(f"{problem}; choose another --out.")
        check_manifest(self.manifest, path)
        files.refuse_links(path)

    def has(self, stage: str, key: str | None = None) -> bool:
        """Whether a stage is stored intact and, if a key is given, has that key."""
        try:
            record = _stage_record(self.path / stage)
        except (UserError, RecursionError):
            return False
        if key not in (None, record["key"]):
            return False
        if self._intact.get(stage) != record and not damaged_files(self.path / stage):
            self._intact[stage] = record
        return self._intact.get(stage) == record

    def unchanged_since(self, earlier: "RunFolder") -> set[str]:
        """Stages that are stored as an earlier opening of this folder verified them; they are not verified again."""
        for stage, record in list(earlier._intact.items()):  # other threads may add to it
            with suppress(UserError, RecursionError):
                if _stage_record(self.path / stage) == record:
                    self._intact[stage] = record
        return set(self._intact)

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
                    values[file.stem] = read_table(folder / file)
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
            record = files.with_checksum(record)
            files.write_json(folder / "stage.json", record)
        self._intact[stage] = record
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


def check_writable(
    path: Path, model: dict[str, Any], configuration: dict[str, Any], keys: dict[str, str], overwrite: bool = False
) -> dict[str, Any] | None:
    """The manifest in a folder, or None. Raises UserError if the folder is not writable, holds anything but a run of this
    model, or holds results of other settings, unless these may be overwritten."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        raise UserError(f"Cannot write to {path} (not allowed in {existing}); choose another --out.")
    with files.explain_write_errors(path, "choose another --out"):
        ours = {files.LOCK, ".manifest.json.tmp"}  # all that a run killed at its very beginning leaves
        names = {entry.name for entry in path.iterdir()} - ours if path.exists() else set()
    manifest = RunFolder(path).manifest if MANIFEST in names else None
    # Stages are a run even if the manifest was removed.
    if names and manifest is None:
        if not any((path / name / "stage.json").exists() for name in names):
            raise UserError(f"{path} is not empty and holds no run; choose another --out.")
        files.refuse_links(path)
    if manifest is not None and any(manifest["model"].get(k) != model[k] for k in ("weight_hash", "tokenizer_hash")):
        raise UserError(f"{path} holds a run of another model ({manifest['model'].get('name')}); choose another --out.")
    if not overwrite and any(_other_key(path / stage, key) for stage, key in keys.items()):
        others = _other_settings(manifest, {"version": __version__, "model": model, "configuration": configuration})
        advice = "choose another --out, or replace them with --overwrite (in Python, overwrite=True)"
        raise UserError(f"{path} holds results of other settings{others}; {advice}.")
    return manifest


def _other_key(stage: Path, key: str) -> bool:
    """Whether a stage is stored that was computed from other inputs."""
    try:
        return bool(_stage_record(stage)["key"] != key)
    except (UserError, RecursionError):
        return False


def _other_settings(manifest: dict[str, Any] | None, wanted: dict[str, Any]) -> str:
    """The first settings of a run that are not as they are wanted: (preset quick, not paper)."""
    if manifest is None:
        return ""
    there, now = ({"version": m.get("version"), **m["configuration"], **m["model"]} for m in (manifest, plain(wanted)))
    ignored = ("custom_sizes", "source", "device", "limit", "name", "revision")
    different = [name for name, value in now.items() if name not in ignored and there.get(name) != value]
    shown = [f"{name.replace('_', ' ')} {_short(there.get(name))}, not {_short(now[name])}" for name in different[:3]]
    return f" ({'; '.join(shown)})" if shown else ""


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "".join(item for item in value if isinstance(item, str))
    return str(value)[:80] if isinstance(value, str | int | float | None) else "others"


@contextmanager
def open_for_writing(
    path: Path, model: dict[str, Any], configuration: dict[str, Any], keys: dict[str, str], overwrite: bool = False
) -> Iterator[RunWriter]:
    """Create a run folder, or open one to complete it, and lock it while the context lasts. Raises UserError if another
    process is writing to it, or `check_writable` does."""
    check_writable(path, model, configuration, keys, overwrite)  # before anything is written
    with files.explain_write_errors(path, "choose another --out"):
        path.mkdir(parents=True, exist_ok=True)
    with files.locked(path):
        earlier = check_writable(path, model, configuration, keys, overwrite)
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


def manifest_stamp(run: Path) -> tuple[int, int, int] | None:
    """What changes whenever a run's manifest is written; None if there is none."""
    try:
        found = (run / MANIFEST).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


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


def runs_inside(folder: Path) -> list[Path]:
    """The run folders in a folder, such as those of several layouts; none if it is a run folder itself, or part of one."""
    if not folder.is_dir() or (folder / MANIFEST).exists() or (folder.absolute().parent / MANIFEST).exists():
        return []
    return sorted(manifest.parent for manifest in folder.glob(f"*/{MANIFEST}"))


def _refuse_a_part(path: Path) -> None:
    """Raise UserError for a file, and for a folder around run folders or inside one: which folder to name instead."""
    exists = os.path.exists
    if not exists(path) or exists(path / MANIFEST):
        return
    if found := runs_inside(path):
        names = ", ".join(run.name for run in found)
        raise UserError(f"There is no run at {path} itself, but there are runs inside ({names}); name one: {found[0]}.")
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
        value = json.loads(files.read_text(path))
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

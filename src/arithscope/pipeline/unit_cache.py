"""Finished units of work, cached on disk while their stage is in progress, so that a killed run can resume.

    <run>/.units/<stage>/<key of the stage>/<digest of function and arguments>.safetensors

A file holds the arrays that a unit returned and, in its metadata, the structure around them as JSON and a checksum of
everything. The same function with the same arguments returns the same result, so the digest identifies it.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from arithscope.utils.executor import Executor, FinishedUnit, Function, Unit
from arithscope.utils.files import atomic_file, remove
from arithscope.utils.progress import Advance

FOLDER = ".units"


class CachingExecutor(Executor):
    """Passes units on to another executor and stores each result; stored units are not run again."""

    def __init__(self, executor: Executor, folder: Path):
        self.executor, self.folder, self.where = executor, folder, executor.where

    def stream(self, function: Function, model: Any, units: Sequence[Unit], advance: Advance) -> Iterator[FinishedUnit]:
        paths = [self.folder / f"{digest}.safetensors" for digest in digests(function, units)]
        missing = []
        for index, path in enumerate(paths):
            if (cached := read_unit(path)) is None:
                missing.append(index)
            else:
                advance(cached[1])
                yield FinishedUnit(index, *cached)
        if missing:
            self.folder.mkdir(parents=True, exist_ok=True)
            for done in self.executor.stream(function, model, [units[index] for index in missing], advance):
                index = missing[done.index]
                remove(paths[index])  # anything there is damaged
                write_unit(paths[index], done.result, done.steps)
                yield FinishedUnit(index, done.result, done.steps)


def caching_executor(executor: Executor, run: Path, stage: str, key: str) -> CachingExecutor:
    """An executor that caches units of a stage; units cached for other inputs are removed."""
    folder = run / FOLDER / stage
    for other in set(folder.glob("*")) - {folder / key}:
        shutil.rmtree(other, ignore_errors=True)
    return CachingExecutor(executor, folder / key)


def clear_cache(run: Path, stage: str) -> None:
    """Remove the cached units of a finished stage."""
    shutil.rmtree(run / FOLDER / stage, ignore_errors=True)
    with suppress(OSError):  # other stages have units there, or there are none
        (run / FOLDER).rmdir()


def write_unit(path: Path, result: Any, steps: int) -> None:
    arrays: list[np.ndarray[Any, Any]] = []
    value = json.dumps({"result": _encode(result, arrays), "steps": steps})
    named = {str(i): array for i, array in enumerate(arrays)}
    with atomic_file(path) as temporary:
        save_file(named, temporary, metadata={"value": value, "checksum": _checksum(value, arrays)})


def read_unit(path: Path) -> tuple[Any, int] | None:
    """A cached result and its number of steps; None if it is missing or damaged."""
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata()
            arrays = [file.get_tensor(str(i)) for i in range(len(file.keys()))]
        if metadata["checksum"] != _checksum(metadata["value"], arrays):
            return None
        value = json.loads(metadata["value"])
        return (_decode(value["result"], arrays), value["steps"]) if type(value["steps"]) is int else None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None


def digests(function: Function, units: Sequence[Unit]) -> list[str]:
    """A hash of the function's name and all arguments for each unit. Arguments that units share are hashed once."""
    name = f"{function.__module__}.{function.__qualname__}".encode()
    arguments = {id(argument): argument for unit in units for argument in unit}
    known = {key: _digest(argument).digest() for key, argument in arguments.items()}
    return [hashlib.sha256(b"".join([name, *(known[id(x)] for x in unit)])).hexdigest()[:32] for unit in units]


def _digest(value: Any) -> Any:
    digest = hashlib.sha256()
    _add(digest, value)
    return digest


def _add(digest: Any, value: Any) -> None:
    """Add a value to a digest. Types and lengths are included, so that different values never give the same bytes."""
    if isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype.str} {value.shape};".encode())
        digest.update(np.asarray(value, order="C").reshape(-1).view(np.uint8).data)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        digest.update(f"{type(value).__qualname__};".encode())
        for field in dataclasses.fields(value):
            _add(digest, getattr(value, field.name))
    elif isinstance(value, dict | tuple | list | range):
        kind, items = ("dict", value.items()) if isinstance(value, dict) else ("list", value)
        digest.update(f"{kind} {len(value)};".encode())
        for item in items:
            _add(digest, item)
    elif value is None or isinstance(value, bool | int | float | str | np.generic):
        text = str(value)
        digest.update(f"{type(value).__name__} {len(text)} {text};".encode())
    else:
        raise TypeError(f"a unit cannot take a {type(value).__name__}: arguments are plain data")


def _encode(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """A value as JSON, its arrays replaced by their index in `arrays`."""
    if isinstance(value, np.ndarray):
        arrays.append(np.asarray(value, order="C"))
        return {"array": len(arrays) - 1}
    if isinstance(value, tuple | list):
        return {"tuple" if isinstance(value, tuple) else "list": [_encode(item, arrays) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_encode(x, arrays) for x in item] for item in value.items()]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"a unit cannot return a {type(value).__name__}: results are plain data")


def _decode(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, inside)] = value.items()
    if kind == "array":
        return arrays[inside]
    if kind == "dict":
        return {_decode(k, arrays): _decode(v, arrays) for k, v in inside}
    return {"tuple": tuple, "list": list}[kind](_decode(item, arrays) for item in inside)


def _checksum(value: str, arrays: Sequence[np.ndarray[Any, Any]]) -> str:
    return _digest((value, *arrays)).hexdigest()

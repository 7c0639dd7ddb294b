"""What is read from a run folder is what is written to one: manifests, records and tables of the right shape and kinds.

Checksums find damage, but not what was written by another version or changed by hand. columns.json says which columns the
tables of each stage have, by kind.
"""

from __future__ import annotations

import dataclasses
import json
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from arithscope.errors import UserError
from arithscope.prompts import OPERATORS, Template

_KINDS = {"text": "OUT", "integer": "iu", "number": "iuf", "truth": "b", "list": "O"}  # of numpy's types, by a letter
_ONCE = {("accuracy", "prompts"): ["operator", "op1", "op2"]}  # columns of a table that together tell its rows apart
_ARRAYS = {"NDArray[np.float16]": "float16", "NDArray[np.float32]": "float32", "NDArray[np.int32]": "int32"}


def check_manifest(manifest: dict[str, Any], path: Path) -> None:
    """Complain of a manifest whose parts are not what they should be; a part that is missing may not be needed."""
    stages = manifest.get("stages")
    problems = {
        "model": not isinstance(manifest.get("model"), dict),
        "configuration": not isinstance(manifest.get("configuration"), dict),
        "created": not isinstance(manifest.get("created"), str),
        "stages": not isinstance(stages, dict)
        or any(not isinstance(e, dict) or not isinstance(e.get("status"), str) for e in stages.values()),
    }
    _complain([name for name, wrong in problems.items() if wrong], path)


def check_description(manifest: dict[str, Any], path: Path) -> None:
    """Complain of a manifest that does not say what was studied, and how."""
    model, asked = manifest["model"], manifest["configuration"]
    sizes, limit, samples = model.get("sizes"), model.get("limit"), asked.get("sizes")
    operators = asked.get("operators")
    texts = ("name", "revision", "weight_hash", "tokenizer_hash", "family", "dtype", "quantization", "source")
    wrong = [name for name in texts if not isinstance(model.get(name), str)]
    if not isinstance(sizes, dict) or not all(_whole(sizes.get(name), 1) for name in SIZES) or not _plain(sizes):
        wrong.append("sizes")
    if samples is not None and not (
        isinstance(samples, dict) and all(_whole(samples.get(n), 0) for n in ("discovery", "evaluation"))
    ):
        wrong.append("samples")
    wrong += ["limit"] if limit is not None and not _whole(limit, 1) else []
    if (
        not isinstance(operators, list)
        or not operators
        or not all(isinstance(o, str) and o in OPERATORS for o in operators)
    ):
        wrong.append("operators")
    wrong += [name for name, least in (("max_operand", 1), ("seed", 0)) if not _whole(asked.get(name), least)]
    wrong += [name for name in ("preset", "template", "prefix") if not isinstance(asked.get(name), str)]
    wrong += [name for name in ("version", "created") if not isinstance(manifest.get(name), str)]
    for entry in manifest["stages"].values():
        if not isinstance(entry.get("seconds", 0.0), int | float):
            wrong.append("seconds")
    _complain(wrong, path)
    try:
        Template(asked["template"], asked["prefix"])
    except UserError:
        _complain(["template"], path)


SIZES = ("layers", "heads", "neurons", "parameters", "width", "vocabulary")


def _complain(wrong: list[str], path: Path) -> None:
    if wrong:
        raise UserError(
            f"The run at {path} is damaged: what manifest.json says of {wrong[0]} cannot be right; run it again into "
            "another --out."
        )


def _whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < 2**63


def _plain(value: Any) -> bool:
    return all(isinstance(v, int | float | str) for v in value.values())


def is_record(record: Any) -> bool:
    """Whether this is what stage.json holds. Its files lie beside it."""
    return (
        isinstance(record, dict)
        and isinstance(record.get("key"), str)
        and isinstance(record.get("finished"), str)
        and isinstance(record.get("seconds"), int | float)
        and isinstance(record.get("values"), dict)
        and is_summary({"": record.get("summary")})
        and isinstance(record.get("files"), dict)
        and all(re.fullmatch(r"[\w.-]+", name) and isinstance(d, str) for name, d in record["files"].items())
    )


def is_summary(summary: Any) -> bool:
    """Whether this is a summary: by experiment and operator, names of measures with plain values or means."""
    return isinstance(summary, dict) and all(
        isinstance(found, dict)
        and all(isinstance(entries, dict) and all(map(_measure, entries.values())) for entries in found.values())
        for found in summary.values()
    )


def _measure(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return entry is None or isinstance(entry, int | float | str | list)
    numbers = [entry.get(name, "") for name in ("value", "low", "high")]
    return _whole(entry.get("n"), 0) and all(x is None or type(x) is float or _whole(x, -(2**63)) for x in numbers)


def schema_problem(stage: str, kind: Any, values: dict[str, Any]) -> str | None:
    """The first field of a result that is not as its class declares it, with a reason; None if all are."""
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    if (missing := [name for name in fields if name not in values]) or (
        missing := [n for n in values if n not in fields]
    ):
        return f"{missing[0]} is missing or unknown"
    for name, declared in fields.items():
        value = values[name]
        if declared == "pd.DataFrame":
            if not isinstance(value, pd.DataFrame):
                return f"{name} is no table"
            if (column := _other_column(value, _columns().get(stage, {}).get(name, {}))) is not None:
                return f"the table {name} has no such column {column}"
            if (stage, name) in _ONCE and value.duplicated(_ONCE[stage, name]).any():
                return f"the table {name} holds a row twice"
        elif declared in _ARRAYS:
            if not isinstance(value, np.ndarray) or value.dtype != _ARRAYS[declared]:
                return f"{name} is no array of {_ARRAYS[declared]}"
        elif not _fits(value, declared):
            return f"{name} is not of type {declared}"
    return None


def _other_column(table: pd.DataFrame, expected: dict[str, list[str]]) -> str | None:
    """A column that is missing, or of another kind; tables without rows may lack them."""
    if len(table) == 0 and len(table.columns) == 0:
        return None
    for kind, names in expected.items():
        for name in names:
            if name not in table.columns:
                return name
            column = table[name]
            if len(table) and column.dtype.kind not in _KINDS[kind]:
                return name
            if len(table) and kind == "text" and not _only_text(column):
                return name
            if len(table) and kind == "list" and not all(isinstance(value, np.ndarray) for value in column):
                return name
    return None


def _only_text(column: pd.Series[Any]) -> bool:
    try:
        found = column.unique()
    except TypeError:  # lists, say
        return False
    return all(isinstance(value, str) for value in found)


def _fits(value: Any, declared: str) -> bool:
    plain: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
    if declared in plain:
        return type(value) in plain[declared]
    if found := re.fullmatch(r"list\[(\w+)\]", declared):
        return isinstance(value, list) and all(type(v) in plain[found[1]] for v in value)
    if found := re.fullmatch(r"dict\[str, (\w+)\]", declared):
        return isinstance(value, dict) and all(type(v) in plain[found[1]] for v in value.values())
    return True


@cache
def _columns() -> dict[str, dict[str, dict[str, list[str]]]]:
    return dict(json.loads((resources.files(__package__) / "columns.json").read_text(encoding="utf-8")))

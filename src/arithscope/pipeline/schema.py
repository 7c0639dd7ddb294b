"""Checks that a run folder holds what this version writes: manifest, stage records, tables and arrays.

Checksums find damage; these checks find files written by another version or changed by hand. What a result holds is declared
on its class (experiments/common/schema.py).
"""

import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd

from arithscope.errors import UserError
from arithscope.experiments.common.result import Result
from arithscope.experiments.common.schema import Array, Table
from arithscope.prompts import OPERATORS, stratum_from_json, template_from_json

SIZES = ("layers", "heads", "neurons", "parameters", "width", "vocabulary")
_DTYPES = {"text": "OUT", "integer": "iu", "number": "iuf", "boolean": "b", "list": "O"}  # numpy's kinds of dtypes
_HELD = {"text": str, "list": np.ndarray}  # what columns of objects hold


def check_manifest(manifest: dict[str, Any], path: Path) -> None:
    """Raise UserError if an entry of a manifest has the wrong type."""
    wrong = _mistyped(manifest, model=dict, configuration=dict, created=str, stages=dict)
    stages = {} if wrong else manifest["stages"]
    wrong += ["stages" for e in stages.values() if not isinstance(e, dict) or _mistyped(e, status=str)]
    wrong += ["stages" for name in stages if not name.isidentifier()]  # they become names of folders
    _refuse(wrong, path)


def check_description(manifest: dict[str, Any], path: Path) -> None:
    """Raise UserError if a manifest does not say what was studied, and how."""
    model, configuration = manifest["model"], manifest["configuration"]
    sizes, samples, operators = model.get("sizes"), configuration.get("sizes"), configuration.get("operators")
    texts = ("name", "revision", "weight_hash", "tokenizer_hash", "family", "dtype", "quantization", "source")
    right = {
        "sizes": isinstance(sizes, dict)
        and all(_is_int(sizes.get(name), 1) for name in SIZES)
        and all(isinstance(size, int | float | str) for size in sizes.values()),
        "samples": isinstance(samples, dict) and all(_is_int(samples.get(n), 0) for n in ("discovery", "evaluation")),
        "limit": _is_int(model.get("limit"), 1),
        "operators": isinstance(operators, list) and operators and all(str(o) in OPERATORS for o in operators),
        "max_operand": _is_int(configuration.get("max_operand"), 1),
        "stratum": "stratum" not in configuration or _is_stratum(configuration["stratum"]),
        "seed": _is_int(configuration.get("seed"), 0),
        "operator_words": _holds_texts(configuration.get("operator_words", {})),
        "chat": type(configuration.get("chat", False)) is bool,
        "reply": isinstance(configuration.get("reply", ""), str),
        "surroundings": isinstance(configuration.get("surroundings", {}), dict),
    }
    wrong = _mistyped(model, **dict.fromkeys(texts, str))
    wrong += [name for name, is_right in right.items() if not is_right]
    wrong += _mistyped(configuration, preset=str, template=str, prefix=str)
    wrong += _mistyped(manifest, version=str, created=str)
    wrong += ["seconds" for e in manifest["stages"].values() if not isinstance(e.get("seconds", 0.0), int | float)]
    _refuse(wrong, path)
    try:
        template_from_json(configuration)
    except UserError:
        _refuse(["template"], path)


def _holds_texts(record: Any) -> bool:
    return isinstance(record, dict) and all(isinstance(text, str) for text in record.values())


def _is_stratum(record: Any) -> bool:
    try:
        stratum = stratum_from_json(record)
    except (KeyError, TypeError, ValueError, OverflowError):  # the last one for Infinity
        return False
    ranges, layout = (stratum.op1, stratum.op2, stratum.answers), stratum.layout
    counted = layout is not None and all(
        places and places[-1] == 0 and max(places) < 18 and list(places) == sorted(set(places), reverse=True)
        for places in vars(layout).values()
    )
    return counted and 1 <= stratum.step <= stratum.steps and all(0 <= a <= b < 2**62 for a, b in ranges)


def _refuse(wrong: list[str], path: Path) -> None:
    if wrong:
        problem = f"The run at {path} is damaged: what manifest.json says about {wrong[0]} cannot be right"
        raise UserError(f"{problem}; run it again into another --out.")


def _mistyped(record: dict[str, Any], **types: Any) -> list[str]:
    """Names of entries that are missing or not of their type."""
    return [name for name, kind in types.items() if not isinstance(record.get(name), kind)]


def _is_int(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < 2**63


def is_record(record: Any) -> bool:
    """Whether this is what stage.json holds. Its summary has, for each operator, plain values or means with intervals."""
    types = dict(key=str, finished=str, seconds=(int, float), values=dict, files=dict, summary=dict)
    return (
        isinstance(record, dict)
        and not _mistyped(record, **types)
        and all(isinstance(e, dict) and all(map(_is_entry, e.values())) for e in record["summary"].values())
        and all(re.fullmatch(r"\w[\w.-]*", name) and isinstance(d, str) for name, d in record["files"].items())
    )


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return entry is None or isinstance(entry, int | float | str | list)
    numbers = [entry.get(name, "") for name in ("value", "low", "high")]
    return _is_int(entry.get("n"), 0) and all(x is None or type(x) is float or _is_int(x, -(2**63)) for x in numbers)


def schema_problem(kind: type[Result], values: dict[str, Any]) -> str | None:
    """Describe the first field that is not as its result class declares; None if all are."""
    declared = kind.schema()
    types = get_type_hints(kind)
    if different := sorted(declared.keys() ^ values.keys()):
        return f"{different[0]} is missing or unknown"
    for name, schema in declared.items():
        value = values[name]
        if isinstance(schema, Table):
            if not isinstance(value, pd.DataFrame):
                return f"{name} is not a table"
            if (column := _wrong_column(value, schema)) is not None:
                return f"the table {name} has no valid column {column}"
            if schema.unique and value.duplicated(schema.keys).any():
                return f"the table {name} has duplicate keys"
        elif isinstance(schema, Array):
            if not isinstance(value, np.ndarray) or value.dtype != schema.dtype:
                return f"{name} is not an array of {schema.dtype}"
        elif not _has_type(value, types[name]):
            return f"{name} is not of type {inspect.formatannotation(types[name])}"
    return None


def _wrong_column(table: pd.DataFrame, schema: Table) -> str | None:
    """A column that is missing or of another kind."""
    for column in schema.columns:
        if column.name not in table.columns:
            return column.name
        values, held = table[column.name], _HELD.get(column.kind)
        valid = values.dtype.kind in _DTYPES[column.kind] and (held is None or set(map(type, values)) == {held})
        if len(table) and not valid:
            return column.name
    return None


def _has_type(value: Any, declared: Any) -> bool:
    """Whether a plain value, list or dict is of the declared type. An integer is accepted as a float."""
    kind, inner = get_origin(declared) or declared, get_args(declared)
    if not inner:
        return kind not in (int, float, str) or type(value) is kind or (kind, type(value)) == (float, int)
    items = value.values() if isinstance(value, dict) else value
    return type(value) is kind and all(_has_type(item, inner[-1]) for item in items)

"""Ways to damage stored data: bytes, and values inside JSON."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

HUGE = [2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30]
NUMBERS = [0, 1, -1, 2, 3, 7, 40, 300, 1000, -(2**63), *HUGE, 0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf")]
TEXTS = [
    *("", " ", "0", "1", "nan", "cpu", "..", "../x", "/", "/etc/passwd", "a/b", "\x00", "\n", "é", "\ud800", "𝟙", "９"),
    *("null", "float32", "auto", "done", "+", "%", "op1", "{}", "x" * 300),
]
plain_values = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.integers(-5, 50),
    st.text(max_size=8),
)
values = st.recursive(
    plain_values,
    lambda inside: st.one_of(st.lists(inside, max_size=4), st.dictionaries(st.sampled_from(TEXTS), inside, max_size=3)),
    max_leaves=6,
)
NESTED = ["[" * 100_000, '{"a":' * 100_000, "[" * 900 + "]" * 900, "9" * 5000, '{"schema": 1, "schema": 2}', "NaN"]


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths (keys and indices) to all values of a document; of long lists, to the first few."""
    found = [at]
    if isinstance(document, dict):
        for key, value in document.items():
            found += places(value, (*at, key))
    elif isinstance(document, list):
        for index, value in enumerate(document[:8]):
            found += places(value, (*at, index))
    return found


def changed(document: Any, at: tuple[Any, ...], how: str, value: Any, name: str) -> Any:
    """A document with one value replaced, removed or wrapped, or with a value added."""
    document = copy.deepcopy(document)
    if not at:
        return {"replace": value, "remove": {}, "wrap": [document], "add": [document, value]}[how]
    holder = document
    for step in at[:-1]:
        holder = holder[step]
    here = holder[at[-1]]
    if how == "remove":
        del holder[at[-1]]
    elif how == "add" and isinstance(here, dict):
        here[name] = value
    elif how == "add" and isinstance(here, list):
        here.append(value)
    else:
        holder[at[-1]] = [here] if how == "wrap" else value
    return document


@st.composite
def documents(draw: st.DrawFn, document: Any, most: int = 2) -> Any:
    """A JSON document with one or more values changed."""
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.sampled_from(places(document)[1:] or [()]))
        how = draw(st.sampled_from(["alike", "alike", "replace", "replace", "remove", "add", "wrap"]))
        value = draw(alike(document, at) if how == "alike" else values)
        document = changed(document, at, "replace" if how == "alike" else how, value, draw(st.sampled_from(TEXTS)))
    return document


def alike(document: Any, at: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Another value of the same type, which gets further than one of another type."""
    here = value_at(document, at)
    if isinstance(here, bool):
        return st.just(not here)
    if isinstance(here, int):
        return st.one_of(st.integers(0, 50), st.sampled_from([n for n in NUMBERS if isinstance(n, int)]))
    if isinstance(here, float):
        return st.one_of(st.floats(0, 1), st.sampled_from([n for n in NUMBERS if isinstance(n, float)]))
    others = [value for place in places(document) if type(value := value_at(document, place)) is type(here)]
    return st.one_of(
        st.sampled_from(others),
        st.sampled_from(TEXTS) if isinstance(here, str) else st.just(None if here is None else type(here)()),
    )


def value_at(document: Any, at: tuple[Any, ...]) -> Any:
    for step in at:
        document = document[step]
    return document


@st.composite
def corrupted(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes truncated, or with some of them flipped, inserted, deleted or overwritten."""
    where = draw(st.integers(0, max(len(content) - 1, 0)))
    how = draw(st.sampled_from(["cut", "flip", "flip", "insert", "delete", "overwrite", "empty"]))
    some = draw(st.one_of(st.binary(min_size=1, max_size=9), st.sampled_from(HUGE[:6]).map(_as_bytes)))
    if how == "cut":
        return content[:where]
    if how == "flip":
        return content[:where] + bytes([content[where] ^ 1 << draw(st.integers(0, 7))]) + content[where + 1 :]
    if how == "insert":
        return content[:where] + some + content[where:]
    if how == "delete":
        return content[:where] + content[where + len(some) :]
    if how == "overwrite":
        return content[:where] + some + content[where + len(some) :]
    return b""


def files(document: Any, most: int = 2) -> st.SearchStrategy[bytes]:
    """A JSON file: mostly with changed values, else invalid or unusual JSON."""
    other = documents(document, most).map(written)
    return st.one_of(other, other, other, corrupted(written(document)), st.sampled_from(NESTED).map(str.encode))


def written(document: Any) -> bytes:
    return json.dumps(document).encode()


def _as_bytes(number: int) -> bytes:
    return number.to_bytes(8, "little") if number < 2**64 else b"\xff" * 8

"""Generated requests: the explorer never replies with a 5xx, and every refusal is one sentence.

Requests are generated from the server's OpenAPI description, so that operations added later are covered too: valid values,
values just out of bounds, and hostile ones.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arithscope.explorer.access import HostNames
from arithscope.explorer.server import make_app
from tests.explorer.client import Reply, send
from tests.fuzz.effort import fuzz, twice

DESCRIPTION = make_app([], HostNames("127.0.0.1")).openapi()
OPERATIONS = [(method, path) for path, methods in DESCRIPTION["paths"].items() for method in methods]
HOSTILE = [
    *("", ".", "..", "../../etc/passwd", "/etc/passwd", "tiny-llama/..", "\x00", "%00", "%2e%2e%2f", "\u202e", "𝟙+𝟙"),
    *("NaN", "Infinity", "-0", "1e309", "0x10", "９", str(2**63), str(-(2**63)), "9" * 400, "true", "null", "[]", "{}"),
    *(
        "'; drop table runs; --",
        "<script>alert(1)</script>",
        "{{7*7}}",
        "${7*7}",
        "\r\nset-cookie: a=b",
        "op1 mod 0 = 0",
    ),
    *("op1 in [5, 1]", "result in {1, 1}", "op1 ~ ...", "1+1", "40-40", "7/0", "00+1", "-1+1", "1+1=" * 25),
]
TEXTS = {
    "run": ["tiny-llama", "tiny-pythia"],
    "prompt": ["25+11", "3-1=", "0+0"],
    "heuristic": ["op1 mod 2 = 0", "result in [10, 20]", "op1 = op2"],
    "kind": ["range of op1", "identical"],
    "checkpoint": ["step-00000", "step-01500", "final"],
    "search": ["mod", "op1"],
    "stage": ["accuracy", "classify", "patterns"],
    "table": ["table", "neurons", "matches", "prompts"],
    "sort": ["neurons", "effect", "layer", "heuristic", "value", "tokens", "by_layer"],
}
LAYERS = [5, 4, 3]  # both runs have top neurons in layer 5
anything = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=30), st.integers().map(str), st.floats().map(str))


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    node: Any = DESCRIPTION
    for part in schema["$ref"].removeprefix("#/").split("/"):
        node = node[part]
    return dict(node)


def allowed(name: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit a schema, mostly those that exist in a run."""
    schema = resolved(schema)
    if "anyOf" in schema:
        return st.one_of(*(allowed(name, one) for one in schema["anyOf"] if one.get("type") != "null"))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema["type"] == "integer":
        low = schema.get("minimum", 0)
        high = schema.get("maximum", schema.get("exclusiveMaximum", 10**9) - 1)
        small = st.sampled_from(LAYERS) if name == "layer" else st.integers(low, min(high, low + 20))
        return st.one_of(small, st.integers(low, high))
    if schema["type"] == "boolean":
        return st.booleans()
    if schema["type"] == "array":
        items = schema.get("prefixItems")
        if items:
            return st.tuples(*(allowed(name, item) for item in items)).map(list)
        return st.one_of(st.just([]), st.lists(allowed(name, schema["items"]), max_size=4))
    if schema["type"] == "object":
        return st.fixed_dictionaries({key: allowed(key, inner) for key, inner in schema["properties"].items()})
    existing = st.sampled_from(TEXTS.get(name.removesuffix("s"), ["x"]))
    return st.one_of(existing, existing, existing, st.text(max_size=20))


def written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@st.composite
def requests(draw: st.DrawFn, method: str, path: str) -> tuple[str, bytes]:
    """A path with its query, and a body. Mostly valid, so that requests get far; sometimes arbitrary."""
    operation = DESCRIPTION["paths"][path][method]
    query: list[tuple[str, str]] = []
    for parameter in operation.get("parameters", []):
        name, is_path = parameter["name"], parameter["in"] == "path"
        arbitrary = draw(st.integers(0, 9)) == 9  # small numbers are drawn more often
        value = draw(anything if arbitrary else allowed(name, parameter["schema"]).map(written))
        value = value.encode("utf-8", "surrogatepass").decode("latin-1")
        if is_path:
            path = path.replace(f"{{{name}}}", quote(value, safe="", encoding="latin-1"))
        elif parameter["required"] or draw(st.integers(0, 3)):  # 0: left out
            query.append((name, value))
        if not is_path and draw(st.integers(0, 15)) == 15:
            query.append((name, draw(anything).encode("utf-8", "surrogatepass").decode("latin-1")))  # a second time
    body = b""
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        content = draw(allowed("body", schema))
        if draw(st.integers(0, 3)) == 3:
            key = draw(st.sampled_from([*content, "more"]))
            content[key] = draw(st.one_of(anything, st.none(), st.integers(), st.lists(anything, max_size=3)))
        body = draw(
            st.one_of(st.just(json.dumps(content).encode()), st.just(json.dumps(content).encode()), st.binary())
        )
    return f"{path}?{urlencode(query, encoding='latin-1')}", body


def check(reply: Reply) -> None:
    assert reply.status < 500
    if reply.status >= 400:
        assert reply.error
    else:
        assert reply.status == 200


ABOUT_LAYOUTS = ("/api/runs/{run}/carries",)


@twice
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_causes_a_server_error(address: str, method: str, path: str, full: bool) -> None:
    def accepts(request: tuple[str, bytes]) -> bool:
        reply = send(address, request[0], method.upper(), request[1], content_type="application/json")
        check(reply)
        return reply.status == 200

    operation = DESCRIPTION["paths"][path][method]
    if not operation.get("parameters") and "requestBody" not in operation:
        assert accepts((path, b""))  # nothing to vary
        return
    # If every request were refused, little would have been tested; the runs served here have no layouts.
    assert bool(fuzz("requests", requests(method, path), accepts, full).accepted) == (path not in ABOUT_LAYOUTS)


@settings(max_examples=200, derandomize=True)
@given(
    st.one_of(st.binary(max_size=40), st.sampled_from(HOSTILE).map(str.encode)),
    st.sampled_from(["/", "/static/", "/api/"]),
)
def test_no_path_leads_outside_the_static_files(address: str, tail: bytes, start: str) -> None:
    reply = send(address, start + quote(tail, safe="/"))
    check(reply)
    assert b"root:" not in reply.body

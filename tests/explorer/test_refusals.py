"""What the explorer's server refuses, and how; and what its answers and pages never do."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from arithscope.explorer.guard import MOST_BYTES
from arithscope.explorer.server import static_files
from tests.explorer.served import ask, post

MISTAKES = {
    "no such run": ("/api/runs/nobody/training", 404),
    "a path as a run": ("/api/runs/..%2F..%2Fetc%2Fpasswd/summary", 404),
    "a path upwards": ("/static/../../../../etc/passwd", 404),
    "the same, written otherwise": ("/static/%2e%2e/%2e%2e/server.py", 404),
    "a path from the root": ("/static//etc/passwd", 404),
    "a null byte": ("/static/app.js%00", 404),
    "a page of the package that is none": ("/static/server.py", 404),
    "a huge layer": ("/api/runs/tiny-llama/neurons/99999999999999999999/0?operator=%2B", 422),
    "a huge neuron": ("/api/runs/tiny-llama/neurons/5/2147483647?operator=%2B", 400),
    "a negative layer": ("/api/runs/tiny-llama/neurons/-1/0?operator=%2B", 422),
    "no number": ("/api/runs/tiny-llama/neurons/five/0?operator=%2B", 422),
    "no operator": ("/api/runs/tiny-llama/neurons/5/0", 422),
    "an operator that is none": ("/api/runs/tiny-llama/neurons/5/0?operator=%25", 422),
    "an operator that was not studied": ("/api/runs/tiny-llama/neurons/5/0?operator=*", 400),
    "its square": ("/api/runs/tiny-llama/square?operator=/", 404),
    "too many rows": ("/api/runs/tiny-llama/neurons?size=501", 422),
    "a negative offset": ("/api/runs/tiny-llama/neurons?offset=-1", 422),
    "a sort that is none": ("/api/runs/tiny-llama/neurons?sort=__class__", 422),
    "a heuristic of a megabyte": ("/api/runs/tiny-llama/heuristics?search=" + "x" * 5000, 422),
    "no prompt": ("/api/runs/tiny-llama/explanation", 422),
    "a prompt that is none": ("/api/runs/tiny-llama/explanation?prompt=hello", 400),
    "a prompt beyond the run": ("/api/runs/tiny-llama/explanation?prompt=41%2B1", 400),
    "a negative answer": ("/api/runs/tiny-llama/explanation?prompt=1-2", 400),
    "text that is no Unicode": ("/api/runs/tiny-llama/explanation?prompt=%ff%fe", 400),
    "no such address": ("/api/nothing", 404),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_get_a_sentence(address: str, name: str) -> None:
    path, status = MISTAKES[name]
    found = ask(address, path)
    assert found.status == status
    assert found.sentence


BAD_BODIES: dict[str, tuple[Any, int]] = {
    "nothing": ({}, 422),
    "a list": ([], 422),
    "a neuron that is no pair": ({"prompt": "1+1", "neurons": [[1]]}, 422),
    "a neuron that is no number": ({"prompt": "1+1", "neurons": [["a", "b"]]}, 422),
    "a neuron that there is not": ({"prompt": "1+1", "neurons": [[5, 512]]}, 400),
    "a huge neuron": ({"prompt": "1+1", "neurons": [[5, 10**30]]}, 422),
    "half a letter": ({"prompt": "\ud800"}, 422),
    "something else": ({"prompt": "1+1", "path": "/etc/passwd"}, 422),
    "no such heuristic": ({"prompt": "1+1", "heuristics": ["op1 mod 2 = 7"]}, 404),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_bodies_get_a_sentence(address: str, name: str) -> None:
    body, status = BAD_BODIES[name]
    found = post(address, body)
    assert found.status == status
    assert found.sentence


def test_bodies_that_are_no_json_or_too_long(address: str) -> None:
    path = "/api/runs/tiny-llama/silence"
    assert ask(address, path, "POST", b"{", content_type="application/json").sentence
    long = ask(address, path, "POST", b" " * (MOST_BYTES + 1), content_type="application/json")
    assert (long.status, "at the most" in long.sentence) == (413, True)
    endless = ask(address, path, "POST", b"2\r\n{}\r\n0\r\n\r\n", transfer_encoding="chunked")
    assert (endless.status, "how long" in endless.sentence) == (411, True)
    assert ask(address, path, "DELETE").status == 405
    assert ask(address, path, "POST", b"prompt=1", content_type="application/x-www-form-urlencoded").sentence


def test_answers_carry_strict_headers(address: str) -> None:
    for path in ("/", "/static/app.js", "/api/runs", "/api/nothing", "/api/runs/tiny-llama/square?operator=%2B"):
        headers = {k.lower(): v for k, v in ask(address, path).headers.items()}
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]:1"])
def test_other_names_are_refused(address: str, host: str) -> None:
    """A page from elsewhere that made its own name lead here cannot read anything."""
    assert "only under the name" in ask(address, "/api/runs", host=host).sentence


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1", "[::1]:8350"])
def test_this_machines_names_are_answered(address: str, host: str) -> None:
    assert ask(address, "/api/runs", host=host).status == 200


def test_only_this_machine_is_listened_to(address: str) -> None:
    port = urlsplit(address).port
    others = {i[4][0] for i in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for other in others:
        if not other.startswith("127."):
            with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
                socket.create_connection((other, port), 2)


def test_pages_are_served_from_the_package(address: str) -> None:
    assert ask(address, "/").body == static_files()["index.html"]
    for name, content in static_files().items():
        found = ask(address, f"/static/{name}")
        assert (found.status, found.body) == (200, content)


def test_pages_refer_to_nothing_elsewhere() -> None:
    for name, content in static_files().items():
        text = content.decode()
        assert text.replace("http://www.w3.org/2000/svg", "").count("://") == 0, name

"""Requests that the explorer refuses, its headers, and its static files."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from arithscope.errors import UserError
from arithscope.explorer.access import MAX_BODY_BYTES, HostNames
from arithscope.explorer.server import bound_socket, static_files
from tests.explorer.client import post_ablation, send

BAD_PATHS = {
    "no such run": ("/api/runs/nobody/training", 404),
    "a path as a run": ("/api/runs/..%2F..%2Fetc%2Fpasswd/results", 404),
    "a path upwards": ("/static/../../../../etc/passwd", 404),
    "a percent-encoded path upwards": ("/static/%2e%2e/%2e%2e/server.py", 404),
    "a path from the root": ("/static//etc/passwd", 404),
    "a null byte": ("/static/app.js%00", 404),
    "a Python file of the package": ("/static/server.py", 404),
    "a huge layer": ("/api/runs/tiny-llama/neurons/99999999999999999999/0?operator=%2B", 422),
    "a huge neuron": ("/api/runs/tiny-llama/neurons/5/2147483647?operator=%2B", 400),
    "a negative layer": ("/api/runs/tiny-llama/neurons/-1/0?operator=%2B", 422),
    "a layer that is not a number": ("/api/runs/tiny-llama/neurons/five/0?operator=%2B", 422),
    "no operator": ("/api/runs/tiny-llama/neurons/5/0", 422),
    "an unknown operator": ("/api/runs/tiny-llama/neurons/5/0?operator=%25", 422),
    "an operator outside the run": ("/api/runs/tiny-llama/neurons/5/0?operator=*", 400),
    "predictions for an operator outside the run": ("/api/runs/tiny-llama/predictions?operator=/", 404),
    "too many rows": ("/api/runs/tiny-llama/neurons?size=501", 422),
    "a negative offset": ("/api/runs/tiny-llama/neurons?offset=-1", 422),
    "an unknown sort column": ("/api/runs/tiny-llama/neurons?sort=__class__", 422),
    "a long search text": ("/api/runs/tiny-llama/heuristics?search=" + "x" * 5000, 422),
    "a table with too many rows": ("/api/runs/tiny-llama/results/accuracy/prompts?size=501", 422),
    "an unknown column of a table": ("/api/runs/tiny-llama/results/accuracy/prompts?sort=__class__", 422),
    "an unknown stage": ("/api/runs/tiny-llama/results/nothing/prompts", 404),
    "an unknown table": ("/api/runs/tiny-llama/results/accuracy/__class__", 404),
    "a path as a table": ("/api/runs/tiny-llama/results/accuracy/..%2Faccuracy%2Fprompts", 404),
    "no prompt": ("/api/runs/tiny-llama/explanation", 400),
    "a text that is not a prompt": ("/api/runs/tiny-llama/explanation?prompt=hello", 400),
    "an operand beyond the run": ("/api/runs/tiny-llama/explanation?prompt=41%2B1", 400),
    "a negative answer": ("/api/runs/tiny-llama/explanation?prompt=1-2", 400),
    "invalid UTF-8": ("/api/runs/tiny-llama/explanation?prompt=%ff%fe", 400),
    "no such path": ("/api/nothing", 404),
}


@pytest.mark.parametrize("name", BAD_PATHS)
def test_bad_paths_get_one_sentence(address: str, name: str) -> None:
    path, status = BAD_PATHS[name]
    reply = send(address, path)
    assert reply.status == status
    assert reply.error


BAD_BODIES: dict[str, tuple[Any, int]] = {
    "an empty object": ({}, 422),
    "a list": ([], 422),
    "a neuron that is not a pair": ({"prompt": "1+1", "neurons": [[1]]}, 422),
    "a neuron that is not a number": ({"prompt": "1+1", "neurons": [["a", "b"]]}, 422),
    "a neuron that does not exist": ({"prompt": "1+1", "neurons": [[5, 512]]}, 400),
    "a huge neuron": ({"prompt": "1+1", "neurons": [[5, 10**30]]}, 422),
    "a lone surrogate": ({"prompt": "\ud800"}, 422),
    "an unknown field": ({"prompt": "1+1", "path": "/etc/passwd"}, 422),
    "no such heuristic": ({"prompt": "1+1", "heuristics": ["op1 mod 2 = 7"]}, 404),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_bodies_get_one_sentence(address: str, name: str) -> None:
    body, status = BAD_BODIES[name]
    reply = post_ablation(address, body)
    assert reply.status == status
    assert reply.error


def test_bodies_that_are_not_json_or_too_long_are_refused(address: str) -> None:
    path = "/api/runs/tiny-llama/ablate"
    assert send(address, path, "POST", b"{", content_type="application/json").error
    long = send(address, path, "POST", b" " * (MAX_BODY_BYTES + 1), content_type="application/json")
    assert (long.status, "longer than" in long.error) == (413, True)
    endless = send(address, path, "POST", b"2\r\n{}\r\n0\r\n\r\n", transfer_encoding="chunked")
    assert (endless.status, "content-length" in endless.error) == (411, True)
    assert send(address, path, "DELETE").status == 405
    assert send(address, path, "POST", b"prompt=1", content_type="application/x-www-form-urlencoded").error


def test_replies_carry_strict_headers(address: str) -> None:
    for path in ("/", "/static/app.js", "/api/runs", "/api/nothing", "/api/runs/tiny-llama/predictions?operator=%2B"):
        headers = {k.lower(): v for k, v in send(address, path).headers.items()}
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_an_empty_prompt_gets_a_sentence_that_says_what_to_type(address: str) -> None:
    sentence = "The prompt is empty; write one as in 226-68=."
    for query in ("", "?prompt=", "?prompt=%20"):
        assert send(address, f"/api/runs/tiny-llama/explanation{query}").error == sentence
    assert post_ablation(address, {"prompt": ""}).error == sentence


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]:1", "10.0.0.1"]
)
def test_other_host_names_are_refused(address: str, host: str) -> None:
    """A remote page whose host name resolves to this machine (DNS rebinding) can read nothing."""
    reply = send(address, "/api/runs", host=host)
    assert (reply.status, "does not answer to this host name" in reply.error) == (403, True)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "localhost.:9", "127.0.0.1", "127.8.8.8:1", "[::1]:8350"])
def test_loopback_host_names_are_answered(address: str, host: str) -> None:
    assert send(address, "/api/runs", host=host).status == 200


@pytest.mark.parametrize("host", ["LOCALHOST", "localhost.", "127.0.0.2", "127.1", "::1", "::ffff:127.0.0.1"])
def test_every_spelling_of_loopback_answers_to_loopback_names_only(host: str) -> None:
    names = names_of(host)
    assert names.include("localhost:1")
    assert names.include("127.0.0.1:1")
    assert not names.include("evil.example")
    assert not names.include(f"{socket.gethostname()}:1")
    assert not names.include("192.168.1.2:1")


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "::"])
def test_a_server_on_all_addresses_answers_to_addresses_and_its_own_names(host: str) -> None:
    names = names_of(host)
    for allowed in ("localhost", "127.0.0.1", "192.168.1.2", "[2001:db8::1]", socket.gethostname().upper()):
        assert names.include(f"{allowed}:8350"), allowed
    for foreign in (
        "evil.example",
        f"{socket.gethostname()}.evil.example",
        "1.2.3.4.evil.example",
        "[evil.example]",
        "",
    ):
        assert not names.include(f"{foreign}:8350"), foreign


def test_a_server_with_a_name_answers_to_it() -> None:
    names = HostNames("192.168.1.2", "Lab.example.")
    assert names.include("lab.example:8350")
    assert not names.include("evil.lab.example:8350")


def names_of(host: str) -> HostNames:
    """The host names of a server started with this --host."""
    try:
        bound = bound_socket(host, 0)
    except UserError:
        pytest.skip(f"this machine has no {host}")
    with bound:
        return HostNames(bound.getsockname()[0], host)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}", ""]
)
def test_other_origins_are_refused(address: str, origin: str) -> None:
    """Also for pages and scripts, and whatever the method."""
    origin = origin.format(port=urlsplit(address).port)
    for path, method in (("/", "GET"), ("/static/app.js", "GET"), ("/api/runs", "GET"), ("/api/runs/x/ablate", "POST")):
        reply = send(address, path, method, origin=origin)
        assert (reply.status, "other web pages" in reply.error) == (403, True)


def test_requests_of_the_own_page_are_answered(address: str) -> None:
    assert send(address, "/api/runs", origin=address.rstrip("/"), sec_fetch_site="same-origin").status == 200
    assert send(address, "/", sec_fetch_site="none", sec_fetch_mode="navigate").status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_pages_may_link_to_the_explorer_and_nothing_else(address: str, site: str) -> None:
    """An image or a script of a foreign page has no Origin header; same-site is another port of this machine."""
    assert send(address, "/", sec_fetch_site=site, sec_fetch_mode="navigate").status == 200
    assert send(address, "/", sec_fetch_site=site, sec_fetch_mode="no-cors").status == 403
    for mode in ("navigate", "no-cors", "cors"):
        assert "other web pages" in send(address, "/api/runs", sec_fetch_site=site, sec_fetch_mode=mode).error


def test_the_server_listens_on_127_0_0_1_only(address: str) -> None:
    """127.0.0.2, too, is this machine; a server that listens on all addresses would accept the connection."""
    others = {i[4][0] for i in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for other in others | {"127.0.0.2"}:
        with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
            socket.create_connection((other, urlsplit(address).port), 2)


def test_static_files_are_served_from_the_package(address: str) -> None:
    assert send(address, "/").body == static_files()["index.html"]
    for name, content in static_files().items():
        reply = send(address, f"/static/{name}")
        assert (reply.status, reply.body) == (200, content)


def test_static_files_refer_to_no_other_server() -> None:
    for name, content in static_files().items():
        text = content.decode()
        assert text.replace("http://www.w3.org/2000/svg", "").count("://") == 0, name

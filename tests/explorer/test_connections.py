"""Clients that are slow, silent or too many, on plain sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from arithscope.explorer import connections
from tests.explorer.client import send, serving

HEAD = b"POST /api/runs/tiny-llama/ablate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
GET = b"GET /static/style.css HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def address(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of an explorer that gives its clients half a second."""
    monkeypatch.setattr(connections, "CLIENT_SECONDS", 0.5)
    with serving([small_run]) as url:
        yield url


def connect(address: str) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", urlsplit(address).port or 0))
    opened.settimeout(20)
    return opened


def until_closed(client: socket.socket) -> bytes:
    """Everything the server sends before it closes the connection."""
    received = b""
    while part := client.recv(2**16):
        received += part
    return received


def sentence(reply: bytes, status: int) -> str:
    """The sentence of a refusal, which has the headers of every reply."""
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-security-policy: default-src 'none'" in head
    return str(json.loads(body)["error"])


@pytest.mark.parametrize(
    "part",
    {
        "half of the headers": HEAD,
        "no body": HEAD + b"content-length: 9\r\n\r\n",
        "half of the body": HEAD + b'content-length: 90\r\n\r\n{"prompt"',
    }.items(),
    ids=lambda part: part[0],
)
def test_half_a_request_is_not_waited_for(address: str, part: tuple[str, bytes]) -> None:
    with connect(address) as client:
        client.sendall(part[1])
        assert "did not arrive within" in sentence(until_closed(client), 408)


def test_a_request_that_trickles_in_is_not_waited_for(address: str) -> None:
    with connect(address) as client, pytest.raises(OSError):  # noqa: PT011 (broken pipe, or reset)
        client.sendall(b"GET / HTTP/1.1\r\nx: ")
        for _ in range(200):
            client.sendall(b"y")
            time.sleep(0.1)


def test_silent_connections_are_closed(address: str) -> None:
    """A connection without any request, and one that stays open after a reply."""
    with connect(address) as silent, connect(address) as idle:
        idle.sendall(GET)
        assert until_closed(idle).startswith(b"HTTP/1.1 200 ")
        assert until_closed(silent) == b""


def test_a_body_that_is_refused_is_not_read_for_ever(address: str) -> None:
    with connect(address) as client, pytest.raises(OSError):  # noqa: PT011 (broken pipe, or reset)
        client.sendall(HEAD + b"content-length: 99999999\r\n\r\n")
        for _ in range(200):
            client.sendall(b"x" * 100)
            time.sleep(0.1)


def test_a_client_that_does_not_read_is_dropped(address: str) -> None:
    requests = 1500  # with replies of 18 MB together, more than the system's buffers hold
    with connect(address) as client:
        client.sendall(GET * requests)
        time.sleep(2)
        received = b""
        with suppress(ConnectionResetError):
            while part := client.recv(2**16):
                received += part
    assert 0 < received.count(b"HTTP/1.1 200 ") < requests


def test_half_a_request_does_not_keep_the_explorer_from_ending(small_run: Path) -> None:
    with serving([small_run]) as url:
        client = connect(url)
        client.sendall(HEAD + b"content-length: 9\r\n\r\n")
        assert send(url, "/").status == 200  # so the beginning has been read
    client.close()


def test_what_is_not_http_gets_a_sentence(address: str) -> None:
    with connect(address) as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert "Invalid HTTP request" in sentence(until_closed(client), 400)


def test_requests_that_arrive_together_are_all_answered(address: str) -> None:
    """The second, complete one is not counted as late while the first is answered."""
    live = GET.replace(b"static/style.css", b"api/runs/tiny-llama/explanation?prompt=3%2B4")
    with connect(address) as client:
        client.sendall(live + GET + live)
        assert until_closed(client).count(b"HTTP/1.1 200 ") == 3


def test_connections_that_wait_longest_make_room(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections are held open, new ones are answered."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 10)
    with ExitStack() as stack, serving([small_run]) as url:
        begun = stack.enter_context(connect(url))
        begun.sendall(HEAD)
        assert send(url, "/").status == 200  # so the beginning has been read
        silent = [stack.enter_context(connect(url)) for _ in range(30)]
        assert send(url, "/").status == 200
        assert "too many connections" in sentence(until_closed(begun), 503)
        assert until_closed(silent[0]) == b""
        silent[-1].sendall(GET)
        assert silent[-1].recv(12) == b"HTTP/1.1 200"

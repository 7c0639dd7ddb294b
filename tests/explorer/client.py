"""An explorer that listens on a real socket, and requests to it exactly as given."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from arithscope.explorer.access import HostNames
from arithscope.explorer.server import bound_socket, make_app, make_server
from arithscope.results.run import Run


@contextmanager
def serving(paths: Sequence[Path]) -> Iterator[str]:
    """Serve run folders on a free loopback port; yields the address."""
    server = make_server(make_app([Run(path) for path in paths], HostNames("127.0.0.1")))
    with bound_socket("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@contextmanager
def serving_process(*paths: Path) -> Iterator[tuple[str, int]]:
    """Serve run folders as a process of its own, which must end cleanly on Ctrl-C; yields its address and its id."""
    command = [sys.executable, "-m", "arithscope", "explore", *map(str, paths), "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[4], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")


class Reply:
    def __init__(self, response: http.client.HTTPResponse):
        self.status, self.headers, self.body = response.status, dict(response.getheaders()), response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """Message of a refusal: one sentence, with no internals of the program."""
        assert 400 <= self.status < 500 or self.status == 503
        [(key, text)] = self.json.items()
        assert key == "error"
        assert text.endswith(".")
        assert "\n" not in text
        assert "Traceback" not in text
        return str(text)


def send(address: str, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Reply:
    """Send a request with exactly this path; other clients normalize paths, attackers do not."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        connection.request(method, path, body or None, {k.replace("_", "-"): v for k, v in headers.items()})
        return Reply(connection.getresponse())
    finally:
        connection.close()


def get(address: str, *parts: str | int, **values: Any) -> Reply:
    """GET something of the tiny-llama run."""
    path = "/api/runs/tiny-llama" + "".join(f"/{quote(str(part), safe='')}" for part in parts)
    return send(address, f"{path}?{urlencode(values)}")


def post_ablation(address: str, content: Any) -> Reply:
    """POST an ablation to the tiny-llama run."""
    body = json.dumps(content).encode()
    return send(address, "/api/runs/tiny-llama/ablate", "POST", body, content_type="application/json")

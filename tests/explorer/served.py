"""An explorer that really listens, and requests to it as a browser, or somebody worse, would send them."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import uvicorn

from arithscope.explorer.serve import LOOPBACK, bound_socket
from arithscope.explorer.server import make_app
from arithscope.results.run import Run


@contextmanager
def serving(paths: Sequence[Path]) -> Iterator[str]:
    """The address of an explorer over some run folders, on a free port of this machine."""
    app = make_app([Run(path) for path in paths], LOOPBACK)
    with bound_socket("127.0.0.1", 0) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(30)


class Answer:
    def __init__(self, response: http.client.HTTPResponse):
        self.status, self.headers, self.body = response.status, dict(response.getheaders()), response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def sentence(self) -> str:
        """Of a refusal: one sentence, and nothing of the program's inside."""
        assert 400 <= self.status < 500
        [(key, text)] = self.json.items()
        assert key == "error"
        assert text.endswith(".")
        assert "\n" not in text
        assert "Traceback" not in text
        return str(text)


def ask(address: str, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
    """A request with exactly this path: clients tidy up paths, attackers do not."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        connection.request(method, path, body or None, {k.replace("_", "-"): v for k, v in headers.items()})
        return Answer(connection.getresponse())
    finally:
        connection.close()


def get(address: str, *parts: str | int, **values: Any) -> Answer:
    """From the run of tiny-llama."""
    path = "/api/runs/tiny-llama" + "".join(f"/{quote(str(part), safe='')}" for part in parts)
    return ask(address, f"{path}?{urlencode(values)}")


def post(address: str, asked: Any) -> Answer:
    body = json.dumps(asked).encode()
    return ask(address, "/api/runs/tiny-llama/silence", "POST", body, content_type="application/json")

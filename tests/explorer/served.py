"""An explorer that really listens, for tests that talk to it as a browser would."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from arithscope.explorer.serve import LOOPBACK, bound_socket
from arithscope.explorer.server import make_app
from arithscope.runs.run import Run


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

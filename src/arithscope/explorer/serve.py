"""Starts the explorer: binds a port and opens a browser."""

import socket
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress

import uvicorn

from arithscope.errors import UserError
from arithscope.explorer.server import make_app
from arithscope.results.run import Run

LOOPBACK = ("127.0.0.1", "localhost", "::1")
FIRST_PORT, PORTS = 8350, 50


def serve(runs: Sequence[Run], host: str, port: int | None, browser: bool) -> None:
    """Serve runs until interrupted.

    Args:
        runs: Open runs.
        host: Address to listen on. On a loopback address, only requests for loopback host names are answered.
        port: Port to listen on; None takes the first free one from 8350.
        browser: Whether to open the page in a browser.

    Raises:
        UserError: If no port can be bound.
    """
    app = make_app(runs, LOOPBACK if host in LOOPBACK else None)
    bound = bound_socket(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}/"
    print(f"The explorer is at {address} (Ctrl-C stops it)", flush=True)
    if browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    with bound, suppress(KeyboardInterrupt):
        server.run(sockets=[bound])


def bound_socket(host: str, port: int | None) -> socket.socket:
    """A listening socket."""
    if not host:  # the system would listen on all addresses
        raise UserError("The explorer needs an address to listen on; name one with --host (0.0.0.0 for all).")
    reason = ""
    for candidate in range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else [port]:
        bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, candidate))
            bound.listen()  # from now on, connections wait instead of being refused
            return bound
        except (OSError, OverflowError, UnicodeError) as error:
            bound.close()
            reason = str(getattr(error, "strerror", None) or error)
    ports = f"ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1}" if port is None else f"port {port}"
    raise UserError(f"The explorer cannot listen on {ports} of {host} ({reason}); choose another --port or --host.")

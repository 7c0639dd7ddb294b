"""The explorer's web server: the page, and the API that it calls. It reads run folders and writes nothing.

Requests name runs, stages, operators, layers and neurons; none of these becomes a path. Static files are read once, at startup.
"""

import json
import socket
import threading
import webbrowser
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import uvicorn
from anyio import to_thread
from fastapi import FastAPI, Query, Request
from fastapi import Path as PathPart
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.explorer import views
from arithscope.explorer.access import HEADERS, HostNames, refusal
from arithscope.explorer.connections import IDLE_SECONDS, Connection
from arithscope.explorer.live import LiveWork
from arithscope.explorer.runs import (
    Criterion,
    HeuristicQuery,
    MapName,
    NeuronQuery,
    NotFound,
    Operator,
    RunRegistry,
    TableQuery,
)
from arithscope.pipeline.store import plain
from arithscope.results.run import Run
from arithscope.utils.printing import say

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FIRST_PORT, PORTS = 8350, 50
STORED_THREADS = 4  # for requests that need no model; many more only wait for each other

Measure = Literal["probability", "log_ratio", "logit"]
Name = Annotated[str, PathPart(max_length=200)]
Layer = Annotated[int, PathPart(ge=0, lt=2**15)]
NeuronNumber = Annotated[int, PathPart(ge=0, lt=2**31)]
Text = Annotated[str, Query(max_length=100)]


class ErrorReply(BaseModel):
    error: str  # one sentence


class Json(Response):
    """JSON in ASCII, so that any text can be sent; NaN becomes null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(plain(content), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def _binary(*arrays: np.ndarray[Any, Any]) -> Response:
    return Response(b"".join(array.tobytes() for array in arrays), media_type="application/octet-stream")


_BINARY: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": description}
    for status, description in ((400, "Invalid request"), (404, "Not found"), (422, "Invalid value"), (503, "Busy"))
}


def serve(runs: Sequence[Run], host: str, port: int | None, browser: bool) -> None:
    """Serve runs until interrupted. `HostNames` says to which host names the server answers."""
    bound = bound_socket(host, port)
    listens_on = bound.getsockname()[0]
    server = make_server(make_app(runs, HostNames(listens_on, host)))
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listens_on, listens_on)  # one that a browser can open
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{bound.getsockname()[1]}/"
    say(f"The explorer is at {address} (Ctrl-C stops it)")
    if browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    with bound, suppress(KeyboardInterrupt):
        server.run(sockets=[bound])


def make_server(app: FastAPI) -> uvicorn.Server:
    """A server for the web application that waits for no client for long."""
    config = uvicorn.Config(app, http=Connection, ws="none", timeout_keep_alive=IDLE_SECONDS, log_level="error")
    return uvicorn.Server(config)


def bound_socket(host: str, port: int | None) -> socket.socket:
    """A listening socket; without a port, on the first free one from FIRST_PORT."""
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


def make_app(runs: Sequence[Run], names: HostNames) -> FastAPI:
    """The web application for some runs.

    Pages, styles and scripts are sent by the event loop itself; stored data is read by a few threads; live work has its own
    thread. So none of them waits for what comes after it in this list.
    """
    registry, static, live = RunRegistry(runs), static_files(), LiveWork()
    app = FastAPI(
        title="arithscope explorer",
        version=__version__,
        docs_url=None,  # these pages load scripts from a CDN
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=Json,
        responses=_ERRORS,
        exception_handlers=dict.fromkeys((UserError, RequestValidationError, HTTPException), _error_reply),
        lifespan=_lifespan,
    )
    app.add_middleware(Guard, names=names)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static_file(name: str) -> Response:
        if name not in static:
            raise NotFound("There is no such page.")
        return Response(static[name], media_type=TYPES[Path(name).suffix])

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return await static_file("index.html")

    @app.get("/api/runs")
    def all_runs() -> Any:
        return Json({"version": __version__, "runs": [views.run_info(served) for served in registry]})

    @app.get("/api/runs/{run}/results")
    def results(run: Name) -> Any:
        return Json(views.results(registry[run]))

    @app.get("/api/runs/{run}/results/{stage}/{table}")
    def result_table(run: Name, stage: Name, table: Name, query: Annotated[TableQuery, Query()]) -> Any:
        return Json(views.result_table(registry[run], stage, table, query))

    @app.get("/api/runs/{run}/predictions", **_BINARY)
    def predictions(run: Name, operator: Operator) -> Any:
        return _binary(*registry[run].predictions(operator))

    @app.get("/api/runs/{run}/neurons")
    def neurons(run: Name, query: Annotated[NeuronQuery, Query()]) -> Any:
        return Json(registry[run].neurons.page(query))

    @app.get("/api/runs/{run}/neurons/{layer}/{neuron}")
    def neuron(run: Name, layer: Layer, neuron: NeuronNumber, operator: Operator) -> Any:
        return Json(views.neuron_page(registry[run], operator, layer, neuron))

    @app.get("/api/runs/{run}/neurons/{layer}/{neuron}/activation_map", **_BINARY)
    async def activation_map(
        request: Request,
        run: Name,
        layer: Layer,
        neuron: NeuronNumber,
        operator: Operator,
        checkpoint: Text | None = None,
    ) -> Any:
        wanted = MapName(operator, layer, neuron, checkpoint)
        activations = await run_in_threadpool(lambda: registry[run].known_map(wanted))
        if activations is None:
            activations = await live.run(
                request, lambda advance: views.computed_map(registry, registry[run], wanted, advance)
            )
        return _binary(activations)

    @app.get("/api/runs/{run}/heuristics")
    def heuristics(run: Name, query: Annotated[HeuristicQuery, Query()]) -> Any:
        table = registry[run].heuristics
        return Json({**table.page(query), "kinds": table.by_kind(query.criterion, query.operator)})

    @app.get("/api/runs/{run}/heuristics/prompts", **_BINARY)
    def heuristic_prompts(run: Name, operator: Operator, heuristic: Text) -> Any:
        return _binary(views.heuristic_prompts(registry[run], operator, heuristic))

    @app.get("/api/runs/{run}/circuit")
    def circuit(run: Name, operator: Operator, measure: Measure = "log_ratio") -> Any:
        return Json(views.circuit(registry[run], operator, measure))

    @app.get("/api/runs/{run}/carries")
    def carries(run: Name) -> Any:
        return Json(views.carries(registry[run]))

    @app.get("/api/runs/{run}/training")
    def training(run: Name) -> Any:
        return Json(views.training(registry[run]))

    @app.get("/api/runs/{run}/explanation")
    async def explanation(request: Request, run: Name, prompt: Text = "", criterion: Criterion = "calibrated") -> Any:
        return await live.run(
            request, lambda advance: Json(views.explanation(registry, registry[run], prompt, criterion))
        )

    @app.get("/api/runs/{run}/answer")
    async def answer(request: Request, run: Name, prompt: Text = "") -> Any:
        return await live.run(request, lambda advance: Json(views.answer_steps(registry, registry[run], prompt)))

    @app.post("/api/runs/{run}/ablate")
    async def ablate(request: Request, run: Name, wanted: views.AblationRequest) -> Any:
        return await live.run(request, lambda advance: Json(views.ablation(registry, registry[run], wanted)))

    @app.get("/api/comparison")
    def comparison() -> Any:
        return Json(views.comparison(registry))

    return app


def static_files() -> dict[str, bytes]:
    """Contents of the page, its styles and its scripts, by name."""
    return {file.relative_to(STATIC).as_posix(): file.read_bytes() for file in STATIC.rglob("*.*")}


class Guard:
    """Refuses some requests, and adds the security headers to every reply."""

    def __init__(self, app: ASGIApp, names: HostNames):
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = refusal(scope["path"], Headers(scope=scope), self._names)
        app = self._app if refused is None else Json({"error": refused[1]}, refused[0])
        await app(scope, receive, send_with_headers)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    to_thread.current_default_thread_limiter().total_tokens = STORED_THREADS
    yield


async def _error_reply(request: Request, error: Any) -> Response:
    """The reply to a request that fails: one sentence."""
    if isinstance(error, HTTPException):
        return Json({"error": f"{error.detail}."}, error.status_code, error.headers)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:]) or "the request"
        return Json({"error": f"Invalid value of {name[:100]}: {first['msg']}."}, 422)
    return Json({"error": str(error)}, 404 if isinstance(error, NotFound) else 400)

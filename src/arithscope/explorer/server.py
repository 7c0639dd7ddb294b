"""The explorer's server: a page, and what it asks for. Reads run folders and changes nothing.

Requests name runs, operators, layers and neurons; none of that becomes a path. Pages and scripts are read once, at start, and
served from memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.explorer import views
from arithscope.explorer.guard import Guard
from arithscope.explorer.live import Live
from arithscope.explorer.request_models import (
    Ablation,
    Criterion,
    HeuristicsAsked,
    Layer,
    Measure,
    NeuronIndex,
    NeuronsAsked,
    Operator,
    Problem,
    RunName,
    Text,
)
from arithscope.explorer.run_registry import NotThere, RunRegistry
from arithscope.pipeline.store import plain
from arithscope.results.run import Run

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Json(Response):
    """Plain JSON, in ASCII: whatever a text holds, it can be sent. NaN becomes null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(plain(content), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def _binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": what}
    for status, what in ((400, "A mistake in the request"), (404, "Not there"), (422, "A value of the wrong kind"))
}


def make_app(runs: Sequence[Run], hosts: Sequence[str] | None) -> Guard:
    """The application for some runs; `hosts` are the names under which it may be reached (None: any)."""
    run_registry = RunRegistry(runs)
    live = Live(run_registry)
    app = FastAPI(
        title="arithscope explorer",
        version=__version__,
        docs_url=None,  # its pages would fetch scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=Json,
        responses=_PROBLEMS,
    )
    _serve_pages(app)
    _serve_problems(app)

    @app.get("/api/runs")
    def all_runs() -> Any:
        return Json(
            {"version": __version__, "runs": [views.described(served) for served in run_registry.runs.values()]}
        )

    @app.get("/api/runs/{run}/summary")
    def summary(run: RunName) -> Any:
        return Json(run_registry[run].run.folder.summary)

    @app.get("/api/runs/{run}/square", response_class=Response, responses=_BYTES)
    def operand_grid(run: RunName, operator: Operator) -> Any:
        return _binary(views.square_bytes(run_registry[run], operator))

    @app.get("/api/runs/{run}/neurons")
    def neurons(run: RunName, asked: Annotated[NeuronsAsked, Query()]) -> Any:
        return Json(run_registry[run].neurons.page(asked))

    @app.get("/api/runs/{run}/neurons/{layer}/{neuron}")
    def neuron(run: RunName, layer: Layer, neuron: NeuronIndex, operator: Operator) -> Any:
        return Json(views.neuron_page(run_registry[run], operator, layer, neuron))

    @app.get("/api/runs/{run}/neurons/{layer}/{neuron}/pattern", response_class=Response, responses=_BYTES)
    def pattern(
        run: RunName, layer: Layer, neuron: NeuronIndex, operator: Operator, checkpoint: Text | None = None
    ) -> Any:
        return _binary(views.pattern_bytes(live.pattern(run_registry[run], operator, layer, neuron, checkpoint)))

    @app.get("/api/runs/{run}/heuristics")
    def heuristics(run: RunName, asked: Annotated[HeuristicsAsked, Query()]) -> Any:
        table = run_registry[run].heuristics
        return Json({**asdict(table.page(asked)), "kinds": table.by_kind(asked.criterion, asked.operator)})

    @app.get("/api/runs/{run}/heuristics/prompts", response_class=Response, responses=_BYTES)
    def heuristic_prompts(run: RunName, operator: Operator, heuristic: Text) -> Any:
        return _binary(views.prompts_of_heuristic(run_registry[run], operator, heuristic))

    @app.get("/api/runs/{run}/circuit")
    def circuit(run: RunName, operator: Operator, measure: Measure = "log_ratio") -> Any:
        return Json(views.circuit(run_registry[run], operator, measure))

    @app.get("/api/runs/{run}/training")
    def training(run: RunName) -> Any:
        return Json(views.training(run_registry[run]))

    @app.get("/api/runs/{run}/explanation")
    def explanation(run: RunName, prompt: Text, criterion: Criterion = "calibrated") -> Any:
        return Json(live.explanation(run_registry[run], prompt, criterion))

    @app.post("/api/runs/{run}/silence")
    def silence(run: RunName, asked: Ablation) -> Any:
        return Json(live.ablated(run_registry[run], asked.prompt, asked.criterion, asked.neurons, asked.heuristics))

    @app.get("/api/comparison")
    def comparison() -> Any:
        return Json(views.comparison(run_registry.comparison, run_registry.compared_names))

    return Guard(app, hosts)


def _serve_pages(app: FastAPI) -> None:
    pages = {name: (content, TYPES[PurePosixPath(name).suffix]) for name, content in static_files().items()}

    @app.get("/", include_in_schema=False)
    def index() -> Response:
        return _page("index.html")

    @app.get("/static/{name:path}", include_in_schema=False)
    def static(name: str) -> Response:
        return _page(name)

    def _page(name: str) -> Response:
        if name not in pages:
            raise NotThere("There is no such page.")
        content, media_type = pages[name]
        return Response(content, media_type=media_type)


def static_files() -> dict[str, bytes]:
    """Pages, styles and scripts that come with the package, by name."""
    folder = files("arithscope.explorer") / "static"
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= {f"{entry.name}/{inner.name}": inner.read_bytes() for inner in entry.iterdir()}
        else:
            found[entry.name] = entry.read_bytes()
    return found


def _serve_problems(app: FastAPI) -> None:
    """Whatever is wrong with a request, the answer is one sentence."""

    @app.exception_handler(UserError)
    async def mistaken(request: Request, error: UserError) -> Response:
        return Json({"error": str(error)}, status_code=404 if isinstance(error, NotThere) else 400)

    @app.exception_handler(RequestValidationError)
    async def wrong_kind(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the request"
        return Json({"error": f"{where[:100]} cannot be used: {first['msg']}."}, status_code=422)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return Json({"error": f"{error.detail}."}, status_code=error.status_code, headers=error.headers)

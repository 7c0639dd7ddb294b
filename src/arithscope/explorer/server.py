"""The explorer's web server: the page, and the API that it calls. Reads run folders and writes nothing.

Requests name runs, stages, operators, layers and neurons; none of these becomes a path. Static files are read once, at start.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.explorer import views
from arithscope.explorer.inference import Inference
from arithscope.explorer.request_guard import add_guard
from arithscope.explorer.request_models import (
    AblationRequest,
    Criterion,
    ErrorReply,
    HeuristicQuery,
    Layer,
    Measure,
    Name,
    NeuronNumber,
    NeuronQuery,
    NotFound,
    Operator,
    TableQuery,
    Text,
)
from arithscope.explorer.run_registry import RunRegistry
from arithscope.explorer.tables import page
from arithscope.pipeline.store import plain
from arithscope.results.run import Run

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Json(Response):
    """JSON in ASCII, so that any text can be sent; NaN becomes null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(plain(content), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def _binary(*arrays: np.ndarray[Any, Any]) -> Response:
    """Arrays as bytes, one after the other."""
    return Response(b"".join(array.tobytes() for array in arrays), media_type="application/octet-stream")


_BINARY: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": description}
    for status, description in ((400, "Invalid request"), (404, "Not found"), (422, "Invalid value"))
}


def make_app(runs: Sequence[Run], hosts: Sequence[str] | None) -> FastAPI:
    """The web application for some runs.

    Args:
        runs: The runs to serve.
        hosts: Host names that requests may use; None allows any.
    """
    registry = RunRegistry(runs)
    inference = Inference(registry)
    app = FastAPI(
        title="arithscope explorer",
        version=__version__,
        docs_url=None,  # these pages load scripts from a CDN
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=Json,
        responses=_ERRORS,
    )
    add_guard(app, hosts)
    _add_static_files(app)
    _add_error_handlers(app)

    @app.get("/api/runs")
    def all_runs() -> Any:
        return Json({"version": __version__, "runs": [views.run_info(served) for served in registry.runs.values()]})

    @app.get("/api/runs/{run}/results")
    def results(run: Name) -> Any:
        return Json(views.results(registry[run]))

    @app.get("/api/runs/{run}/results/{stage}/{table}")
    def result_table(run: Name, stage: Name, table: Name, query: Annotated[TableQuery, Query()]) -> Any:
        return Json(page(views.result_table(registry[run], stage, table), query))

    @app.get("/api/runs/{run}/predictions", **_BINARY)
    def predictions(run: Name, operator: Operator) -> Any:
        return _binary(*views.predictions(registry[run], operator))

    @app.get("/api/runs/{run}/neurons")
    def neurons(run: Name, query: Annotated[NeuronQuery, Query()]) -> Any:
        return Json(registry[run].neurons.page(query))

    @app.get("/api/runs/{run}/neurons/{layer}/{neuron}")
    def neuron(run: Name, layer: Layer, neuron: NeuronNumber, operator: Operator) -> Any:
        return Json(views.neuron_page(registry[run], operator, layer, neuron))

    @app.get("/api/runs/{run}/neurons/{layer}/{neuron}/activation_map", **_BINARY)
    def activation_map(
        run: Name, layer: Layer, neuron: NeuronNumber, operator: Operator, checkpoint: Text | None = None
    ) -> Any:
        activations = inference.activation_map(registry[run], operator, layer, neuron, checkpoint)
        return _binary(np.asarray(activations, "<f4"))

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

    @app.get("/api/runs/{run}/training")
    def training(run: Name) -> Any:
        return Json(views.training(registry[run]))

    @app.get("/api/runs/{run}/explanation")
    def explanation(run: Name, prompt: Text, criterion: Criterion = "calibrated") -> Any:
        return Json(inference.explanation(registry[run], prompt, criterion))

    @app.post("/api/runs/{run}/ablate")
    def ablate(run: Name, request: AblationRequest) -> Any:
        return Json(inference.ablate(registry[run], request))

    @app.get("/api/comparison")
    def comparison() -> Any:
        return Json(views.comparison(registry.comparison, registry.runs))

    return app


def static_files() -> dict[str, bytes]:
    """Contents of the page, its styles and its scripts, by name."""
    return {file.relative_to(STATIC).as_posix(): file.read_bytes() for file in STATIC.rglob("*.*")}


def _add_static_files(app: FastAPI) -> None:
    contents = static_files()

    @app.get("/", include_in_schema=False)
    def index() -> Response:
        return static("index.html")

    @app.get("/static/{name:path}", include_in_schema=False)
    def static(name: str) -> Response:
        if name not in contents:
            raise NotFound("There is no such page.")
        return Response(contents[name], media_type=TYPES[Path(name).suffix])


def _add_error_handlers(app: FastAPI) -> None:
    """Reply to every error with one sentence."""

    @app.exception_handler(UserError)
    async def user_error(request: Request, error: UserError) -> Response:
        return Json({"error": str(error)}, status_code=404 if isinstance(error, NotFound) else 400)

    @app.exception_handler(RequestValidationError)
    async def invalid_value(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:]) or "the request"
        return Json({"error": f"Invalid value of {name[:100]}: {first['msg']}."}, status_code=422)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return Json({"error": f"{error.detail}."}, status_code=error.status_code, headers=error.headers)

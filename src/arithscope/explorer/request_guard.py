"""Middleware that checks host names and body sizes and sets strict response headers."""

from collections.abc import Awaitable, Callable, Sequence

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

MAX_BODY_BYTES = 1_000_000
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def add_guard(app: FastAPI, hosts: Sequence[str] | None) -> None:
    """Refuse requests for other host names (which stops DNS rebinding) and long bodies; None allows any host name."""

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if problem := _problem(request, hosts):
            status, message = problem
            response: Response = JSONResponse({"error": message}, status)
        else:
            response = await call_next(request)
        response.headers.update(HEADERS)
        return response


def _problem(request: Request, hosts: Sequence[str] | None) -> tuple[int, str] | None:
    """Status and message for a request that is refused."""
    host = request.headers.get("host", "").lower()
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if hosts is not None and name.strip("[]") not in hosts:
        return 400, "The server answers only to the host name it was started with."
    if "transfer-encoding" in request.headers:
        return 411, "The request has no content-length."
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 12 or int(length) > MAX_BODY_BYTES:
        return 413, f"The request is longer than {MAX_BODY_BYTES:,} bytes."
    return None

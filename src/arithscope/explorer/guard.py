"""What stands before the application: who may call it, how much they may send, and what a page of it may do."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

MOST_BYTES = 1_000_000  # of a request's body

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

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


class Guard:
    """Requests are answered only if they name an expected host (a page from elsewhere, whose name was made to lead here, does
    not), and only if they say how long they are, and are not long. Every answer carries the same strict headers."""

    def __init__(self, app: Any, hosts: Sequence[str] | None):
        self.app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message.get("headers", []) if k.decode("latin-1").lower() not in HEADERS]
                ours = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message = {**message, "headers": [*kept, *ours]}
            await send(message)

        refusal = self._refusal({k.lower(): v for k, v in scope.get("headers", [])})
        if refusal is None:
            await self.app(scope, receive, guarded)
            return
        status, sentence = refusal
        body = json.dumps({"error": sentence}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await guarded({"type": "http.response.start", "status": status, "headers": headers})
        await guarded({"type": "http.response.body", "body": body})

    def _refusal(self, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self._hosts is not None and name.strip("[]") not in self._hosts:
            return 400, "This server answers only under the name it was started with."
        if b"transfer-encoding" in headers:
            return 411, "A request must say how long it is."
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 12 or int(length) > MOST_BYTES:
            return 413, f"A request may have {MOST_BYTES:,} bytes at the most."
        return None

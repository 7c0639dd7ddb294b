"""Connections that end when the client takes too long, and are limited in number.

By itself, uvicorn waits for ever for a connection's first request, for the rest of a request that has begun to arrive, and for
a client that does not read its reply; it only closes connections that are idle after a reply.
"""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from arithscope.explorer.access import HEADERS

IDLE_SECONDS = 5  # after a reply
CLIENT_SECONDS = 30  # for a whole request to arrive, or a reply to be read; idle seconds count
MAX_CONNECTIONS = 500


class Connection(H11Protocol):
    """A connection to a client, with a deadline whenever it is the client's turn."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._set_deadline()
        if len(self.connections) > MAX_CONNECTIONS:
            deadlines = {c: c.deadline.when() for c in self.connections if isinstance(c, Connection) and c.deadline}
            waits_longest = min(deadlines, key=deadlines.__getitem__)
            waits_longest.end(503, "The explorer has too many connections; try again in a few seconds.")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._clear_deadline_if_arrived()

    def on_response_complete(self) -> None:
        self._set_deadline()
        super().on_response_complete()
        self._clear_deadline_if_arrived()  # the next request may have arrived together with the last one

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear_deadline_if_arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self.deadline is not None:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self.end(400, msg)

    def end(self, status: int, sentence: str) -> None:
        """End the connection; with this reply, if part of a request has arrived."""
        self._clear_deadline()
        has_begun = self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]
        if has_begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = {**HEADERS, "content-type": "application/json", "connection": "close"}
            body = json.dumps({"error": sentence}).encode()
            reply = h11.Response(status_code=status, headers=[*headers.items(), ("content-length", str(len(body)))])
            for event in (reply, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.transport.get_write_buffer_size():  # the client does not read what it was sent
            self.transport.abort()
        else:
            self.transport.close()

    def _set_deadline(self) -> None:
        self._clear_deadline()
        late = f"The request did not arrive within {CLIENT_SECONDS} seconds."
        self.deadline = self.loop.call_later(CLIENT_SECONDS, self.end, 408, late)

    def _clear_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _clear_deadline_if_arrived(self) -> None:
        """If a whole request has arrived, and earlier replies have been read, it is the server's turn."""
        arrived = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if arrived and not self.flow.write_paused and not self.transport.is_closing():
            self._clear_deadline()

"""Many clients of the explorer at the same time, in one process, on plain sockets.

Each client pauses, as a person would, and then requests something and reads the reply, on a connection that it keeps; or it
requests live work and hangs up; or it sends half a request and waits.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

STATIC, STORED, LIVE, HANG_UP, HALF_OPEN = "static", "stored", "live", "hang up", "half-open"
MIX = {STATIC: 40, STORED: 40, LIVE: 12, HANG_UP: 6, HALF_OPEN: 2}  # per cent
PATIENCE = 60  # seconds until a client gives a request up as lost
HALF_OPEN_SECONDS = 10

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Load:
    """Clients that request the paths of each kind (STATIC, STORED, LIVE), with a mean pause in seconds, and what they see."""

    def __init__(self, address: str, paths: Mapping[str, Sequence[str]], pause: float):
        self._host, self._port = urlsplit(address).hostname, urlsplit(address).port
        self._paths, self._pause = paths, pause
        self.seconds: dict[str, list[float]] = defaultdict(list)  # until the whole reply was read, by kind
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.refusals: set[str] = set()  # bodies of replies that are not 200
        self.lost: list[str] = []  # requests without a reply

    def percentile(self, kind: str, share: float) -> float:
        """Milliseconds within which this share of the replies of a kind were read."""
        ordered = sorted(self.seconds[kind])
        return 1e3 * ordered[int(share * (len(ordered) - 1))]

    async def run(self, clients: int, seconds: float) -> None:
        """Let this many clients send requests for this long."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._client(random.Random(i), end) for i in range(clients)))

    async def _client(self, chance: random.Random, end: float) -> None:
        connection = None
        while time.monotonic() + (pause := chance.expovariate(1 / self._pause)) < end:
            await asyncio.sleep(pause)
            [kind] = chance.choices(list(MIX), list(MIX.values()))
            path = chance.choice(self._paths[kind if kind in self._paths else LIVE])
            if kind == HANG_UP:
                await self._leave(self._request(path), chance.uniform(0, 1))
                continue
            if kind == HALF_OPEN:
                await self._leave(self._request(path)[:-4], min(HALF_OPEN_SECONDS, end - time.monotonic()))
                continue
            started = time.perf_counter()
            try:
                async with asyncio.timeout(PATIENCE):
                    if connection is None or connection[0].at_eof():  # the server closes connections that are idle
                        connection = await self._open()
                    status, body = await self._reply(connection, path)
            except (TimeoutError, OSError, EOFError) as error:
                self.lost.append(f"{path}: {error!r}")
                connection = None
                continue
            self.seconds[kind].append(time.perf_counter() - started)
            self.statuses[kind, status] += 1
            if status != 200:
                self.refusals.add(body.decode())

    async def _open(self) -> Connection:
        return await asyncio.open_connection(self._host, self._port)

    def _request(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n\r\n".encode()

    async def _reply(self, connection: Connection, path: str) -> tuple[int, bytes]:
        reader, writer = connection
        writer.write(self._request(path))
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].split("\r\n")[0])
        return int(head.split()[1]), await reader.readexactly(length)

    async def _leave(self, sent: bytes, seconds: float) -> None:
        """Send something, and hang up after some seconds without reading a reply."""
        _, writer = await self._open()
        writer.write(sent)
        await asyncio.sleep(seconds)
        writer.close()

"""Live work, which needs a model: one request at a time, while a few wait. What nobody waits for any longer ends."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from fastapi import HTTPException, Request

from arithscope.utils.progress import Advance

MAX_WAITING = 8
RETRY_AFTER = "5"  # seconds
T = TypeVar("T")


class Abandoned(Exception):
    """Nobody waits for this work any longer."""


class LiveWork:
    """A thread of its own for live work, so that nothing else waits for it, and a queue of bounded length."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "live", _leave_a_core)
        self._requests = 0

    async def run(self, request: Request, work: Callable[[Advance], T]) -> T:
        """Do the work of a request as soon as all earlier work is done. If the client hangs up, it is not begun, or ends at the
        next call of the function that `work` gets.

        Raises:
            HTTPException: If too many requests wait already.
        """
        if self._requests > MAX_WAITING:
            reason = "The model is busy with other requests; try again in a few seconds"
            raise HTTPException(503, reason, {"retry-after": RETRY_AFTER})
        abandoned = threading.Event()

        def advance(n: int) -> None:
            if abandoned.is_set():
                raise Abandoned

        self._requests += 1
        done = asyncio.get_running_loop().run_in_executor(self._thread, work, advance)
        hung_up = asyncio.ensure_future(_hung_up(request))
        try:
            await asyncio.wait((done, hung_up), return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise HTTPException(499, "The client hung up")  # nobody reads this
            return done.result()
        finally:
            self._requests -= 1
            abandoned.set()
            done.cancel()
            hung_up.cancel()


def _leave_a_core() -> None:
    """Leave one core to the rest of the server."""
    torch.set_num_threads(max(1, torch.get_num_threads() - 1))


async def _hung_up(request: Request) -> None:
    """Wait until the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass

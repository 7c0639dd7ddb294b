"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 120.0  # on a busy machine a process takes long to begin


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; fails if it never does."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)

"""A clean stop: Ctrl-C, and the signal by which systems end programs, unwind everything and are told in one sentence."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 128 + signal.SIGINT  # the exit code that shells give to a program stopped by Ctrl-C


class Stop:
    """Which signal came, if any did."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        raise KeyboardInterrupt

    def told(self) -> int:
        """Say it, and return the exit code that stands for it. From here on signals are too late."""
        with suppress(ValueError):  # not in the main thread
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        print("Stopped; the same command goes on from here.", file=sys.stderr)
        return 128 + (self.signal or signal.SIGINT)


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Inside, either signal raises KeyboardInterrupt; the handlers of before come back behind it."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield stop
    finally:
        if stop.signal is None:
            for number, handler in before.items():
                signal.signal(number, handler)

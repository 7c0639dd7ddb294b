"""A clean stop on Ctrl-C and SIGTERM: both raise KeyboardInterrupt, so that context managers clean up."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 128 + signal.SIGINT  # a shell's exit code for a program stopped by Ctrl-C


class StopHandler:
    """Signal handler that remembers the signal and raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        raise KeyboardInterrupt

    def announce(self, resumes: bool) -> int:
        """Print that the command was stopped, ignore further signals, and return the exit code.

        Args:
            resumes: Whether the command, run again, continues where it was stopped.
        """
        with suppress(ValueError):  # not in the main thread
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        print("Stopped; run the same command again to continue." if resumes else "Stopped.", file=sys.stderr)
        return 128 + (self.signal or signal.SIGINT)


_handler = StopHandler()


def raise_if_stopped() -> None:
    """Raise KeyboardInterrupt again if a signal came and a library swallowed the first one.

    Compiled modules do while they are imported: Cython's code for registering a class ignores every exception.
    """
    if _handler.signal is not None:
        raise KeyboardInterrupt


@contextmanager
def stop_on_signals() -> Iterator[StopHandler]:
    """Install a StopHandler for SIGINT and SIGTERM; restores the previous handlers on exit unless a signal came."""
    global _handler
    outer, handler = _handler, StopHandler()
    _handler = handler
    installed = SIGNALS if threading.current_thread() is threading.main_thread() else ()  # Python allows it only there
    previous = {number: signal.signal(number, handler) for number in installed}
    try:
        yield handler
    finally:
        _handler = outer
        if handler.signal is None:
            for number, before in previous.items():
                signal.signal(number, before)

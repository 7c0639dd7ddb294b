"""Progress of long tasks: bars with the time left on a terminal, plain lines elsewhere, or nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from arithscope.utils.printing import PlainConsole, printable
from arithscope.utils.signals import raise_if_stopped

Advance = Callable[[int], None]  # called with the number of steps just finished


class Progress:
    """Shows the progress of tasks, and messages. This base class shows nothing."""

    def task(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """A task of `total` steps that lasts as long as the context. It does not begin if the command was stopped."""
        raise_if_stopped()
        return self._show(description, total)

    @contextmanager
    def _show(self, description: str, total: int) -> Iterator[Advance]:
        yield lambda steps: None

    def note(self, text: str) -> None:
        """Show a message."""


Silent = Progress


class Bars(Progress):
    """Shows a rich progress bar for each task."""

    def __init__(self, console: PlainConsole):
        self.console = console

    @contextmanager
    def _show(self, description: str, total: int) -> Iterator[Advance]:
        what = TextColumn("{task.description}", markup=False)
        done = SpinnerColumn(), what, BarColumn(), MofNCompleteColumn()
        times = TimeElapsedColumn(), "left:", TimeRemainingColumn()
        with RichProgress(*done, *times, console=self.console) as bar:
            task = bar.add_task(printable(description), total=total)
            yield lambda steps: bar.advance(task, steps)

    def note(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)


class Lines(Progress):
    """Writes a plain line at most every `every` seconds, for log files."""

    def __init__(self, write: Callable[[str], None], every: float = 10.0):
        self.write, self.every = write, every

    @contextmanager
    def _show(self, description: str, total: int) -> Iterator[Advance]:
        started = written = time.monotonic()
        done = 0

        def advance(steps: int) -> None:
            nonlocal done, written
            done += steps
            now = time.monotonic()
            if now - written >= self.every:
                written = now
                left = (now - started) * (total - done) / max(done, 1)
                self.write(f"{description}: {done:,} of {total:,}, about {left:.0f} s left")

        self.write(f"{description}: {total:,} to do")
        yield advance
        self.write(f"{description}: done in {time.monotonic() - started:.1f} s")

    def note(self, text: str) -> None:
        self.write(text)


def console_progress(console: PlainConsole) -> Progress:
    """Bars if the console is a terminal, lines otherwise."""
    bars = Bars(console)
    return bars if console.is_terminal else Lines(bars.note)

"""Progress of long work: a bar with an estimate on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichBar

Advance = Callable[[int], None]  # told how many more units are done


class Progress(Protocol):
    def task(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Work of `total` units, done inside the context."""

    def note(self, text: str) -> None:
        """Something a person following along should know."""


class Silent:
    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        yield lambda units: None

    def note(self, text: str) -> None:
        pass


class Bars:
    """A rich bar for each task."""

    def __init__(self, console: Console):
        self.console = console

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
        )
        with RichBar(*columns, console=self.console) as bar:
            number = bar.add_task(description, total=total)
            yield lambda units: bar.advance(number, units)

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


class Lines:
    """A plain line now and then, for logs."""

    def __init__(self, write: Callable[[str], None], every: float = 10.0):
        self.write, self.every = write, every

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        started = said = time.monotonic()
        done = 0

        def advance(units: int) -> None:
            nonlocal done, said
            done += units
            now = time.monotonic()
            if now - said >= self.every:
                said = now
                left = (now - started) * (total - done) / max(done, 1)
                self.write(f"{description}: {done:,} of {total:,}, about {left:.0f} s left")

        self.write(f"{description}: {total:,} to do")
        yield advance
        self.write(f"{description}: done in {time.monotonic() - started:.1f} s")

    def note(self, text: str) -> None:
        self.write(text)


def for_console(console: Console) -> Progress:
    if console.is_terminal:
        return Bars(console)
    return Lines(lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))

"""Executors run independent units of work, in this process or on a cluster.

A unit is one call of a package function, `function(model, *unit, advance=advance)`. Its arguments are plain data (numbers,
strings, arrays, and tuples, lists, dicts and dataclasses of these); so is its result, without dataclasses. The list of units
must not depend on the executor, so that the numbers do not either. Pass an argument that several units share as one object:
it is then sent and hashed once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from arithscope.utils import out_of_memory
from arithscope.utils.progress import Advance

Function = Callable[..., Any]
Unit = tuple[Any, ...]
Note = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class FinishedUnit:
    """Index of a finished unit, its result, and the number of steps it reported with `advance`."""

    index: int
    result: Any
    steps: int


class Executor:
    """Runs units. `where` describes the machines, or is None if units run in this process."""

    where: str | None = None

    def stream(self, function: Function, model: Any, units: Sequence[Unit], advance: Advance) -> Iterator[FinishedUnit]:
        """Yield units as they finish, in any order."""
        raise NotImplementedError

    def map(self, function: Function, model: Any, units: Sequence[Unit], advance: Advance) -> list[Any]:
        """Results of all units, in the order of `units`."""
        results = {unit.index: unit.result for unit in self.stream(function, model, units, advance)}
        return [results[index] for index in range(len(units))]


class LocalExecutor(Executor):
    """Runs units in this process, one after the other. `note` receives messages for the user."""

    def __init__(self, note: Note = lambda text: None):
        self.note = note

    def stream(self, function: Function, model: Any, units: Sequence[Unit], advance: Advance) -> Iterator[FinishedUnit]:
        for index, unit in enumerate(units):
            yield FinishedUnit(index, *run_unit(function, model, unit, advance, self.note))


LOCAL = LocalExecutor()


def split_evenly(n: int, size: int) -> list[slice]:
    """Split range(n) into the fewest chunks of at most `size`, of nearly equal length."""
    count = -(-n // size)
    return [slice(i * n // count, (i + 1) * n // count) for i in range(count)]


def run_unit(function: Function, model: Any, unit: Unit, advance: Advance, note: Note) -> tuple[Any, int]:
    """Run one unit, again with smaller chunks if it runs out of memory; returns its result and its number of steps."""
    name = function.__name__.strip("_")
    attempts = steps = reported = 0

    def count(more: int) -> None:
        nonlocal steps, reported
        steps += more
        if steps > reported:  # otherwise an earlier attempt has reported these steps
            advance(steps - reported)
            reported = steps

    while True:
        try:
            return function(model, *unit, advance=count), steps
        except Exception as error:
            if not out_of_memory.is_out_of_memory(error):
                raise
        # Outside the handler, so that the traceback no longer keeps the tensors of the failed attempt alive.
        attempts, steps = attempts + 1, 0
        if not out_of_memory.halve_chunks() and attempts > 1:
            raise out_of_memory.out_of_memory_error(f"a single row of {name}")
        note(f"{name}: out of memory, so passes are half as large from now on")

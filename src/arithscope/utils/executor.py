"""How heavy work is carried out: as units that know nothing of one another, here one after the other, or elsewhere.

A unit is one call of a function of the package: `function(subject, *unit, advance=advance)`. What it is given is plain data
(numbers, texts, arrays, and tuples, lists, dicts and dataclasses of such), and so is what it returns (but for dataclasses).
Which units there are must not depend on who carries them out: then the numbers do not either. An argument that several units
share should be the same object: it is sent, and hashed, once.
"""

from __future__ import annotations

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
    """A finished unit: its place among the units, what it returned, and how many steps it counted with `advance`."""

    place: int
    result: Any
    steps: int


class Executor:
    """Whoever carries out units. `where` says in words who that is, if it is not this process."""

    where: str | None = None

    def stream(self, function: Function, model: Any, units: Sequence[Unit], advance: Advance) -> Iterator[FinishedUnit]:
        """The units as they are finished, in any order."""
        raise NotImplementedError

    def map(self, function: Function, model: Any, units: Sequence[Unit], advance: Advance) -> list[Any]:
        """What the units return, in their order."""
        found = {done.place: done.result for done in self.stream(function, model, units, advance)}
        return [found[place] for place in range(len(units))]


class LocalExecutor(Executor):
    """In this process, one after the other. `note` is told what a person should know."""

    def __init__(self, note: Note = lambda text: None):
        self.note = note

    def stream(self, function: Function, model: Any, units: Sequence[Unit], advance: Advance) -> Iterator[FinishedUnit]:
        for place, unit in enumerate(units):
            yield FinishedUnit(place, *run_unit(function, model, unit, advance, self.note))


LOCAL = LocalExecutor()


def split_evenly(n: int, most: int) -> list[slice]:
    """0…n−1 in as few pieces of at most so many as there can be, all about as long."""
    count = -(-n // most)
    return [slice(i * n // count, (i + 1) * n // count) for i in range(count)]


def run_unit(function: Function, model: Any, unit: Unit, advance: Advance, note: Note) -> tuple[Any, int]:
    """What a unit returns, and how many steps it counted. Where memory is short it is done again in smaller pieces."""
    tries = steps = told = 0

    def count(more: int) -> None:
        nonlocal steps, told
        steps += more
        if steps > told:  # else it was told when this was tried before
            advance(steps - told)
            told = steps

    while True:
        out_of_memory.before_trying()
        try:
            return function(model, *unit, advance=count), steps
        except Exception as error:
            if not out_of_memory.is_out_of_memory(error):
                raise
        # Only now, behind the handler, does nothing hold what the failed pass had in memory.
        tries, steps = tries + 1, 0
        if not out_of_memory.make_smaller() and tries > 1:
            raise out_of_memory.out_of_memory_error(f"a single row of {function.__name__.strip('_')}")
        note(f"{function.__name__.strip('_')}: memory was short, so passes are half as large from now on")

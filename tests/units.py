"""Functions that units of work call in tests, also in the workers of a cluster, and an executor that counts units."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arithscope.errors import UserError
from arithscope.models.checks import self_check
from arithscope.utils.executor import Executor, FinishedUnit


def product(model: Any, factor: int, numbers: Any, *, advance: Any) -> Any:
    advance(2)
    advance(factor)
    return factor * numbers, {"factor": factor}


def process(model: Any, number: int, *, advance: Any) -> int:
    return os.getpid()


def name_of_model(model: Any, number: int, *, advance: Any) -> str:
    return str(model.identity.name)


def dies(model: Any, number: int, path: str, times: int, *, advance: Any) -> int:
    """Kills its own process the first `times` times; the file counts the deaths."""
    deaths = len(Path(path).read_text()) if Path(path).exists() else 0
    if number == 1 and deaths < times:
        Path(path).write_text("x" * (deaths + 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuses(model: Any, number: int, *, advance: Any) -> None:
    raise UserError("Nobody can do this; do something else.")


def fails(model: Any, number: int, *, advance: Any) -> None:
    raise ZeroDivisionError(f"unit {number}")


def where_weights_are(model: Any, number: int, *, advance: Any) -> list[str]:
    """What the memory of each parameter is mapped from; empty for private memory of the process."""
    maps = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end, rest = re.match(r"(\w+)-(\w+) (.*)", line).groups()  # type: ignore[union-attr]
        maps.append((int(start, 16), int(end, 16), rest.split(maxsplit=4)[4:]))
    found = []
    for tensor in (*model.hf_model.parameters(), *model.hf_model.buffers()):
        [name] = [name for start, end, name in maps if start <= tensor.data_ptr() < end]
        found.append(name[0] if name else "")
    return found


def logits(model: Any, op1: Any, *, advance: Any) -> Any:
    from arithscope.prompts import Prompts

    prompts = Prompts(op1, np.zeros_like(op1), op1[::-1].copy())
    return model.logits(model.encode(prompts)).numpy()


class Counting(Executor):
    """Counts the units that another executor carries out; after `stop_after` units it raises KeyboardInterrupt."""

    def __init__(self, executor: Executor, stop_after: int | None = None):
        self.executor, self.stop_after, self.units = executor, stop_after, 0

    def stream(self, function: Any, model: Any, units: Sequence[Any], advance: Any) -> Iterator[FinishedUnit]:
        for done in self.executor.stream(function, model, units, advance):
            if function is self_check:
                yield done
                continue
            if self.units == self.stop_after:
                raise KeyboardInterrupt
            self.units += 1
            yield done

"""How many inputs each target gets, and how many it accepts.

Every fuzz test runs twice: with a sample of inputs in `make test`, with all in `make test-all`. Inputs are deterministic.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from arithscope.errors import UserError

T = TypeVar("T")

# Inputs of each target: of the sample, and all. Targets that take milliseconds get most; loading a model takes 100.
INPUTS = {
    "command lines": (100, 8_000),
    "prompts": (150, 30_000),
    "templates": (100, 10_000),
    "heuristics": (100, 30_000),
    "recipes": (100, 10_000),
    "trainings": (4, 120),
    "device maps": (80, 4_000),
    "checkpoint names": (80, 4_000),
    "model configurations": (10, 1_000),
    "tokenizers": (10, 1_000),
    "model weights": (10, 1_000),
    "GGUF files": (6, 300),
    "arrays of runs": (60, 5_000),
    "parts of stages": (60, 5_000),
    "manifests": (20, 2_000),
    "stage records": (6, 500),
    "tables of runs": (6, 500),
    "resumed runs": (3, 150),
    "received folders": (60, 20_000),
    "requests": (60, 800),  # of each operation of the explorer
}
SECONDS = 30.0  # after which an input counts as a hang; most take milliseconds
MEMORY = 2**30  # bytes that one input may take

PROCESS = psutil.Process()
_armed = -2 * SECONDS  # when faulthandler was last armed

twice = pytest.mark.parametrize(
    "full", [pytest.param(False, id="sample"), pytest.param(True, id="all", marks=pytest.mark.slow)]
)


@dataclass
class Tally:
    """Inputs tried, and how many were accepted; all others were refused with a sentence."""

    tried: int = 0
    accepted: int = 0

    def count(self, accepted: bool) -> None:
        self.tried += 1
        self.accepted += accepted


TALLIES = "FUZZ_TALLIES"  # environment variable: a file to which every test adds a line with its tally


def fuzz(target: str, inputs: SearchStrategy[T], accepts: Callable[[T], bool], full: bool) -> Tally:
    """Give a target its inputs. `accepts` returns whether an input was accepted, and fails if it should not have been, or if a
    refusal is wrong."""
    tally, count = Tally(), INPUTS[target][full]

    @settings(max_examples=count, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(inputs)
    def holds(value: T) -> None:
        with time_limit(), memory_limit():
            tally.count(accepts(value))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        holds()
    faulthandler.cancel_dump_traceback_later()
    assert tally.tried >= count
    if TALLIES in os.environ:
        with open(os.environ[TALLIES], "a", encoding="utf-8") as file:
            file.write(json.dumps([target, tally.tried, tally.accepted]) + "\n")
    return tally


def refused(call: Callable[[], Any]) -> str | None:
    """The message of a refusal, or None if nothing is refused. Any other exception is a failure."""
    try:
        call()
    except UserError as error:
        check_sentence(str(error))
        return str(error)
    return None


def check_sentence(text: str) -> None:
    assert text.strip()
    assert "Traceback" not in text
    assert len(text) < 3000


@contextmanager
def time_limit() -> Iterator[None]:
    """An input that takes too long fails. If it hangs where Python cannot interrupt it, the process exits with a traceback."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"not finished after {SECONDS:.0f} seconds")

    global _armed
    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    if time.monotonic() - _armed > SECONDS:  # each arming starts a thread
        _armed = time.monotonic()
        faulthandler.dump_traceback_later(4 * SECONDS, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def memory_limit() -> Iterator[None]:
    """An input that takes too much memory fails. Memory in use before does not count."""
    before, peak = PROCESS.memory_info().rss, _peak()
    yield
    assert _peak() == peak or _peak() - before < MEMORY


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

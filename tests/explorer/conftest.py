from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import arithscope
from arithscope.results.run import Run
from tests.explorer.client import serving


@pytest.fixture(scope="module")
def run(small_run: Path) -> Run:
    """The run that the explorer serves as tiny-llama."""
    return arithscope.open(small_run)


@pytest.fixture(scope="module")
def address(small_run: Path, small_training_run: Path) -> Iterator[str]:
    """Address of an explorer that serves tiny-llama and tiny-pythia."""
    with serving([small_run, small_training_run]) as url:
        yield url

"""Too little memory: what did not fit is done again in smaller pieces.

Whoever divides work into pieces asks `fitting` how many rows, say, go into one. After a shortage it is half as many as before,
for as long as the process lives: what did not fit once would not fit again.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from arithscope.errors import UserError

_SAID = re.compile(r"out of memory|can't allocate memory|not enough memory|ALLOC_FAILED", re.IGNORECASE)


class _Pieces:
    """share     of the room there is for pieces, that they may take
    largest   piece since it was last set to zero
    """

    share = 1.0
    largest = 0


_pieces = _Pieces()


def rows_within(room: int, each: int) -> int:
    """How many things go into so much room, if each takes so much of it; at least one."""
    number = max(1, int(room * _pieces.share) // each)
    _pieces.largest = max(_pieces.largest, number)
    return number


def before_trying() -> None:
    """Forget how large pieces were."""
    _pieces.largest = 0


def make_smaller() -> bool:
    """Halve all pieces from now on, and give back memory that nothing uses. False if each had been of one thing only."""
    several = _pieces.largest > 1
    _pieces.share /= 2
    gc.collect()  # tensors may be held by cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return several


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error means that memory was short, or came of one that does."""
    while isinstance(error, Exception) and not isinstance(error, UserError):
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and _SAID.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def explain_out_of_memory(what: str) -> Iterator[None]:
    """Where nothing can be made smaller, a shortage becomes a sentence."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory_error(what) from None


def out_of_memory_error(what: str) -> UserError:
    return UserError(
        f"There is too little memory for {what}; use --dtype bfloat16, --device-map auto, another --device, a shorter "
        "--prefix or a smaller model."
    )

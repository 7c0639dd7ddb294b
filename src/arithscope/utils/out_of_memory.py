"""Out of memory: work that did not fit is repeated in smaller chunks.

Code that splits work into chunks asks `rows_within` for their size. Each time memory runs out, all later chunks are halved for
the rest of the process.
"""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from arithscope.errors import UserError

_MESSAGES = re.compile(r"out of memory|can't allocate memory|not enough memory|ALLOC_FAILED", re.IGNORECASE)


class _Chunks:
    """Share of each memory budget that chunks may use, and the largest chunk size since they were halved."""

    share = 1.0
    largest = 0


_chunks = _Chunks()


def rows_within(budget: int, row: int) -> int:
    """Number of rows of size `row` in one chunk, given a memory budget in the same unit; at least 1."""
    rows = max(1, int(budget * _chunks.share) // row)
    _chunks.largest = max(_chunks.largest, rows)
    return rows


def halve_chunks() -> bool:
    """Halve all later chunks and free unused memory. Returns False if no chunk since the last time had more than one row."""
    divisible = _chunks.largest > 1
    _chunks.share, _chunks.largest = _chunks.share / 2, 0
    gc.collect()  # reference cycles may hold tensors
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return divisible


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, means that memory ran out."""
    while isinstance(error, Exception) and not isinstance(error, UserError):
        says_so = isinstance(error, RuntimeError) and _MESSAGES.search(str(error))
        if says_so or isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def explain_out_of_memory(what: str) -> Iterator[None]:
    """Turn out-of-memory errors into a UserError, for work that cannot be split."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory_error(what) from None


def out_of_memory_error(what: str) -> UserError:
    advice = "use --dtype bfloat16, --device-map auto, another --device, a shorter --prefix or a smaller model"
    return UserError(f"There is too little memory for {what}; {advice}.")

"""Independent pieces of work side by side in threads, for work that spends its time outside Python."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import torch

A = TypeVar("A")
B = TypeVar("B")


@contextmanager
def workers(start: Callable[[], None] | None = None) -> Iterator[ThreadPoolExecutor]:
    """As many threads, for independent pieces of work, as torch uses inside an operation on a CPU, which now uses one.

    Threads inside an operation wait for each other at its end, and operations are short; pieces of work are not. Each thread
    calls `start` first.
    """
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with ThreadPoolExecutor(threads, initializer=start) as pool:
            try:
                yield pool
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # what has not begun is not wanted any more
                raise
    finally:
        torch.set_num_threads(threads)


def in_order(pool: ThreadPoolExecutor, executor: Callable[[A], B], items: Iterable[A], ahead: int) -> Iterator[B]:
    """What `work` makes of each item, in order. At most `ahead` items are begun before their turn, so that neither items nor
    results pile up."""
    waiting: deque[Future[B]] = deque()
    todo = iter(items)
    while True:
        waiting.extend(pool.submit(executor, item) for item in islice(todo, ahead - len(waiting)))
        if not waiting:
            return
        yield waiting.popleft().result()

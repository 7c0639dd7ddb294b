"""Thread pools for work that spends its time outside Python."""

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
def thread_pool(initializer: Callable[[], None] | None = None) -> Iterator[ThreadPoolExecutor]:
    """A pool with as many threads as torch uses inside one CPU operation; inside, torch uses one thread per operation.

    Threads inside an operation wait for each other after every short operation; threads of the pool do not. `initializer`
    is called once by each thread before its first task.
    """
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with ThreadPoolExecutor(threads, initializer=initializer) as pool:
            try:
                yield pool
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)


def map_in_order(pool: ThreadPoolExecutor, function: Callable[[A], B], items: Iterable[A], ahead: int) -> Iterator[B]:
    """Yield `function(item)` in order, with at most `ahead` items submitted at a time, so that results do not pile up."""
    waiting: deque[Future[B]] = deque()
    todo = iter(items)
    while True:
        waiting.extend(pool.submit(function, item) for item in islice(todo, ahead - len(waiting)))
        if not waiting:
            return
        yield waiting.popleft().result()

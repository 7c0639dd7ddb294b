"""Thread pools: results in order, bounded read-ahead, and torch's thread count restored."""

from __future__ import annotations

import threading

import pytest
import torch

from arithscope.utils.threads import map_in_order, thread_pool

pytestmark = pytest.mark.usefixtures("two_threads")


def test_results_come_in_order() -> None:
    gate = threading.Event()

    def square(i: int) -> int:
        if i == 0:
            assert gate.wait(10)  # the first item finishes last
        else:
            gate.set()
        return i * i

    with thread_pool() as pool:
        assert list(map_in_order(pool, square, range(9), ahead=3)) == [i * i for i in range(9)]


def test_read_ahead_is_bounded() -> None:
    taken: list[int] = []

    def items():  # type: ignore[no-untyped-def]
        for i in range(50):
            taken.append(i)
            yield i

    with thread_pool() as pool:
        for done, _ in enumerate(map_in_order(pool, lambda i: i, items(), ahead=4)):
            assert len(taken) <= done + 4
    assert len(taken) == 50


@pytest.mark.parametrize("fails", [False, True])
def test_the_thread_count_is_restored(fails: bool) -> None:
    started: list[int] = []
    try:
        with thread_pool(lambda: started.append(1)) as pool:
            assert torch.get_num_threads() == 1
            assert list(pool.map(lambda i: torch.get_num_threads(), range(4))) == [1] * 4
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert torch.get_num_threads() == 2
    assert 1 <= len(started) <= 2


def test_exceptions_are_raised() -> None:
    with thread_pool() as pool, pytest.raises(ZeroDivisionError):
        list(map_in_order(pool, lambda i: 1 // i, [1, 0, 1], ahead=2))

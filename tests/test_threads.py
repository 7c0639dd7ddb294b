"""Work side by side: in order, never far ahead, and torch as it was before."""

from __future__ import annotations

import threading

import pytest
import torch

from arithscope.utils.threads import in_order, workers

pytestmark = pytest.mark.usefixtures("two_threads")


def test_results_come_in_order_whoever_is_first() -> None:
    gate = threading.Event()

    def executor(i: int) -> int:
        if i == 0:
            assert gate.wait(10)  # the first piece ends last
        else:
            gate.set()
        return i * i

    with workers() as pool:
        assert list(in_order(pool, executor, range(9), ahead=3)) == [i * i for i in range(9)]


def test_no_more_is_begun_than_allowed() -> None:
    taken: list[int] = []

    def items():  # type: ignore[no-untyped-def]
        for i in range(50):
            taken.append(i)
            yield i

    with workers() as pool:
        for done, _ in enumerate(in_order(pool, lambda i: i, items(), ahead=4)):
            assert len(taken) <= done + 4


@pytest.mark.parametrize("fails", [False, True])
def test_threads_inside_operations_are_as_before(fails: bool) -> None:
    started: list[int] = []
    try:
        with workers(lambda: started.append(1)) as pool:
            assert torch.get_num_threads() == 1
            assert list(pool.map(lambda i: torch.get_num_threads(), range(4))) == [1] * 4
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert torch.get_num_threads() == 2
    assert 1 <= len(started) <= 2


def test_a_failure_is_told() -> None:
    with workers() as pool, pytest.raises(ZeroDivisionError):
        list(in_order(pool, lambda i: 1 // i, [1, 0, 1], ahead=2))

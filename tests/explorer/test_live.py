"""Live work: one request at a time, a bounded queue, and nothing that nobody waits for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from arithscope.explorer import live, views
from arithscope.explorer.runs import MapName, RunRegistry
from arithscope.results.run import Run
from tests.explorer.client import Reply, get, send, serving
from tests.waiting import until


class HeldWork:
    """Takes the place of a computed activation map: holds live work until it is told to go on, one batch after the other."""

    def __init__(self, computed: Callable[..., Any]):
        self._computed = computed
        self.begun: list[int] = []  # numbers of the neurons whose maps were begun
        self.abandoned: list[int] = []
        self.go_on = threading.Event()

    def __call__(self, registry: Any, served: Any, wanted: Any, advance: Callable[[int], None]) -> Any:
        self.begun.append(wanted.neuron)
        try:
            while not self.go_on.wait(0.01):
                advance(1)
        except live.Abandoned:
            self.abandoned.append(wanted.neuron)
            raise
        return self._computed(registry, served, wanted, advance)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldWork]:
    work = HeldWork(views.computed_map)
    monkeypatch.setattr(views, "computed_map", work)
    yield work
    work.go_on.set()


@pytest.fixture
def address(small_run: Path, held: HeldWork) -> Iterator[str]:
    with serving([small_run]) as url:
        yield url


def computed(address: str, neuron: int) -> Reply:
    """Request the activation map of a neuron of layer 0, where none is stored."""
    return get(address, "neurons", 0, neuron, "activation_map", operator="+")


def begin(address: str, neuron: int) -> socket.socket:
    """Send the same request, and leave the reply unread."""
    client = socket.create_connection(("127.0.0.1", urlsplit(address).port or 0))
    path = f"/api/runs/tiny-llama/neurons/0/{neuron}/activation_map?operator=%2B"
    client.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    return client


def test_beyond_the_queue_requests_are_refused_and_nothing_else_waits(address: str, held: HeldWork) -> None:
    accepted = 1 + live.MAX_WAITING
    with ThreadPoolExecutor(accepted + 3) as pool:
        replies: list[Future[Reply]] = [pool.submit(computed, address, n) for n in range(accepted + 3)]
        until(lambda: sum(reply.done() for reply in replies) == 3)
        for reply in (r.result() for r in replies if r.done()):
            assert (reply.status, reply.headers["retry-after"]) == (503, "5")
            assert reply.error == "The model is busy with other requests; try again in a few seconds."
        assert send(address, "/").status == 200
        assert get(address, "neurons").status == 200
        assert len(held.begun) == 1
        held.go_on.set()
        assert sorted(r.result().status for r in replies) == [200] * accepted + [503] * 3
    assert computed(address, 20).status == 200  # the queue is empty again


def test_what_nobody_waits_for_is_not_begun_or_ends(address: str, held: HeldWork) -> None:
    with closing(begin(address, 0)) as first, ThreadPoolExecutor(1) as pool:
        until(lambda: held.begun == [0])
        with closing(begin(address, 1)):
            third = pool.submit(computed, address, 2)
        assert (
            send(address, "/").status == send(address, "/").status == 200
        )  # so the server knows that the second hung up
        first.close()
        until(lambda: held.begun == [0, 2])
        held.go_on.set()
        assert third.result().status == 200
    assert held.abandoned == [0]


def test_a_computed_map_ends_between_batches(small_run: Path) -> None:
    registry = RunRegistry([Run(small_run)])
    [served] = registry
    wanted = MapName("+", 2, 3, None)

    def stop(n: int) -> None:
        raise live.Abandoned

    with pytest.raises(live.Abandoned):
        views.computed_map(registry, served, wanted, stop)
    assert served.known_map(wanted) is None
    advanced: list[int] = []
    activations = views.computed_map(registry, served, wanted, advanced.append)
    assert sum(advanced) == 41**2 == activations.size
    assert served.known_map(wanted) is activations

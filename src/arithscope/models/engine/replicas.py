"""Passes in parallel: on a CPU each thread runs its own, on a replica of the model.

Hooks belong to modules, so passes that capture different things cannot share modules. A replica has its own modules and
shares the weights.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch

from arithscope.models.model import Model
from arithscope.utils.threads import map_in_order, thread_pool

_replicas: WeakKeyDictionary[Model, list[Model]] = WeakKeyDictionary()  # of the models in use
A = TypeVar("A")
B = TypeVar("B")


class Passes(Protocol):
    def __call__(self, run: Callable[[Model, A], B], items: Iterable[A]) -> Iterator[B]:
        """Results of `run` for each item, in order."""


def num_parallel_passes(model: Model) -> int:
    """Number of passes at a time: one keeps a GPU busy, and is all that accelerate's hooks of a device map can follow."""
    alone = model.device.type != "cpu" or hasattr(model.hf_model, "hf_device_map")
    return 1 if alone else torch.get_num_threads()


def replica(model: Model) -> Model:
    """A copy with its own modules; weights, tokenizer and encoder are shared."""
    shared = [*model.hf_model.parameters(), *model.hf_model.buffers(), model.tokenizer, model.encoder]
    return copy.deepcopy(model, {id(x): x for x in shared})


def _get_replicas(model: Model, count: int) -> list[Model]:
    """Cached replicas; new ones if the model has hooks now, which replicas copy."""
    if any(m._forward_hooks or m._forward_pre_hooks for m in model.hf_model.modules()):
        return [replica(model) for _ in range(count)]
    known = _replicas.setdefault(model, [])
    known += [replica(model) for _ in range(count - len(known))]
    return known[:count]


@contextmanager
def parallel_passes(model: Model) -> Iterator[Passes]:
    """Yields a function that runs passes without gradients, as many at a time as suits the device."""
    if (count := num_parallel_passes(model)) == 1:
        yield lambda run, items: (run(model, item) for item in items)
        return
    replicas, own = _get_replicas(model, count), threading.local()

    def start() -> None:
        own.model = replicas.pop()
        torch.set_grad_enabled(False)  # in this thread only

    with thread_pool(start) as pool:
        yield lambda run, items: map_in_order(pool, lambda item: run(own.model, item), items, ahead=count + 1)

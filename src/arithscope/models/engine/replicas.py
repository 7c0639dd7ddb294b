"""Passes side by side: on a CPU each thread runs its own, on a twin of the subject.

Hooks belong to modules, so passes that watch different things cannot share modules; a twin has its own, and the same weights.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch

from arithscope.models.model import Model
from arithscope.utils.threads import map_in_order, thread_pool

_twins: WeakKeyDictionary[Model, list[Model]] = WeakKeyDictionary()  # of subjects that are in use
A = TypeVar("A")
B = TypeVar("B")


class Passes(Protocol):
    def __call__(self, run: Callable[[Model, A], B], items: Iterable[A]) -> Iterator[B]:
        """What `run` makes of each item, in order."""


def passes_at_once(model: Model) -> int:
    """How many passes run at a time. A GPU is kept busy by one; and a model that is spread over devices is moved by hooks of
    its own, which know one pass only."""
    if model.device.type != "cpu" or hasattr(model.hf_model, "hf_device_map"):
        return 1
    return torch.get_num_threads()


def replica(model: Model) -> Model:
    """The same subject with modules of its own; weights, tokenizer and encoder are shared."""
    shared = [*model.hf_model.parameters(), *model.hf_model.buffers(), model.tokenizer, model.encoder]
    return copy.deepcopy(model, {id(x): x for x in shared})


def _some_twins(model: Model, count: int) -> list[Model]:
    """Those that were made before, unless something is watched or edited just now: that is so in twins made now, and in no
    others."""
    if any(m._forward_hooks or m._forward_pre_hooks for m in model.hf_model.modules()):
        return [replica(model) for _ in range(count)]
    known = _twins.setdefault(model, [])
    known += [replica(model) for _ in range(count - len(known))]
    return known[:count]


@contextmanager
def side_by_side(model: Model) -> Iterator[Passes]:
    """Runs passes, without gradients, as many at a time as is good for the device."""
    count = passes_at_once(model)
    if count == 1:
        yield lambda run, items: (run(model, item) for item in items)
        return
    replicas, own = _some_twins(model, count), threading.local()

    def start() -> None:
        own.model = replicas.pop()
        torch.set_grad_enabled(False)  # of this thread only

    def passes(run: Callable[[Model, Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map_in_order(pool, lambda item: run(own.model, item), items, ahead=count + 1)

    with thread_pool(start) as pool:
        yield passes

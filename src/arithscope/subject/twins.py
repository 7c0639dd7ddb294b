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

from arithscope.subject.subject import Subject
from arithscope.threads import in_order, workers

_twins: WeakKeyDictionary[Subject, list[Subject]] = WeakKeyDictionary()  # of subjects that are in use
A = TypeVar("A")
B = TypeVar("B")


class Passes(Protocol):
    def __call__(self, run: Callable[[Subject, A], B], items: Iterable[A]) -> Iterator[B]:
        """What `run` makes of each item, in order."""


def passes_at_once(subject: Subject) -> int:
    """How many passes run at a time. A GPU is kept busy by one; and a model that is spread over devices is moved by hooks of
    its own, which know one pass only."""
    if subject.device.type != "cpu" or hasattr(subject.model, "hf_device_map"):
        return 1
    return torch.get_num_threads()


def twin(subject: Subject) -> Subject:
    """The same subject with modules of its own; weights, tokenizer and encoder are shared."""
    shared = [*subject.model.parameters(), *subject.model.buffers(), subject.tokenizer, subject.encoder]
    return copy.deepcopy(subject, {id(x): x for x in shared})


def _some_twins(subject: Subject, count: int) -> list[Subject]:
    """Those that were made before, unless something is watched or edited just now: that is so in twins made now, and in no
    others."""
    if any(m._forward_hooks or m._forward_pre_hooks for m in subject.model.modules()):
        return [twin(subject) for _ in range(count)]
    known = _twins.setdefault(subject, [])
    known += [twin(subject) for _ in range(count - len(known))]
    return known[:count]


@contextmanager
def side_by_side(subject: Subject) -> Iterator[Passes]:
    """Runs passes, without gradients, as many at a time as is good for the device."""
    count = passes_at_once(subject)
    if count == 1:
        yield lambda run, items: (run(subject, item) for item in items)
        return
    twins, own = _some_twins(subject, count), threading.local()

    def start() -> None:
        own.subject = twins.pop()
        torch.set_grad_enabled(False)  # of this thread only

    def passes(run: Callable[[Subject, Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return in_order(pool, lambda item: run(own.subject, item), items, ahead=count + 1)

    with workers(start) as pool:
        yield passes

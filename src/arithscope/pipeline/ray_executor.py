"""Work spread over a Ray cluster: this process hands out units, and is the only one that writes.

There is a worker for each GPU, or for each CPU where there are none. The subject's weights are put once into the cluster's
shared memory; workers on the CPU use them there, those with a GPU copy them to it. A model that is spread over devices, is
quantised or has code of its own is loaded by each worker itself.

A worker that dies, or whose node is lost, is replaced as soon as the cluster has room, and its unit is given to another.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from arithscope.errors import UserError
from arithscope.models.load import LoadOptions, load
from arithscope.models.model import Model
from arithscope.models.model_spec import ModelSpec, model_spec, weights_of
from arithscope.models.offload import read_device_map
from arithscope.pipeline.ray_worker import Named, Ready, Worker, versions
from arithscope.prompts import Template
from arithscope.utils.executor import Executor, FinishedUnit, Function, LocalExecutor, Unit
from arithscope.utils.progress import Advance, Progress

LOCAL = "local"
TRIES = 3  # of a unit whose worker dies, and of starting a worker
PATIENCE = 30.0  # seconds without news after which a person is told what is waited for


@dataclass(frozen=True)
class Share:
    """What a worker gets of a node."""

    gpus: int
    cpus: int
    threads: int

    def __str__(self) -> str:
        return _counted(self.gpus, "GPU") if self.gpus else _counted(self.cpus, "CPU")


@dataclass(eq=False)
class _Slot:
    """A worker, or the one that takes its place if it dies."""

    share: Share
    actor: Any
    node: str = ""
    host: str = ""
    failures: int = 0  # to start, since it last did


@contextmanager
def working(
    address: str | None, template: Template, options: LoadOptions, progress: Progress
) -> Iterator[tuple[Executor, Callable[[str], Model]]]:
    """Who carries out units, and what loads a subject for it: this process, or the cluster with that address."""
    if address is None:
        yield LocalExecutor(progress.note), lambda name: load(name, template, options)
    else:
        with Cluster(address, options, progress) as cluster:
            yield cluster, lambda name: cluster.load(name, template)


class Cluster(Executor):
    """A Ray cluster: the one with an address, or (`local`) one on this machine that ends with this object."""

    def __init__(self, address: str, options: LoadOptions, progress: Progress):
        self.options, self.progress = options, progress
        if options.device not in ("auto", "cpu", "cuda"):
            raise UserError(f"The device {options.device} means nothing on a cluster; use auto, cpu or cuda.")
        self._ray, self._connected_before = _connected(address)
        self._apart = options.device_map is not None or options.quantize is not None or options.trust_remote_code
        self._slots: list[_Slot] = []
        self._idle: list[_Slot] = []
        self._starting: dict[Any, _Slot] = {}  # by what they promised
        self._named: WeakKeyDictionary[Model, Named] = WeakKeyDictionary()
        self._subject: Model | None = None
        self._source: ModelSpec | Named | None = None
        self._weights: Any = None  # where they are in shared memory
        self._hull: ModelSpec | None = None  # as the first of the workers found it
        try:
            shares = self._shares()
            if not shares:
                raise UserError("The cluster has no GPUs, which --device cuda asks for; use --device cpu or auto.")
            self._grow()  # already now: while workers come into being, the driver loads the subject
        except BaseException:
            self.close()
            raise
        self.where = f"{_counted(len(shares), 'worker')} with {shares[0]} each"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers, and the connection."""
        for slot in self._slots:
            self._ray.kill(slot.actor)
        self._slots, self._idle, self._starting, self._weights = [], [], {}, None
        if not self._connected_before:
            self._ray.shutdown()

    def load(self, name: str, template: Template) -> Model:
        """A subject for `stream`. If workers load it themselves, this process has no more than its hull."""
        if not self._apart:
            return load(name, template, replace(self.options, device="cpu"))
        device = "cuda" if any(share.gpus for share in self._shares()) else "cpu"
        spread = self.options.device_map  # a file is read here; other nodes may not have it
        placed = None if spread is None else read_device_map(spread)
        named = Named(name, template, replace(self.options, device=device, device_map=placed))
        self._hull = None
        self._give(named)
        while self._hull is None:
            self._news([])
        self._subject = self._hull.empty()
        self._named[self._subject] = named
        return self._subject

    def stream(
        self, function: Function, model: Model, units: Sequence[Unit], advance: Advance
    ) -> Iterator[FinishedUnit]:
        if model is not self._subject:
            self._give(self._named.get(model) or model_spec(model), model)
        self._grow()
        sent = self._sent(units)
        waiting, deaths = deque(range(len(units))), Counter[int]()
        running: dict[Any, tuple[_Slot, int]] = {}
        try:
            while waiting or running:
                while waiting and self._idle:
                    slot, place = self._idle.pop(), waiting.popleft()
                    running[slot.actor.executor.remote(function, *sent[place])] = slot, place
                if (promise := self._news([*running])) is None:
                    continue
                slot, place = running.pop(promise)
                try:
                    result, steps, notes = self._ray.get(promise)
                except self._ray.exceptions.RayTaskError as error:
                    self._idle.append(slot)
                    raise error.cause from error
                except self._ray.exceptions.RayError as error:
                    deaths[place] += self._lives(slot.node)  # a node that is lost is no fault of the unit's
                    self._replace(slot)
                    if deaths[place] == TRIES:
                        raise UserError(
                            f"A unit of {function.__name__} has ended its worker {TRIES} times, most likely for want of memory "
                            f"({_in_short(error)}); use nodes with more memory, or --dtype bfloat16."
                        ) from error
                    self.progress.note(f"A worker on {slot.host} was lost; another does its work again.")
                    waiting.append(place)
                else:
                    self._idle.append(slot)
                    for text in notes:
                        self.progress.note(f"{slot.host}: {text}")
                    advance(steps)
                    yield FinishedUnit(place, result, steps)
        finally:
            for slot, _ in running.values():  # what they do is no longer wanted
                self._start(slot)

    def _news(self, running: Sequence[Any]) -> Any | None:
        """Wait until something happens: the promise of a unit that is done or lost; None if it was something else."""
        ready, _ = self._ray.wait([*running, *self._starting], num_returns=1, timeout=PATIENCE)
        if not ready:
            if not running:
                self.progress.note(f"No worker is there yet: waiting for the cluster to offer {self._slots[0].share}.")
            return None
        [promise] = ready
        if promise not in self._starting:
            return promise
        self._started(self._starting.pop(promise), promise)
        return None

    def _started(self, slot: _Slot, promise: Any) -> None:
        try:
            ready: Ready = self._ray.get(promise)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            slot.failures += 1
            if slot.failures == TRIES:
                raise UserError(
                    f"A worker could not be started ({_in_short(error)}); arithscope must be installed on every node, and each "
                    "worker needs memory for the subject."
                ) from error
            self._replace(slot)
            return
        other = [f"{name} {version}" for name, version in ready.versions.items() if versions()[name] != version]
        if other:
            raise UserError(
                f"The node {ready.host} has {other[0]}, but here it is {versions()[other[0].split()[0]]}; install the same "
                "version on every node."
            )
        if ready.spec is not None:
            self._hull = self._hull or ready.spec
            if ready.spec.identity != self._hull.identity:
                raise UserError(
                    f"The node {ready.host} has another {ready.spec.identity.name} than the others, as its weights or its "
                    "tokenizer differ; copy the same files to every node."
                )
        slot.node, slot.host, slot.failures = ready.node, ready.host, 0
        self._idle.append(slot)

    def _give(self, source: ModelSpec | Named, model: Model | None = None) -> None:
        """Have all workers take another subject."""
        self._weights = None  # the earlier one's can go
        if isinstance(source, ModelSpec) and model is not None:
            self._weights = self._ray.put(weights_of(model))
        self._subject, self._source = model, source
        self._grow()
        for slot in self._slots:
            self._start(slot)

    def _grow(self) -> None:
        """One worker for every share of the cluster, also of nodes that have joined it."""
        missing = Counter(self._shares()) - Counter(slot.share for slot in self._slots)
        for share in missing.elements():
            slot = _Slot(share, self._actor(share))
            self._slots.append(slot)
            if self._source is not None:
                self._start(slot)

    def _start(self, slot: _Slot) -> None:
        """Have a worker take the subject, once it is there and has finished what it does."""
        self._idle = [other for other in self._idle if other is not slot]
        self._starting = {promise: other for promise, other in self._starting.items() if other is not slot}
        self._starting[slot.actor.take.remote(self._source, self._weights)] = slot

    def _replace(self, slot: _Slot) -> None:
        self._ray.kill(slot.actor)
        slot.actor = self._actor(slot.share)
        self._start(slot)

    def _actor(self, share: Share) -> Any:
        remote = self._ray.remote(Worker).options(num_gpus=share.gpus, num_cpus=share.cpus, max_restarts=0)
        return remote.remote("cuda" if share.gpus else "cpu", share.threads)

    def _shares(self) -> list[Share]:
        """How the nodes of the cluster are shared out among workers."""
        found = []
        for node in self._ray.nodes():
            gpus, cpus = (int(node["Resources"].get(kind, 0)) if node["Alive"] else 0 for kind in ("GPU", "CPU"))
            gpus = 0 if self.options.device == "cpu" else gpus
            if self.options.device_map is not None:  # a model over all of a node's GPUs
                found += [Share(gpus, 0 if gpus else cpus, max(cpus, 1))] if gpus or cpus else []
            elif gpus:
                found += [Share(1, 0, max(cpus // gpus, 1))] * gpus
            else:
                found += [Share(0, 1, 1)] * cpus
        with_gpu = [share for share in found if share.gpus]
        return with_gpu or ([] if self.options.device == "cuda" else found)

    def _sent(self, units: Sequence[Unit]) -> list[Unit]:
        """The units' arguments; what several of them share is put once into shared memory."""
        uses = Counter(id(argument) for unit in units for argument in unit)
        put: dict[int, Any] = {}

        def of(argument: Any) -> Any:
            if uses[id(argument)] == 1 or argument is None or isinstance(argument, bool | int | float | str):
                return argument
            if id(argument) not in put:
                put[id(argument)] = self._ray.put(argument)
            return put[id(argument)]

        return [tuple(map(of, unit)) for unit in units]

    def _lives(self, name: str) -> bool:
        return any(node["Alive"] and node["NodeID"] == name for node in self._ray.nodes())


def _connected(address: str) -> tuple[Any, bool]:
    """Ray, connected to the cluster, and whether this process already was."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("Working on a cluster needs the package ray; run: pip install 'arithscope[cluster]'.")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anyone
    import ray

    if ray.is_initialized():
        known = ray.get_runtime_context().gcs_address
        if address not in ("auto", known):
            raise UserError(
                f"This process works on the Ray cluster at {known}; use that, or call ray.shutdown() first."
            )
        return ray, True
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    try:
        if separator:  # Ray itself takes minutes to give up
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        own = dict(include_dashboard=False) if address == LOCAL else {}
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(
            f"There is no Ray cluster at {address!r} ({_in_short(error)}); give the address that `ray start --head` says "
            f"(10.0.0.1:6379, say), or {LOCAL}."
        ) from None
    return ray, False


def _in_short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return " ".join(lines[0].split())[:200].rstrip(".") if lines else type(error).__name__


def _counted(n: int, what: str) -> str:
    return f"one {what}" if n == 1 else f"{n} {what}s"

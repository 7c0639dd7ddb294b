"""Runs units of work on a Ray cluster. This process hands out units and is the only one that writes files.

There is one worker per GPU, or per CPU where there are no GPUs. The model's weights are put into the cluster's shared memory
once; CPU workers use them there, GPU workers copy them to their device. A model that is spread over devices, is quantised or
comes with code is loaded by each worker itself.

A worker that dies, or whose node is lost, is replaced as soon as the cluster has room, and another worker runs its unit.
"""

import gc
import importlib.util
import logging
import os
import platform
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any
from weakref import WeakKeyDictionary

import torch

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.models.load import LoadOptions, ModelSpec, load, model_spec, weights_of
from arithscope.models.model import Model
from arithscope.models.offload import read_device_map
from arithscope.prompts import Stratum, Template
from arithscope.utils.executor import Executor, FinishedUnit, Function, LocalExecutor, Unit, run_unit
from arithscope.utils.progress import Advance, Progress

LOCAL = "local"
TRIES = 3  # for a unit whose worker dies, and for starting a worker
PATIENCE = 30.0  # seconds without an event after which a note says what the run is waiting for

# What workers build their model from: a spec with shared weights, or a function that loads the model.
Source = ModelSpec | Callable[[], Model]


@dataclass(frozen=True)
class Ready:
    """A worker's report that its model is ready, with the model's spec if the worker loaded it."""

    versions: dict[str, str]
    node: str  # Ray's id
    host: str  # host name
    spec: ModelSpec | None


def versions() -> dict[str, str]:
    """Versions that results depend on, and that must agree on all nodes."""
    return {
        "arithscope": __version__,
        "Python": platform.python_version().rpartition(".")[0],
        "torch": torch.__version__.partition("+")[0],
        "transformers": version("transformers"),
    }


class Worker:
    """Runs in its own process, with a GPU or with some CPU threads."""

    def __init__(self, device: str, threads: int):
        torch.set_num_threads(threads)
        self.device = torch.device(device)
        self.model: Model | None = None

    def take(self, source: Source, weights: Any) -> Ready:
        """Load a model, or build it from its spec and shared weights, replacing the previous one."""
        import ray

        self.model = None
        gc.collect()  # models contain reference cycles, and the next one needs the memory
        self.model = source.filled(weights, self.device) if isinstance(source, ModelSpec) else source()
        spec = None if isinstance(source, ModelSpec) else model_spec(self.model)
        return Ready(versions(), ray.get_runtime_context().get_node_id(), platform.node(), spec)

    def run(self, function: Function, *unit: Any) -> tuple[Any, int, list[str]]:
        """The result of a unit, its number of steps, and notes for the user."""
        notes: list[str] = []
        return *run_unit(function, self.model, unit, lambda steps: None, notes.append), notes


@dataclass(frozen=True)
class Share:
    """The part of a node that one worker gets."""

    gpus: int
    cpus: int
    threads: int

    def __str__(self) -> str:
        return _counted(self.gpus, "GPU") if self.gpus else _counted(self.cpus, "CPU")


@dataclass(eq=False)
class _Slot:
    """A worker, or its replacement if it dies."""

    share: Share
    actor: Any
    node: str = ""
    host: str = ""
    failures: int = 0  # to start, since its last successful start


@contextmanager
def open_executor(
    address: str | None, template: Template, options: LoadOptions, progress: Progress
) -> Iterator[tuple[Executor, Callable[[str], Model]]]:
    """Yield an executor (this process, or the cluster at an address) and a function that loads models for it."""
    if address is None:
        yield LocalExecutor(progress.note), lambda name: load(name, template, options)
    else:
        with closing(RayExecutor(address, options, progress)) as cluster:
            yield cluster, lambda name: cluster.load(name, template)


class RayExecutor(Executor):
    """Runs units on the Ray cluster at an address; `local` starts one on this machine and stops it on `close`."""

    def __init__(self, address: str, options: LoadOptions, progress: Progress):
        self.options, self.progress = options, progress
        if options.device not in ("auto", "cpu", "cuda"):
            raise UserError(f"--device {options.device} cannot be used on a cluster; use auto, cpu or cuda.")
        self._ray, self._connected_before = _connected(address)
        self._workers_load = options.device_map is not None or options.quantize is not None or options.trust_remote_code
        self._slots: list[_Slot] = []
        self._idle: list[_Slot] = []
        self._starting: dict[Any, _Slot] = {}  # by Ray object reference
        self._loaders: WeakKeyDictionary[Model, Callable[[], Model]] = WeakKeyDictionary()
        self._model: Model | None = None
        self._source: Source | None = None
        self._weights: Any = None  # reference to them in shared memory
        self._spec: ModelSpec | None = None  # as the first worker loaded it
        try:
            shares = self._shares()
            if not shares:
                raise UserError("The cluster has no GPUs for --device cuda; use --device cpu or auto.")
            self._grow()  # workers start while this process loads the model
        except BaseException:
            self.close()
            raise
        self.where = f"{_counted(len(shares), 'worker')} with {shares[0]}{' each' if len(shares) > 1 else ''}"

    def close(self) -> None:
        """Stop the workers, and the cluster if it was started here."""
        for slot in self._slots:
            self._ray.kill(slot.actor)
        self._slots, self._idle, self._starting, self._weights = [], [], {}, None
        if not self._connected_before:
            self._ray.shutdown()

    def load(self, name: str, template: Template) -> Model:
        """Load a model for `stream`. If workers load it themselves, this process has the model without its weights."""
        if not self._workers_load:
            return load(name, template, replace(self.options, device="cpu"))
        device = "cuda" if any(share.gpus for share in self._shares()) else "cpu"
        device_map = self.options.device_map
        if device_map is not None:
            device_map = read_device_map(device_map)  # here, as other nodes may not have the file
        loader = partial(load, name, template, replace(self.options, device=device, device_map=device_map))
        self._spec = None
        self._give(loader)
        while self._spec is None:
            self._news([])
        self._model = self._spec.empty()
        self._loaders[self._model] = loader
        return self._model

    def stream(
        self, function: Function, model: Model, units: Sequence[Unit], advance: Advance
    ) -> Iterator[FinishedUnit]:
        if model is not self._model:
            self._give(self._source_of(model), model)
        self._grow()
        sent = self._sent(units)
        waiting, deaths = deque(range(len(units))), Counter[int]()
        running: dict[Any, tuple[_Slot, int]] = {}
        try:
            while waiting or running:
                while waiting and self._idle:
                    slot, index = self._idle.pop(), waiting.popleft()
                    running[slot.actor.run.remote(function, *sent[index])] = slot, index
                if (reference := self._news([*running])) is None:
                    continue
                slot, index = running.pop(reference)
                try:
                    result, steps, notes = self._ray.get(reference)
                except self._ray.exceptions.RayTaskError as error:
                    self._idle.append(slot)
                    raise error.cause from error
                except self._ray.exceptions.RayError as error:
                    alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
                    deaths[index] += slot.node in alive  # a lost node is not the unit's fault
                    self._replace(slot)
                    if deaths[index] == TRIES:
                        raise UserError(
                            f"A unit of {function.__name__} has killed its worker {TRIES} times, probably for lack of memory "
                            f"({_in_short(error)}); use nodes with more memory, or --dtype bfloat16."
                        ) from error
                    self.progress.note(f"A worker on {slot.host} was lost; another one runs its unit again.")
                    waiting.append(index)
                else:
                    self._idle.append(slot)
                    for text in notes:
                        self.progress.note(f"{slot.host}: {text}")
                    advance(steps)
                    yield FinishedUnit(index, result, steps)
        finally:
            for slot, _ in running.values():  # their results are no longer needed
                self._start(slot)

    def _source_of(self, model: Model) -> Source:
        """What workers build a model from; one asked for an answer step shares the weights of the model that was loaded."""
        loader = next((load for known, load in self._loaders.items() if known.hf_model is model.hf_model), None)
        return model_spec(model) if loader is None else partial(_loaded_at, loader, model.encoder.stratum)

    def _news(self, running: Sequence[Any]) -> Any | None:
        """Wait for an event. Returns the reference of a unit that finished or was lost; None after any other event."""
        ready, _ = self._ray.wait([*running, *self._starting], num_returns=1, timeout=PATIENCE)
        if not ready:
            if not running:
                share = self._slots[0].share
                self.progress.note(f"No worker has started yet: waiting for the cluster to offer {share}.")
            return None
        [reference] = ready
        if reference not in self._starting:
            return reference
        self._started(self._starting.pop(reference), reference)
        return None

    def _started(self, slot: _Slot, reference: Any) -> None:
        try:
            ready: Ready = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            slot.failures += 1
            if slot.failures == TRIES:
                advice = "arithscope must be installed on every node, and each worker needs memory for the model"
                raise UserError(f"A worker could not be started ({_in_short(error)}); {advice}.") from error
            self._replace(slot)
            return
        for name, here in versions().items():
            if (there := ready.versions.get(name)) != here:
                problem = f"The node {ready.host} has {name} {there}, but here it is {here}"
                raise UserError(f"{problem}; install the same version on every node.")
        if ready.spec is not None:
            self._spec = self._spec or ready.spec
            if ready.spec.identity != self._spec.identity:
                other = f"a different {ready.spec.identity.name} (other weights, or another tokenizer)"
                raise UserError(f"The node {ready.host} has {other}; copy the same files to every node.")
        slot.node, slot.host, slot.failures = ready.node, ready.host, 0
        self._idle.append(slot)

    def _give(self, source: Source, model: Model | None = None) -> None:
        """Have all workers take a model."""
        self._weights = None  # frees the previous model's
        if isinstance(source, ModelSpec) and model is not None:
            self._weights = self._ray.put(weights_of(model))
        self._model, self._source = model, source
        for slot in self._slots:
            self._start(slot)
        self._grow()  # last, as it makes new workers take the model too

    def _grow(self) -> None:
        """Start a worker for every share of the cluster, including nodes that have joined since."""
        missing = Counter(self._shares()) - Counter(slot.share for slot in self._slots)
        for share in missing.elements():
            slot = _Slot(share, self._actor(share))
            self._slots.append(slot)
            if self._source is not None:
                self._start(slot)

    def _start(self, slot: _Slot) -> None:
        """Have a worker take the model once it has started and finished its current unit."""
        self._idle = [other for other in self._idle if other is not slot]
        self._starting = {reference: other for reference, other in self._starting.items() if other is not slot}
        self._starting[slot.actor.take.remote(self._source, self._weights)] = slot

    def _replace(self, slot: _Slot) -> None:
        self._ray.kill(slot.actor)
        slot.actor = self._actor(slot.share)
        self._start(slot)

    def _actor(self, share: Share) -> Any:
        remote = self._ray.remote(Worker).options(num_gpus=share.gpus, num_cpus=share.cpus, max_restarts=0)
        return remote.remote("cuda" if share.gpus else "cpu", share.threads)

    def _shares(self) -> list[Share]:
        """Shares of the cluster's nodes, one per worker."""
        found = []
        for node in self._ray.nodes():
            if not node["Alive"]:
                continue
            gpus, cpus = (int(node["Resources"].get(kind, 0)) for kind in ("GPU", "CPU"))
            gpus = 0 if self.options.device == "cpu" else gpus
            if self.options.device_map is not None:  # the model is spread over all GPUs of a node
                found += [Share(gpus, 0 if gpus else cpus, max(cpus, 1))] if gpus or cpus else []
            elif gpus:
                found += [Share(1, 0, max(cpus // gpus, 1))] * gpus
            else:
                found += [Share(0, 1, 1)] * cpus
        with_gpu = [share for share in found if share.gpus]
        return with_gpu or ([] if self.options.device == "cuda" else found)

    def _sent(self, units: Sequence[Unit]) -> list[Unit]:
        """The units' arguments; those that several units share are put into shared memory once."""
        arguments = {id(x): x for unit in units for x in unit if not isinstance(x, int | float | str | None)}
        uses = Counter(id(x) for unit in units for x in unit)
        put = {key: self._ray.put(x) for key, x in arguments.items() if uses[key] > 1}
        return [tuple(put.get(id(x), x) for x in unit) for unit in units]


def _loaded_at(loader: Callable[[], Model], stratum: Stratum | None) -> Model:
    return loader() if stratum is None else loader().at(stratum)


def _connected(address: str) -> tuple[Any, bool]:
    """Ray, connected to the cluster, and whether this process was connected before."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("A cluster needs the package ray; run: pip install 'arithscope[cluster]'.")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # report nothing
    import ray

    if ray.is_initialized():
        known = ray.get_runtime_context().gcs_address
        if address not in ("auto", known):
            problem = f"This process is connected to the Ray cluster at {known}"
            raise UserError(f"{problem}; use that, or call ray.shutdown() first.")
        return ray, True
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    try:
        if separator:  # Ray itself takes minutes to time out
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        own = dict(include_dashboard=False) if address == LOCAL else {}
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        advice = f"give the address that `ray start --head` prints (such as 10.0.0.1:6379), or {LOCAL}"
        raise UserError(f"There is no Ray cluster at {address!r} ({_in_short(error)}); {advice}.") from None
    return ray, False


def _in_short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return " ".join(lines[0].split())[:200].rstrip(".") if lines else type(error).__name__


def _counted(n: int, what: str) -> str:
    return f"one {what}" if n == 1 else f"{n} {what}s"

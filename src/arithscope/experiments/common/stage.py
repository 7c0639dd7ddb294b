"""A stage: one experiment of a study, declared where it is computed.

    @stage(needs=(Accuracy, MeanActivations, Localization), reads=("effect", "sizes", "seed"), memory=replay_memory)
    def circuit(ctx: Context) -> Circuit:
        ...

The function's name is the stage's name, and its return annotation the result class. It reads earlier results by their class
(`ctx.results[Accuracy]`), runs heavy work as units (`ctx.map`), and never plots, prints or writes files.

`verify` runs the same function on a sample, with full forward passes instead of replay. A stage therefore asks `ctx.sample`
which of its independent pieces to compute (all, in a study), and passes what it measured through `ctx.confirmed` before it
derives anything from the whole (`verify` compares it with the stored field and returns the latter).
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from arithscope.experiments.common.result import Result
from arithscope.models.engine.sweep import num_parallel_passes
from arithscope.models.memory import budget, cache_bytes, component_bytes, row_bytes
from arithscope.models.model import Model, Site
from arithscope.prompts import Stratum
from arithscope.settings import Settings, stratum_of
from arithscope.utils.executor import LOCAL, Executor, Function, Unit
from arithscope.utils.progress import Advance, Progress, Silent

R = TypeVar("R")
V = TypeVar("V")


class Results:
    """Results by their class: `results[Circuit]` is a `Circuit`."""

    def __init__(self, *results: Any):
        self._results: dict[type, Any] = {type(result): result for result in results}

    def __getitem__(self, kind: type[R]) -> R:
        return self._results[kind]

    def __contains__(self, kind: type) -> bool:
        return kind in self._results

    def get(self, kind: type[R]) -> R | None:
        return self._results.get(kind)

    def add(self, result: Any) -> None:
        self._results[type(result)] = result

    def only(self, kinds: Sequence[type]) -> "Results":
        """Those results that are of one of these classes."""
        return Results(*(self._results[kind] for kind in kinds if kind in self._results))


@dataclass(frozen=True)
class Context:
    """What a stage works with: the model, the settings it declared, and the results it needs."""

    model: Model
    settings: Settings
    results: Results
    progress: Progress = field(default_factory=Silent)
    executor: Executor = LOCAL

    @property
    def stratum(self) -> Stratum:
        """The prompts to study; read by stages that declare `max_operand`."""
        return stratum_of(self.model, self.settings)

    @property
    def complete(self) -> bool:
        """Whether all pieces are computed: True, except under `verify`."""
        return True

    def map(self, function: Function, units: Sequence[Unit], advance: Advance = lambda n: None) -> list[Any]:
        """Call `function(model, *unit, advance=advance)` for each unit; returns the results in order."""
        return self.executor.map(function, self.model, units, advance)

    def map_groups(self, function: Function, groups: Sequence[Sequence[Unit]], advance: Advance) -> list[list[Any]]:
        """`map` for groups of units: returns a list of results for each group."""
        results = iter(self.map(function, [unit for group in groups for unit in group], advance))
        return [[next(results) for _ in group] for group in groups]

    def sample(self, n: int, size: int, *names: str | int) -> NDArray[np.int64]:
        """Indices of the pieces to compute, ascending: all n. `verify` computes `size` random ones instead."""
        return np.arange(n)

    def confirmed(self, name: str, measured: V, rows: Any = ..., **hints: Any) -> V:
        """Pass a measured field of the result through verification. In a study it is returned unchanged.

        Args:
            name: Name of the result's field.
            measured: A table with some of the field's rows, or an array with some of its entries.
            rows: For arrays, the index of the measured entries in the whole array.
            **hints: What the comparison needs to know about float noise; see `verify/checks.py`.

        Returns:
            The whole field: `measured`, or under `verify` the stored one.
        """
        return measured


Memory = Callable[[Model, Settings], int]


@dataclass(frozen=True)
class Stage:
    """One experiment of a study.

    Attributes:
        name: Name on the command line, in the run folder and in the summary.
        result: Class of its result.
        needs: Result classes of earlier stages that it reads.
        given: Classes of results that come from other runs, not from stages of this one.
        reads: Settings its numbers depend on; it can read no others.
        compute: The experiment.
        memory: Estimate of the bytes it needs besides the weights.
        on_request: Whether it runs only when named.
        joins_steps: Whether it is about whole answers of several tokens, and so runs once for all answer steps.
        paper: Section of the paper it follows, if any.
    """

    name: str
    result: type[Result]
    needs: tuple[type[Result], ...]
    given: tuple[type, ...]
    reads: tuple[str, ...]
    compute: Callable[[Context], Result]
    memory: Memory
    on_request: bool
    joins_steps: bool
    paper: str

    @property
    def summary_line(self) -> str:
        """First line of the experiment's docstring."""
        return (self.compute.__doc__ or "").strip().split("\n")[0]


def sweep_memory(model: Model, settings: Settings) -> int:
    """Bytes of a sweep over the legal prompts, besides the weights."""
    prompts = len(stratum_of(model, settings).prompts(settings.operators))
    length, passes = model.encoder.length, num_parallel_passes(model)
    row = row_bytes(model, length, length) + 2 * cache_bytes(model, length)
    return min(passes * budget(model, row, passes), row * prompts) + 64 * prompts


def replay_memory(model: Model, settings: Settings) -> int:
    """Bytes of patching and ablation, besides the weights: one pass, the recorded prompts, and the activations to patch in."""
    length, s, prompts = model.encoder.length, model.sizes, max(settings.sizes.discovery, settings.sizes.evaluation)
    stream = length * s.width * model.hf_model.dtype.itemsize
    components = 4 * sum(component_bytes(model, site) for site in Site)
    kept = s.layers * (stream + components) + cache_bytes(model, length)
    return budget(model, row_bytes(model, length, length)) + kept * prompts


_registered: dict[str, Stage] = {}


def stage(
    needs: tuple[type[Result], ...] = (),
    reads: tuple[str, ...] = (),
    memory: Memory = lambda model, settings: 0,
    given: tuple[type, ...] = (),
    on_request: bool = False,
    joins_steps: bool = False,
    paper: str = "",
) -> Callable[[Callable[[Context], R]], Callable[[Context], R]]:
    """Register a function as a stage; see `Stage` for the arguments. The function itself is returned unchanged."""

    def register(compute: Callable[[Context], R]) -> Callable[[Context], R]:
        name = compute.__name__
        result = get_type_hints(compute, vars(sys.modules[compute.__module__]))["return"]
        # mypy takes `result` for any type, and `compute` for a function with any result.
        when = on_request or joins_steps, joins_steps
        own = Stage(name, result, needs, given, reads, compute, memory, *when, paper)  # type: ignore[arg-type]
        _registered[name] = own
        return compute

    return register


def registered_stages() -> tuple[Stage, ...]:
    """All stages registered so far: each after those it needs, otherwise in alphabetical order."""
    ordered: dict[str, Stage] = {}
    by_result = {each.result: each for each in _registered.values()}

    def add(each: Stage) -> None:
        for kind in each.needs:
            add(by_result[kind])
        ordered.setdefault(each.name, each)

    for name in sorted(_registered):
        add(_registered[name])
    return tuple(ordered.values())


def unregister(name: str) -> None:
    """Remove a stage that a program registered."""
    _registered.pop(name, None)

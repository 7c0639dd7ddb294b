"""The served runs by name, and their models: at most two in memory, used by one request at a time."""

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, lru_cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.experiments.patterns import activation_map
from arithscope.explorer.tables import HeuristicTable, NeuronTable
from arithscope.models.model import Model
from arithscope.pipeline.study import CHECKPOINTS
from arithscope.prompts import operand_grid
from arithscope.results.comparison import Comparison, compare
from arithscope.results.run import Run, distinct_names
from arithscope.utils.out_of_memory import explain_out_of_memory

MAX_MODELS, MAX_MAPS = 2, 32  # kept in memory: models, and activation maps computed here


class NotFound(UserError):
    """The request names something that does not exist."""


class ServedRun:
    """A run, with derived tables that are computed once."""

    def __init__(self, name: str, run: Run):
        self.name, self.run = name, run
        self.predictions = cache(self._predictions)

    def require(self, *stages: str) -> None:
        """Raise NotFound if one of the stages is not done."""
        for stage in stages:
            if stage not in self.run.stages:
                raise NotFound(f"The run {self.name} has no stage {stage[:80]!r}; run it again with all stages.")

    @cached_property
    def neurons(self) -> NeuronTable:
        self.require("patterns", "classify")
        return NeuronTable(self.run.patterns, self.run.classify)

    @cached_property
    def heuristics(self) -> HeuristicTable:
        self.require("patterns", "classify")
        return HeuristicTable(self.run.classify, self.run.knockout if "knockout" in self.run.stages else None)

    def _predictions(self, operator: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Over the operand grid: predicted number (−1: not a number, −2: illegal prompt) and p_answer."""
        self.require("accuracy")
        if operator not in self.run.accuracy.operators:
            raise NotFound(f"The run {self.name} has no prompts with {operator}.")
        rows = self.run.accuracy.rows(operand_grid(operator, self.run.max_operand))
        return rows.predicted.fillna(-2).to_numpy("<i4"), rows.p_answer.to_numpy("<f4")

    @cached_property
    def checkpoints(self) -> dict[str, Run]:
        """Runs of the earlier checkpoints, in training order."""
        names = self.run.training.checkpoints[:-1] if "training" in self.run.stages else []
        return {name: Run(self.run.path / CHECKPOINTS / name, options=self.run.options) for name in names}


class RunRegistry:
    """Runs by name. Requests look runs up here, so that no part of a request becomes a path."""

    def __init__(self, runs: Sequence[Run]):
        names = [re.sub(r"[^A-Za-z0-9._@-]+", "-", name).strip("-") or "run" for name in distinct_names(runs)]
        if len(set(names)) < len(names):
            names = [f"{name}-{i}" for i, name in enumerate(names, start=1)]
        self.runs = {name: ServedRun(name, run) for name, run in zip(names, runs, strict=True)}
        self._loaded: OrderedDict[str, Run] = OrderedDict()
        self._lock = Lock()
        self.computed_map = lru_cache(MAX_MAPS)(self._computed_map)

    def __getitem__(self, name: str) -> ServedRun:
        if name not in self.runs:
            raise NotFound(f"There is no run {name[:80]!r} here; choose from {', '.join(self.runs)}.")
        return self.runs[name]

    @contextmanager
    def model(self, run: Run) -> Iterator[Model]:
        """A run's model, for one request at a time: edits are hooks on the model and must not mix."""
        with self._lock:
            self._loaded[str(run.path)] = run
            self._loaded.move_to_end(str(run.path))
            while len(self._loaded) > MAX_MODELS:
                self._loaded.popitem(last=False)[1].release()
            with explain_out_of_memory(f"the model of {run.path}, or for a pass of it"):
                yield run.model

    def _computed_map(self, run: Run, operator: str, layer: int, neuron: int) -> np.ndarray[Any, Any]:
        with self.model(run) as model:
            return activation_map(model, operator, layer, neuron, run.max_operand)

    @cached_property
    def comparison(self) -> Comparison:
        return compare([served.run for served in self.runs.values()])

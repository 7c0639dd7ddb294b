"""The runs that are served, by name, and their subjects: few at a time in memory, and one caller at a time."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from arithscope.errors import UserError
from arithscope.explorer.tables import HeuristicTable, NeuronTable
from arithscope.models.model import Model
from arithscope.pipeline.checkpoints import FOLDER as CHECKPOINTS
from arithscope.prompts import operand_grid
from arithscope.results.compare import compare
from arithscope.results.run import Run, distinct_names
from arithscope.utils.out_of_memory import explain_out_of_memory

MOST_SUBJECTS = 2  # models in memory


class NotThere(UserError):
    """Something that does not exist was asked for."""


class Served:
    """A run as the explorer uses it: with what is derived once and looked at often."""

    def __init__(self, name: str, run: Run):
        self.name, self.run = name, run

    def needs(self, *stages: str) -> None:
        """Raise NotThere if one of these stages was not run."""
        for stage in stages:
            if stage not in self.run.stages:
                raise NotThere(f"The run {self.name} has no stage {stage}; run it again with all stages.")

    @cached_property
    def neurons(self) -> NeuronTable:
        self.needs("patterns", "classify")
        return NeuronTable(self.run.patterns, self.run.classify)

    @cached_property
    def heuristics(self) -> HeuristicTable:
        self.needs("patterns", "classify")
        knockout = self.run.knockout if "knockout" in self.run.stages else None
        return HeuristicTable(self.run.classify, knockout)

    @cached_property
    def squares(self) -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """By operator, over the operand square: the model's answer (−1: no number, −2: no legal prompt), and the right answer's
        probability."""
        self.needs("accuracy")
        found = {}
        for operator in self.run.accuracy.operators:
            prompts = operand_grid(operator, self.run.max_operand)
            rows = self.run.accuracy.rows(prompts)
            answered = rows.predicted.fillna(-2).to_numpy(dtype=np.int32)
            found[operator] = answered, rows.p_answer.to_numpy(dtype=np.float32)
        return found

    @cached_property
    def checkpoints(self) -> dict[str, Run]:
        """The earlier checkpoints of a run that followed its subject through training, in order."""
        if "training" not in self.run.stages:
            return {}
        names = self.run.training.checkpoints[:-1]
        return {name: Run(self.run.path / CHECKPOINTS / name, options=self.run.options) for name in names}


class RunRegistry:
    """Runs by name. What a request names is looked up here and never becomes a path."""

    def __init__(self, runs: Sequence[Run]):
        names = [re.sub(r"[^A-Za-z0-9._@-]+", "-", name).strip("-") or "run" for name in distinct_names(runs)]
        if len(set(names)) < len(names):
            names = [f"{name}-{i}" for i, name in enumerate(names, start=1)]
        self.runs = {name: Served(name, run) for name, run in zip(names, runs, strict=True)}
        self._loaded: OrderedDict[str, Run] = OrderedDict()
        self._lock = Lock()

    def __getitem__(self, name: str) -> Served:
        if name not in self.runs:
            raise NotThere(f"There is no run {name[:80]!r} here; choose from {', '.join(self.runs)}.")
        return self.runs[name]

    @contextmanager
    def model(self, run: Run) -> Iterator[Model]:
        """A run's subject, for one caller at a time: edits are hooks in the model, which two callers must not mix."""
        with self._lock:
            key = str(run.path)
            self._loaded[key] = run
            self._loaded.move_to_end(key)
            while len(self._loaded) > MOST_SUBJECTS:
                self._loaded.popitem(last=False)[1].release()
            with explain_out_of_memory(f"the subject of {run.path}, or for a pass of it"):
                yield run.model

    @cached_property
    def comparison(self) -> Any:
        return compare([served.run for served in self.runs.values()])

    @cached_property
    def compared_names(self) -> dict[str, str]:
        """The names of runs in the comparison, by the names that they have here."""
        return dict(zip(self.runs, distinct_names([served.run for served in self.runs.values()]), strict=True))

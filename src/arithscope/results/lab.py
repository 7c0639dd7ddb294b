"""Experiments in memory, on a sample of one's own: what is asked for is computed, with all that it needs, and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from arithscope.errors import UserError
from arithscope.experiments.accuracy import accuracy
from arithscope.experiments.common.samples import SampleSizes
from arithscope.models.model import Model
from arithscope.pipeline.registry import STAGES
from arithscope.prompts import OPERATORS, Prompts
from arithscope.results.neuron import NeuronFinder
from arithscope.results.results import Results
from arithscope.settings import Settings
from arithscope.utils.executor import LocalExecutor
from arithscope.utils.progress import Progress, Silent

_STAGES = {stage.name: stage for stage in STAGES if not stage.asked}


class Lab(Results):
    """A study that writes nothing: `lab.circuit` computes accuracies, mean activations and effects first, each once.

    prompts   what samples are drawn from (those that the model gets right); by default all legal prompts. A repeated one
              counts once
    sizes     of samples; by default those of the preset
    known     results from elsewhere, by stage, a run's say, that need not be computed: {"circuit": run.circuit}
    settings  as those of a run: `Lab(subject, operators="+", max_operand=99)`. With prompts of one's own, operators and
              largest operand are theirs unless said otherwise
    """

    def __init__(
        self,
        model: Model,
        prompts: Prompts | None = None,
        sizes: SampleSizes | None = None,
        known: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ):
        self._subject, self.progress = model, progress or Silent()
        self._results = dict(known or {})
        unknown = sorted(set(self._results) - set(_STAGES))
        if unknown:
            raise _no_stage(unknown[0])
        if prompts is None:
            self.settings = Settings(**settings)
        else:
            prompts = _distinct(prompts)
            self.settings = Settings(**_extent(prompts) | settings)
            _check_within(prompts, self.settings)
        self.settings.check(model)
        self.sizes = sizes or self.settings.sizes
        if prompts is not None:
            if "accuracy" in self._results:
                raise UserError("Prompts and a known accuracy exclude each other; leave one of them out.")
            self._results["accuracy"] = accuracy(model, prompts, self.settings.seed, self.progress)

    @property
    def model(self) -> Model:
        return self._subject

    @property
    def operators(self) -> Sequence[str]:
        return self.settings.operators

    @property
    def max_operand(self) -> int:
        return self.settings.max_operand

    @property
    def limit(self) -> int:
        return self.model.limit

    @property
    def seed(self) -> int:
        return self.settings.seed

    def result(self, stage: str) -> Any:
        if stage not in _STAGES:
            raise _no_stage(stage)
        if stage not in self._results:
            chosen = _STAGES[stage]
            needs = {name: self.result(name) for name in chosen.needs}
            settings, executor = Sized(self.settings, self.sizes), LocalExecutor(self.progress.note)
            self._results[stage] = chosen.compute(self.model, settings, needs, self.progress, executor)
        return self._results[stage]

    @cached_property
    def _finder(self) -> NeuronFinder:
        return NeuronFinder(self.neurons, self.patterns, self.classify)

    def __repr__(self) -> str:
        done = ", ".join(name for name in _STAGES if name in self._results) or "nothing yet"
        return f"Lab({self.model!r}, operators {' '.join(self.settings.operators)}, computed: {done})"


class Sized:
    """Settings, but with sample sizes of their own."""

    def __init__(self, settings: Settings, sizes: SampleSizes):
        self._settings, self.sizes = settings, sizes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)


def _distinct(prompts: Prompts) -> Prompts:
    """Each prompt once: discovery and evaluation would share one that is there twice."""
    rows = np.stack([prompts.op1, prompts.operator, prompts.op2])
    return prompts[np.sort(np.unique(rows, axis=1, return_index=True)[1])]


def _extent(prompts: Prompts) -> dict[str, Any]:
    """The operators and the largest operand of some prompts, as settings."""
    if not len(prompts):
        raise UserError("There are no prompts to study; choose some with `legal_prompts`.")
    operators = tuple(OPERATORS[i] for i in np.unique(prompts.operator))
    return {"operators": operators, "max_operand": max(1, int(max(prompts.op1.max(), prompts.op2.max())))}


def _check_within(prompts: Prompts, settings: Settings) -> None:
    extent = _extent(prompts)
    if extent["max_operand"] > settings.max_operand or set(extent["operators"]) - set(settings.operators):
        raise UserError(
            f"The prompts go beyond operators {' '.join(settings.operators)} and operands up to {settings.max_operand}; leave "
            "these settings out, or choose other prompts."
        )


def _no_stage(name: str) -> UserError:
    return UserError(f"There is no stage {name!r}; choose from {', '.join(_STAGES)}.")

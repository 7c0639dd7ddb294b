"""Experiments in memory: what is asked for is computed, with all that it needs, and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy, measure_accuracy
from arithscope.experiments.classify import Classification
from arithscope.experiments.common.result import Result
from arithscope.experiments.common.stage import Results
from arithscope.experiments.neurons import NeuronEffects
from arithscope.experiments.patterns import ActivationMaps
from arithscope.models.model import Model
from arithscope.pipeline.registry import all_stages, stage_of
from arithscope.pipeline.runner import compute_stage
from arithscope.prompts import OPERATORS, Prompts
from arithscope.results.neuron import NeuronFinder
from arithscope.results.study_results import StudyResults
from arithscope.settings import SampleSizes, Settings
from arithscope.utils.executor import LocalExecutor
from arithscope.utils.progress import Progress, Silent

R = TypeVar("R", bound=Result)


class Lab(StudyResults):
    """A study that writes nothing: `lab.circuit` first computes the accuracy, mean activations and effects it needs, once.

    Args:
        model: The model to study.
        prompts: Prompts that samples are drawn from (those that the model gets right); by default all legal prompts.
        sizes: Sample sizes; by default those of the preset.
        known: Results that need not be computed, by stage: `{"circuit": run.circuit}`.
        progress: Where progress is shown.
        **settings: Fields of `Settings`: `Lab(model, operators="+", max_operand=99)`. With prompts of your own, operators and
            largest operand follow from them.

    Raises:
        UserError: If prompts, settings and model do not fit together.
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
        self._model, self.progress = model, progress or Silent()
        self._stages = {stage.name: stage for stage in all_stages() if not stage.on_request}
        if unknown := sorted(set(known or {}) - set(self._stages)):
            raise UserError(f"There is no stage {unknown[0]!r}; choose from {', '.join(self._stages)}.")
        self._results = Results(*(known or {}).values())
        if prompts is not None:
            prompts = _distinct(prompts)
            settings = _extent(prompts) | settings
        self.settings = Settings(**settings, custom_sizes=sizes)
        self.settings.check(model)
        if prompts is not None:
            _check_within(prompts, self.settings)
            if Accuracy in self._results:
                raise UserError("Prompts and a known accuracy exclude each other; leave one of them out.")
            self._results.add(measure_accuracy(model, prompts, self.settings.seed, self.progress))

    @property
    def model(self) -> Model:
        return self._model

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

    def __getitem__(self, kind: type[R]) -> R:
        if kind not in self._results:
            stage = stage_of(kind)
            if stage.name not in self._stages:
                raise UserError(f"The stage {stage.name!r} needs a run folder; choose from {', '.join(self._stages)}.")
            for needed in stage.needs:
                self[needed]
            executor = LocalExecutor(self.progress.note)
            self._results.add(compute_stage(stage, self.model, self.settings, self._results, self.progress, executor))
        return self._results[kind]

    @cached_property
    def _finder(self) -> NeuronFinder:
        return NeuronFinder(self[NeuronEffects], self[ActivationMaps], self[Classification])

    def __repr__(self) -> str:
        done = ", ".join(name for name, stage in self._stages.items() if stage.result in self._results) or "nothing yet"
        return f"Lab({self.model!r}, operators {' '.join(self.settings.operators)}, computed: {done})"


def _distinct(prompts: Prompts) -> Prompts:
    """Each prompt once: discovery and evaluation would share a repeated one."""
    rows = np.stack([prompts.op1, prompts.operator, prompts.op2])
    return prompts[np.sort(np.unique(rows, axis=1, return_index=True)[1])]


def _extent(prompts: Prompts) -> dict[str, Any]:
    """Operators and largest operand of some prompts, as settings."""
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

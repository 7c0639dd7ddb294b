"""Experiments in memory: what is asked for is computed, with all that it needs, and kept."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy, measure_accuracy
from arithscope.experiments.common.stage import Results
from arithscope.models.model import Model
from arithscope.pipeline.registry import all_stages, stage_of
from arithscope.pipeline.runner import compute_stage
from arithscope.prompts import OPERATORS, Prompts
from arithscope.results.neuron import NeuronFinder
from arithscope.results.study_results import R, StudyResults
from arithscope.settings import SampleSizes, Settings
from arithscope.utils.executor import LocalExecutor
from arithscope.utils.progress import Progress, Silent


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
        if prompts is not None:  # each once: discovery and evaluation would share a repeated one
            rows = np.stack([prompts.op1, prompts.operator, prompts.op2])
            prompts = prompts[np.sort(np.unique(rows, axis=1, return_index=True)[1])]
            settings = _extent(prompts) | settings
        self.settings = Settings(**settings, custom_sizes=sizes)
        self.settings.check(model)
        self.operators, self.limit = self.settings.operators, model.limit
        self.max_operand, self.seed = self.settings.max_operand, self.settings.seed
        if prompts is not None:
            extent = _extent(prompts)
            if extent["max_operand"] > self.max_operand or set(extent["operators"]) - set(self.operators):
                raise UserError(
                    f"The prompts go beyond operators {' '.join(self.operators)} and operands up to {self.max_operand}; leave "
                    "these settings out, or choose other prompts."
                )
            if Accuracy in self._results:
                raise UserError("Prompts and a known accuracy exclude each other; leave one of them out.")
            self._results.add(measure_accuracy(model, prompts, self.settings.seed, self.progress))

    @property
    def model(self) -> Model:
        return self._model

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
        return NeuronFinder(*map(self.result, ("neurons", "patterns", "classify")))

    def __repr__(self) -> str:
        done = ", ".join(name for name, stage in self._stages.items() if stage.result in self._results) or "nothing yet"
        return f"Lab({self.model!r}, operators {' '.join(self.settings.operators)}, computed: {done})"


def _extent(prompts: Prompts) -> dict[str, Any]:
    """Operators and largest operand of some prompts, as settings."""
    if not len(prompts):
        raise UserError("There are no prompts to study; choose some with `legal_prompts`.")
    operators = tuple(OPERATORS[i] for i in np.unique(prompts.operator))
    return {"operators": operators, "max_operand": max(1, int(max(prompts.op1.max(), prompts.op2.max())))}

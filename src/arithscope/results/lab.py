"""A study in memory, computed on first use."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy, measure_accuracy
from arithscope.experiments.common.stage import Results
from arithscope.models.model import Model
from arithscope.pipeline.registry import all_stages, stage_of
from arithscope.pipeline.runner import compute_stage
from arithscope.prompts import (
    OPERATORS,
    Prompts,
)
from arithscope.results.study_results import R, StudyResults
from arithscope.settings import SampleSizes, Settings, stratum_of
from arithscope.utils.executor import LocalExecutor
from arithscope.utils.progress import Progress, Silent


class Lab(StudyResults):
    """A study in memory, which writes nothing. `lab.circuit` computes the circuit and all that it needs, each once.

    Args:
        model: The model to study.
        prompts: Prompts to draw samples from (those that the model answers correctly); by default all legal prompts.
        sizes: Sample sizes; by default those of the preset.
        known: Results that need not be computed, by stage: `{"circuit": run.circuit}`.
        progress: Where progress is shown.
        **settings: Fields of `Settings`: `Lab(model, operators="+", max_operand=99)`. If you pass prompts, operators and
            largest operand are by default theirs.

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
        self._model = model
        self.progress = progress or Silent()
        self._stages = {stage.name: stage for stage in all_stages() if not stage.on_request}
        if unknown := sorted(set(known or {}) - set(self._stages)):
            raise UserError(f"There is no stage {unknown[0]!r}; choose from {', '.join(self._stages)}.")
        self._results = Results(*(known or {}).values())
        if settings.get("operands") is not None:
            raise UserError("A Lab does not find layouts; use `run_layouts`, or a Lab of `run.steps[1].model`.")
        extent = {} if prompts is None else _extent(prompts)
        self.settings = Settings(**extent | settings, custom_sizes=sizes)
        self.settings.check(model)
        self.operators, self.stratum = self.settings.operators, stratum_of(model, self.settings)
        self.limit, self.seed = model.limit, self.settings.seed
        if prompts is not None:
            most = self.settings.max_operand
            if extent["max_operand"] > most or set(extent["operators"]) - set(self.operators):
                raise UserError(
                    f"The prompts go beyond operators {' '.join(self.operators)} and operands up to {most}; leave "
                    "these settings out, or choose other prompts."
                )
            if Accuracy in self._results:
                raise UserError("Prompts and a known accuracy exclude each other; pass only one of them.")
            rows = np.stack([prompts.op1, prompts.operator, prompts.op2])
            first = np.sort(np.unique(rows, axis=1, return_index=True)[1])  # samples must not share a repeated prompt
            self._results.add(measure_accuracy(model, prompts[first], self.progress))

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

    @property
    def model(self) -> Model:
        return self._model

    def __repr__(self) -> str:
        done = ", ".join(name for name, stage in self._stages.items() if stage.result in self._results) or "nothing yet"
        return f"Lab({self.model!r}, operators {' '.join(self.settings.operators)}, computed: {done})"


def _extent(prompts: Prompts) -> dict[str, Any]:
    """Operators and largest operand of prompts, as settings."""
    if not len(prompts):
        raise UserError("There are no prompts to study; choose some with `legal_prompts`.")
    operators = tuple(OPERATORS[i] for i in np.unique(prompts.operator))
    return {"operators": operators, "max_operand": max(1, int(max(prompts.op1.max(), prompts.op2.max())))}

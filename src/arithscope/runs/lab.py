"""Experiments in memory, on a sample of one's own: what is asked for is computed, with all that it needs, and kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from arithscope.errors import UserError
from arithscope.experiments.accuracy import accuracy
from arithscope.experiments.samples import SampleSizes
from arithscope.progress import Progress, Silent
from arithscope.prompts import OPERATORS, Prompts
from arithscope.runs.results import Results
from arithscope.settings import Settings
from arithscope.stages import STAGES
from arithscope.subject.subject import Subject

_STAGES = {stage.name: stage for stage in STAGES if not stage.asked}


class Lab(Results):
    """A study that writes nothing: `lab.circuit` computes accuracies, mean activations and effects first, each once.

    prompts   what samples are drawn from (those that the model gets right); by default all legal prompts
    sizes     of samples; by default those of the preset
    known     results from elsewhere, by stage, a run's say, that need not be computed: {"circuit": run.circuit}
    settings  as those of a run: `Lab(subject, operators="+", max_operand=99)`
    """

    def __init__(
        self,
        subject: Subject,
        prompts: Prompts | None = None,
        sizes: SampleSizes | None = None,
        known: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ):
        self.subject, self.progress = subject, progress or Silent()
        if prompts is not None:
            if not len(prompts):
                raise UserError("There are no prompts to study; choose some with `legal_prompts`.")
            settings = {
                "operators": tuple(OPERATORS[i] for i in np.unique(prompts.operator)),
                "max_operand": int(max(prompts.op1.max(), prompts.op2.max())),
            } | settings
        self.settings = Settings(**settings)
        self.settings.check(subject)
        self.sizes = sizes or self.settings.sizes
        unknown = sorted(set(known or {}) - set(_STAGES))
        if unknown:
            raise _no_stage(unknown[0])
        self._results = dict(known or {})
        if prompts is not None and "accuracy" not in self._results:
            self._results["accuracy"] = accuracy(subject, prompts, self.settings.seed, self.progress)

    def result(self, stage: str) -> Any:
        if stage not in _STAGES:
            raise _no_stage(stage)
        if stage not in self._results:
            chosen = _STAGES[stage]
            needs = {name: self.result(name) for name in chosen.needs}
            self._results[stage] = chosen.compute(self.subject, _Sized(self.settings, self.sizes), needs, self.progress)
        return self._results[stage]

    def __repr__(self) -> str:
        done = ", ".join(self._results) or "nothing"
        return f"Lab({self.subject!r}, operators {' '.join(self.settings.operators)}, computed: {done})"


class _Sized:
    """Settings, but with sample sizes of their own."""

    def __init__(self, settings: Settings, sizes: SampleSizes):
        self._settings, self.sizes = settings, sizes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)


def _no_stage(name: str) -> UserError:
    return UserError(f"There is no stage {name!r}; choose from {', '.join(_STAGES)}.")

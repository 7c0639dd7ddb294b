"""Patching for several answer steps at once.

Prompts are patched with their answers behind them, and each pass is read at every step whose token is predicted at the patched
position or behind it. The numbers are those that each step would get by itself, as no token sees a later one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from arithscope.experiments.accuracy import accuracy_of
from arithscope.experiments.common.samples import Split, TooFewCorrect, split_prompts
from arithscope.experiments.common.stage import Context
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.models.model import Model


@dataclass(frozen=True)
class SharedSteps:
    """Answer steps that patch the same prompts of an operator with the same counterfactuals.

    Attributes:
        model: The model at the last of these steps.
        steps: The steps, ascending.
        split: Their samples.
    """

    model: Model
    steps: Sequence[int]
    split: Split

    def read_at(self, position: int) -> list[int]:
        """The steps whose token is predicted at this position or behind it."""
        final, last = self.model.positions.final, self.steps[-1]
        return [step for step in self.steps if final - (last - step) >= position]


def shared_steps(ctx: Context) -> dict[str, SharedSteps]:
    """Operators that at least two answer steps study with the same discovery prompts and counterfactuals."""
    answers, views = ctx.results[WholeAnswers], ctx.model.every_step()
    samples: dict[int, dict[str, Split]] = {}
    for step in range(1, len(views) + 1):
        left_out = answers.left_out(step)
        if operators := [o for o in ctx.settings.operators if o in answers.operators and o not in left_out]:
            try:
                accuracy = accuracy_of(answers.means_at(step), operators)
                samples[step] = split_prompts(accuracy, ctx.settings.sizes, ctx.settings.seed)
            except TooFewCorrect:
                continue  # this step is not studied
    found = {}
    for operator in ctx.settings.operators:
        own = {step: splits[operator] for step, splits in samples.items() if operator in splits}
        if len(own) > 1 and len({_patches(split) for split in own.values()}) == 1:
            found[operator] = SharedSteps(views[max(own) - 1], sorted(own), own[max(own)])
    return found


def _patches(split: Split) -> tuple[bytes, ...]:
    """What is patched with what."""
    sides = split.discovery, split.counterfactuals
    return tuple(np.stack([x.op1, x.operator, x.op2]).tobytes() for x in sides)


def of_step(table: pd.DataFrame, step: int, operator: str) -> pd.DataFrame:
    """The rows of a table about one answer step and operator, without the column `step`."""
    return table[(table.step == step) & (table.operator == operator)].drop(columns="step")

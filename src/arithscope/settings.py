"""What to study, and how to measure it. The template is the subject's own; a preset sets sample sizes."""

from __future__ import annotations

from dataclasses import dataclass

from arithscope.errors import UserError
from arithscope.experiments.ablation import Judging
from arithscope.experiments.samples import PRESETS, SampleSizes
from arithscope.measures import EFFECTS
from arithscope.prompts import OPERATORS, operator_indices


@dataclass(frozen=True)
class Settings:
    """effect: by which effect components are ranked (all are stored). centre: whether NL is taken from logits centred over
    the vocabulary. ratio_of_means: faithfulness as a ratio of means, instead of the mean of the prompts' ratios."""

    operators: tuple[str, ...] = OPERATORS
    max_operand: int = 300
    preset: str = "quick"
    seed: int = 0
    effect: str = "probability"
    centre: bool = True
    ratio_of_means: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", tuple(OPERATORS[i] for i in operator_indices(self.operators)))
        if self.preset not in PRESETS:
            raise UserError(f"There is no preset {self.preset!r}; choose from {', '.join(PRESETS)}.")
        if self.effect not in EFFECTS:
            raise UserError(f"There is no effect {self.effect!r}; choose from {', '.join(EFFECTS)}.")
        if self.max_operand < 1:
            raise UserError(f"--max-operand {self.max_operand} leaves nothing to study; use at least 1.")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} is negative; use 0 or more.")

    @property
    def sizes(self) -> SampleSizes:
        return PRESETS[self.preset]

    @property
    def judging(self) -> Judging:
        return Judging(self.centre, self.ratio_of_means)

"""What to study, and how to measure it. The template is the subject's own; a preset sets sample sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arithscope.errors import UserError
from arithscope.experiments.common.ablation import Judging
from arithscope.experiments.common.association import LAST, POSITIONS
from arithscope.experiments.common.samples import PRESETS, SampleSizes
from arithscope.experiments.neurons import METHODS, RANKS, SCREEN
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, operator_indices
from arithscope.stats.measures import EFFECTS


@dataclass(frozen=True)
class Settings:
    """effect: by which effect components are ranked (all are stored). centre: whether NL is taken from logits centred over
    the vocabulary. ratio_of_means: faithfulness as a ratio of means, instead of the mean of the prompts' ratios.
    neurons: how the effects of single neurons are found. rank: by what of their effects over prompts neurons are ranked.
    topk: how many neurons of each MLP are kept, of all operators or of each; None: as few as do as well as all.
    both_operands: whether heuristics about both operands at once (`op1, op2 mod 2 = 0`) are tried too.
    knockout_at: whether neurons are silenced at the last position or at all.
    half: 1 or 2 to draw all samples, half as large, from that half of the legal prompts; 0: from all."""

    operators: tuple[str, ...] = OPERATORS
    max_operand: int = 300
    preset: str = "quick"
    seed: int = 0
    effect: str = "probability"
    centre: bool = True
    ratio_of_means: bool = False
    neurons: str = "exact"
    rank: str = "mean"
    topk: int | Mapping[str, int] | None = None
    both_operands: bool = False
    knockout_at: str = LAST
    half: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", tuple(OPERATORS[i] for i in operator_indices(self.operators)))
        choices = {"preset": PRESETS, "effect": EFFECTS, "neurons": METHODS, "rank": RANKS, "knockout_at": POSITIONS}
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                option = name.replace("_", "-")
                raise UserError(f"There is no --{option} {value!r}; choose from {', '.join(known)}.")
        if self.max_operand < 1:
            raise UserError(f"--max-operand {self.max_operand} leaves nothing to study; use at least 1.")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} is negative; use 0 or more.")
        if self.half not in (0, 1, 2):
            raise UserError(f"There is no half {self.half!r} of the prompts; use 1 or 2, or 0 for all of them.")
        if self.fixed_k is not None and min(self.fixed_k.values(), default=1) < 1:
            raise UserError(f"--topk {self.topk} keeps no neuron; use at least 1.")

    def check(self, model: Model) -> None:
        """Raise UserError if this subject cannot be studied so."""
        model.encoder.check(self.operators, self.max_operand)
        if self.most_k(model) > model.sizes.neurons:
            raise UserError(f"--topk {self.topk} is more than the {model.sizes.neurons} neurons that an MLP has.")

    @property
    def sizes(self) -> SampleSizes:
        return self.whole_sizes.halved() if self.half else self.whole_sizes

    @property
    def whole_sizes(self) -> SampleSizes:
        """Of samples from all prompts."""
        return PRESETS[self.preset]

    @property
    def fixed_k(self) -> Mapping[str, int] | None:
        """By operator how many neurons of each MLP are kept, if that is fixed."""
        return dict.fromkeys(OPERATORS, self.topk) if isinstance(self.topk, int) else self.topk

    def most_k(self, model: Model) -> int:
        """How many neurons of an MLP may be kept at the most."""
        return model.sizes.neurons if self.fixed_k is None else max(self.fixed_k.values())

    @property
    def picked_by(self) -> str | None:
        """The effect by which a screen picks neurons to measure exactly; other methods do not depend on it."""
        return self.effect if self.neurons == SCREEN else None

    @property
    def judging(self) -> Judging:
        return Judging(self.centre, self.ratio_of_means)

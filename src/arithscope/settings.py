"""What to study and how to measure it. The prompt template belongs to the model; a preset sets the sample sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from arithscope.errors import UserError
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, operator_indices
from arithscope.stats.effects import EFFECTS

EXACT, ATTRIBUTION_THEN_EXACT = "exact", "atp+exact"
NEURON_METHODS = (EXACT, "atp", "ig", "relp", ATTRIBUTION_THEN_EXACT)
RANKINGS = ("mean", "mean+std")


@dataclass(frozen=True)
class SampleSizes:
    """Numbers of prompts that the experiments use: per operator, except for the probes.

    Attributes:
        discovery: Correct prompts on which components are patched and ranked.
        evaluation: Correct prompts, disjoint from discovery, on which faithfulness is measured.
        first_mlp: Discovery prompts on which single neurons of the first MLP are patched.
        probe: Correct prompts of all operators together for training and testing probes.
        neurons: Discovery prompts on which single neurons of the later MLPs are patched.
        draws: Random circuits that each circuit is compared with.
        permutations: Permutations of each neuron's activations for the calibration of heuristics.
        knockout: Held-out prompts that satisfy a heuristic, and as many that do not.
        prompt_knockout: Held-out prompts, each of which loses the neurons of its own heuristics.
        failures: Held-out correct prompts, and as many incorrect ones.
    """

    discovery: int
    evaluation: int
    first_mlp: int
    probe: int
    neurons: int = 50
    draws: int = 10
    permutations: int = 32
    knockout: int = 100
    prompt_knockout: int = 50
    failures: int = 50

    def halved(self) -> "SampleSizes":
        """Half as many prompts of each kind, at least one. Draws and permutations stay."""
        kinds = ("discovery", "evaluation", "first_mlp", "probe", "neurons", "knockout", "prompt_knockout", "failures")
        return replace(self, **{kind: max(1, getattr(self, kind) // 2) for kind in kinds})


PRESETS = {
    "quick": SampleSizes(discovery=32, evaluation=32, first_mlp=8, probe=4000, draws=4, permutations=8, knockout=25),
    "paper": SampleSizes(discovery=100, evaluation=100, first_mlp=16, probe=16_000),
}


@dataclass(frozen=True)
class Settings:
    """Everything that can be set about a study.

    Attributes:
        operators: Operators to study, in the order of `OPERATORS`.
        max_operand: Operands go from 0 to this.
        preset: Sample sizes: `quick` or `paper`.
        seed: Seed of every random choice.
        effect: Effect measure that ranks heads and neurons; all measures are stored.
        neurons: How effects of single neurons are computed: exact patching, an attribution method (atp, ig, relp), or
            `atp+exact`, exact patching of the neurons that attribution patching ranks highest.
        rank: Statistic of a neuron's effects over prompts that ranks it: `mean` or `mean+std`.
        topk: Neurons kept per MLP, for all operators or by operator; None chooses the fewest that suffice.
        both_operands: Whether to try heuristics about both operands (`op1, op2 mod 2 = 0`) as well.
        half: 1 or 2 draws all samples, half as large, from that half of the legal prompts; 0 uses all prompts.
        custom_sizes: Sample sizes that replace the preset's.

    Raises:
        UserError: If a value is not one of its choices, or leaves nothing to study.
    """

    operators: tuple[str, ...] = OPERATORS
    max_operand: int = 300
    preset: str = "quick"
    seed: int = 0
    effect: str = "probability"
    neurons: str = EXACT
    rank: str = "mean"
    topk: int | Mapping[str, int] | None = None
    both_operands: bool = False
    half: int = 0
    custom_sizes: SampleSizes | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", tuple(OPERATORS[i] for i in operator_indices(self.operators)))
        choices = {"preset": tuple(PRESETS), "effect": EFFECTS, "neurons": NEURON_METHODS, "rank": RANKINGS}
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                raise UserError(f"There is no --{name} {value!r}; choose from {', '.join(known)}.")
        if self.max_operand < 1:
            raise UserError(f"--max-operand {self.max_operand} leaves nothing to study; use at least 1.")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} is negative; use 0 or more.")
        if self.half not in (0, 1, 2):
            raise UserError(f"There is no half {self.half!r} of the prompts; use 1 or 2, or 0 for all of them.")
        if self.fixed_k is not None and min(self.fixed_k.values(), default=1) < 1:
            raise UserError(f"--topk {self.topk} keeps no neuron; use at least 1.")

    def check(self, model: Model) -> None:
        """Raise UserError if the model cannot be studied with these settings."""
        model.encoder.check(self.operators, self.max_operand)
        if self.largest_k(model) > model.sizes.neurons:
            raise UserError(f"--topk {self.topk} is more than the {model.sizes.neurons} neurons of an MLP.")

    @property
    def sizes(self) -> SampleSizes:
        """Sample sizes in force."""
        sizes = self.custom_sizes or PRESETS[self.preset]
        return sizes.halved() if self.half else sizes

    @property
    def fixed_k(self) -> Mapping[str, int] | None:
        """Neurons kept per MLP by operator; None if the experiment chooses."""
        return dict.fromkeys(OPERATORS, self.topk) if isinstance(self.topk, int) else self.topk

    def largest_k(self, model: Model) -> int:
        """Upper bound on the neurons kept per MLP."""
        return model.sizes.neurons if self.fixed_k is None else max(self.fixed_k.values())

    @property
    def preselected_by(self) -> str | None:
        """The effect by which attribution patching selects neurons for exact patching; other methods do not depend on it."""
        return self.effect if self.neurons == ATTRIBUTION_THEN_EXACT else None

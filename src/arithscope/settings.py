"""Settings of a study: what to study and how to measure it. (The prompt template belongs to the model.)"""

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
    """Sample sizes of the experiments. Numbers of prompts are per operator, except for the probes.

    Attributes:
        discovery: Correct prompts on which components are patched and ranked.
        evaluation: Correct prompts, disjoint from discovery, on which faithfulness is measured.
        first_mlp: Discovery prompts on which single neurons of the first MLP are patched.
        probe: Correct prompts of all operators together for training and testing probes.
        neurons: Discovery prompts on which single neurons of the later MLPs are patched.
        draws: Random circuits that each circuit is compared with.
        permutations: Permutations of each neuron's activations that calibrate its matches.
        knockout: Held-out prompts for which a heuristic holds, and as many for which it does not.
        prompt_knockout: Held-out prompts, each run without the neurons of the heuristics that hold for it.
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
        """Half as many prompts of each kind, at least one. Draws and permutations stay the same."""
        kinds = ("discovery", "evaluation", "first_mlp", "probe", "neurons", "knockout", "prompt_knockout", "failures")
        return replace(self, **{kind: max(1, getattr(self, kind) // 2) for kind in kinds})


PRESETS = {
    "quick": SampleSizes(discovery=32, evaluation=32, first_mlp=8, probe=4000, draws=4, permutations=8, knockout=25),
    "paper": SampleSizes(discovery=100, evaluation=100, first_mlp=16, probe=16_000),
}


@dataclass(frozen=True)
class Settings:
    """Settings of a study.

    Attributes:
        operators: Operators to study; sorted in the order of `OPERATORS`.
        max_operand: Largest operand; the smallest is 0.
        preset: Sample sizes: `quick` or `paper`.
        seed: Seed of every random choice.
        effect: Effect measure that ranks heads and neurons; all measures are stored.
        neurons: How effects of single neurons are computed: exact patching, an attribution method (atp, ig, relp), or
            `atp+exact`, exact patching of the neurons that attribution patching ranks highest.
        rank: Statistic of a neuron's effects over prompts by which it is ranked: `mean` or `mean+std`.
        topk: Neurons kept per MLP, for all operators or by operator; None: the fewest that reach the plateau.
        both_operands: Whether to also try heuristics about both operands (`op1, op2 mod 2 = 0`).
        half: 1 or 2 draws all samples, half as large, from that half of the legal prompts; 0 uses all prompts.
        custom_sizes: Sample sizes that replace the preset's.

    Raises:
        UserError: If a value is not one of the choices, or leaves nothing to study.
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
        if self.fixed_k is not None:
            if missing := [operator for operator in self.operators if operator not in self.fixed_k]:
                raise UserError(f"topk has no number of neurons for {' '.join(missing)}; give one for every operator.")
            if min(self.fixed_k.values()) < 1:
                raise UserError(f"--topk {self.topk} keeps no neuron; use at least 1.")

    def check(self, model: Model) -> None:
        """Raise UserError if the model cannot be studied with these settings."""
        model.encoder.check(self.operators, self.max_operand)
        if self.largest_k(model) > model.sizes.neurons:
            raise UserError(f"--topk {self.topk} is more than the {model.sizes.neurons} neurons of an MLP.")

    @property
    def sizes(self) -> SampleSizes:
        """Custom sample sizes or else the preset's, halved if `half` is set."""
        sizes = self.custom_sizes or PRESETS[self.preset]
        return sizes.halved() if self.half else sizes

    @property
    def fixed_k(self) -> Mapping[str, int] | None:
        """Neurons kept per MLP, by operator; None if the experiment chooses."""
        return dict.fromkeys(OPERATORS, self.topk) if isinstance(self.topk, int) else self.topk

    def largest_k(self, model: Model) -> int:
        """Upper bound on the neurons kept per MLP."""
        return model.sizes.neurons if self.fixed_k is None else max(self.fixed_k.values())

    @property
    def preselected_by(self) -> str | None:
        """The effect measure by which `atp+exact` selects neurons for exact patching; None for other methods."""
        return self.effect if self.neurons == ATTRIBUTION_THEN_EXACT else None

"""Settings of a study: what to study and how to measure it. (The prompt template belongs to the model.)"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from arithscope.errors import UserError
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Operands, Stratum, checked_operands, operator_indices, whole_numbers
from arithscope.stats.effects import EFFECTS

EXACT, ATTRIBUTION_THEN_EXACT = "exact", "atp+exact"
NEURON_METHODS = (EXACT, "atp", "ig", "relp", ATTRIBUTION_THEN_EXACT)
MEAN, MEAN_ABS, MEAN_STD = RANKINGS = ("mean", "mean_abs", "mean+std")
CAUSE, PROBE = ANSWER_LAYERS = ("cause", "probe")
ACCURACY, FAITHFULNESS = PLATEAUS = ("accuracy", "faithfulness")


@dataclass(frozen=True)
class SampleSizes:
    """Sample sizes of the experiments. Numbers of prompts are per operator, except for the probes.

    Attributes:
        discovery: Correct prompts on which components are patched and ranked.
        evaluation: Correct prompts on which what was chosen is measured. Discovery, selection and evaluation are disjoint.
        first_mlp: Discovery prompts on which single neurons of the first MLP are patched.
        probe: Correct prompts of all operators together for training and testing probes.
        selection: Correct prompts on which circuit sizes, numbers of neurons and answer layers are chosen.
        neurons: Discovery prompts on which single neurons of the later MLPs are patched; at most `discovery`.
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
    selection: int = 50
    neurons: int = 50
    draws: int = 10
    permutations: int = 32
    knockout: int = 100
    prompt_knockout: int = 50
    failures: int = 50

    def halved(self) -> "SampleSizes":
        """Half as many prompts of each kind, at least one. Draws and permutations stay the same."""
        kept = "draws", "permutations"
        return replace(self, **{name: max(1, size // 2) for name, size in vars(self).items() if name not in kept})


QUICK, PAPER = "quick", "paper"
PRESETS = {
    QUICK: SampleSizes(discovery=50, evaluation=32, first_mlp=8, probe=4000, draws=4, permutations=8, knockout=25),
    PAPER: SampleSizes(discovery=100, evaluation=100, first_mlp=16, probe=16_000, selection=100),
}

# Settings whose default depends on the preset: the best known, and the paper's.
_PRESET_CHOICES = {"rank": (MEAN_ABS, MEAN), "answer_layers": (CAUSE, PROBE), "plateau": (ACCURACY, FAITHFULNESS)}


@dataclass(frozen=True)
class Settings:
    """Settings of a study.

    Attributes:
        operators: Operators to study; sorted in the order of `OPERATORS`.
        max_operand: Largest operand where numbers are single tokens; the smallest is 0.
        operands: Ranges of op1 and op2, ((10, 99), (10, 99)), which may take several tokens; they take the place of
            `max_operand`. Each layout of tokens, and each token of the answer, is then studied by itself.
        preset: Sample sizes: `quick` or `paper`. The latter also ranks neurons, finds answer layers and chooses how many
            heads and neurons suffice as the paper does.
        seed: Seed of every random choice.
        effect: Effect measure that ranks heads and neurons; all measures are stored.
        neurons: How effects of single neurons are computed: exact patching, an attribution method (atp, ig, relp), or
            `atp+exact`, exact patching of the neurons that attribution patching ranks highest.
        rank: Statistic of a neuron's effects over prompts by which it is ranked: `mean` (the paper's), `mean_abs` (the mean
            of absolute effects) or `mean+std`. None: `mean` with the preset `paper`, otherwise `mean_abs`.
        answer_layers: How the layers whose neurons are studied are found: by `cause` (the fewest last layers whose MLPs the
            answer needs) or by `probe` (the paper's). None: `probe` with the preset `paper`, otherwise `cause`.
        plateau: What the fewest heads and neurons have to keep: `faithfulness` to within 0.02 of the best (the paper's), or
            `accuracy` to within 0.1 as well. None: `faithfulness` with the preset `paper`, otherwise `accuracy`.
        topk: Neurons kept per MLP, for all operators or by operator; None: the fewest that reach the plateau.
        both_operands: Whether to also try heuristics about both operands (`op1, op2 mod 2 = 0`).
        half: 1 or 2 draws all samples, half as large, from that half of the legal prompts; 0 uses all prompts.
        custom_sizes: Sample sizes that replace the preset's.

    Raises:
        UserError: If a value is not one of the choices, or leaves nothing to study.
    """

    operators: tuple[str, ...] = OPERATORS
    max_operand: int = 300
    operands: Operands | None = None
    preset: str = QUICK
    seed: int = 0
    effect: str = "probability"
    neurons: str = EXACT
    rank: str | None = None
    answer_layers: str | None = None
    plateau: str | None = None
    topk: int | Mapping[str, int] | None = None
    both_operands: bool = False
    half: int = 0
    custom_sizes: SampleSizes | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", tuple(OPERATORS[i] for i in operator_indices(self.operators)))
        choices = {"preset": tuple(PRESETS), "effect": EFFECTS, "neurons": NEURON_METHODS}
        choices |= {"rank": RANKINGS, "answer_layers": ANSWER_LAYERS, "plateau": PLATEAUS}
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known and (value is not None or name not in _PRESET_CHOICES):
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"There is no {option} {value!r}; choose from {', '.join(known)}.")
        if self.operands is not None:
            op1, op2 = (tuple(map(int, between)) for between in self.operands)
            object.__setattr__(self, "operands", checked_operands(((op1[0], op1[1]), (op2[0], op2[1]))))
        if self.operands is not None and self.max_operand != Settings.max_operand:
            problem = "--max-operand is for numbers that are single tokens, and --digits or --operands takes its place"
            raise UserError(f"{problem}; give one of them.")
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
    def ranking(self) -> str:
        """The statistic that ranks neurons."""
        return self._choice("rank")

    @property
    def layers_by(self) -> str:
        """How the answer layers are found."""
        return self._choice("answer_layers")

    @property
    def sufficient(self) -> tuple[str, ...]:
        """The measures by which heads and neurons suffice, the most important one first."""
        return (FAITHFULNESS, ACCURACY) if self._choice("plateau") == ACCURACY else (FAITHFULNESS,)

    def _choice(self, name: str) -> str:
        """A setting, or if it is None, the preset's."""
        return getattr(self, name) or _PRESET_CHOICES[name][self.preset == PAPER]

    @property
    def fixed_k(self) -> Mapping[str, int] | None:
        """Neurons kept per MLP, by operator; None if the experiment chooses."""
        return dict.fromkeys(OPERATORS, self.topk) if isinstance(self.topk, int) else self.topk

    def largest_k(self, model: Model) -> int:
        """Upper bound on the neurons kept per MLP."""
        return model.sizes.neurons if self.fixed_k is None else max(self.fixed_k.values())

    @property
    def preselected_by(self) -> tuple[str, str] | None:
        """Effect measure and ranking by which `atp+exact` selects neurons for exact patching; None for other methods."""
        return (self.effect, self.ranking) if self.neurons == ATTRIBUTION_THEN_EXACT else None


def stratum_of(model: Model, settings: Settings) -> Stratum:
    """The prompts to study: those of the model's stratum or, where numbers are whole, all operands up to the largest one."""
    return model.encoder.stratum or whole_numbers(settings.max_operand, model.limit)

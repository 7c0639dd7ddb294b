"""The rule that names a neuron: the simplest that fits, as different rules can hold for nearly the same legal prompts.

Of the quotients whose remainder modulo 11 is 1, nearly all are 1, so a neuron that fires where the result is 1 matches
`result mod 11 = 1`. Differences have op2 ≤ op1, so one that fires for two small operands matches `op1 in [0, 50]`.

1. Candidates: the neuron's calibrated matches of the class (direct or indirect) and sign of its best match, that of largest
   `neg_log10_p`; and rules of that class whose legal prompts nearly coincide with those of the best match: their Jaccard index
   |A ∩ B| / |A ∪ B| is at least 0.9. Besides the catalogue, these can be single numbers (`op1 ~ 000`) that it leaves out as
   repetitions, and ranges and congruences of both operands.
2. Fit of a candidate: R² of the map over legal prompts on its indicator, 0 if the map is not larger where the rule holds. The
   map is A × L for direct rules, A (or −A, for sign −1) for indirect ones. Candidates stay if their fit is as good as the
   largest: at most 0.02, and at most a tenth, below it.
3. Legal prompts cannot tell `op1 in [0, 50]` from the corner of small operands, but the model also answers the others. Of the
   indirect candidates left, those stay whose fit over the whole operand square is as good as the largest.
4. The name is the simplest candidate left (`simplicity`), or a simpler rule still that nearly coincides with it, whatever its
   fit; for indirect rules it must fit as well over the operand square.
5. Aliases of the name: the rules of its class whose legal prompts nearly coincide with its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.digits import Borrow, Carry, Digit, DigitDifference, DigitPair, DigitSum
from arithscope.heuristics.kinds import (
    DIGITS,
    VARIABLES,
    DigitPattern,
    Identical,
    Modulo,
    MultiResult,
    Range,
    both_operand_rules,
)
from arithscope.heuristics.rule import ANSWER, BOTH, RESULT, Bools, Rule, prompt_numbers
from arithscope.prompts import Prompts
from arithscope.stats.intervals import Floats

COINCIDENCE = 0.9  # smallest Jaccard index of rules that nearly coincide
TOLERANCE, RELATIVE_TOLERANCE = 0.02, 0.1  # of fits that count as equally good; the smaller one holds
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1)  # bits set in each byte


class Name(NamedTuple):
    rule: Rule
    fit: float
    aliases: list[Rule]  # simplest first


def simplicity(rule: Rule) -> tuple[int, int, str]:
    """Sort key: simpler rules first.

    By kind: digit, one number (`op1 ~ 000`), identical, carry or borrow, range, congruence, sum or difference of two digits,
    pair of digits, pattern with free digits, set of results, range and congruence of both operands, other kinds. Then digits of
    operands, wider ranges, smaller divisors, lower places, fewer fixed digits, smaller sets; then text.
    """
    both = rule.on == BOTH
    match rule:
        case Digit():
            kind, size = 0, int(rule.on == ANSWER)
        case DigitPattern():
            free = rule.template.count(".")
            kind, size = 8 if free else 1, DIGITS - free
        case Identical():
            kind, size = 2, 0
        case Carry() | Borrow():
            kind, size = 3, rule.place
        case Range():
            kind, size = 10 if both else 4, rule.low - rule.high
        case Modulo():
            kind, size = 11 if both else 5, rule.divisor
        case DigitSum() | DigitDifference():
            kind, size = 6, rule.place
        case DigitPair():
            kind, size = 7, rule.place
        case MultiResult():
            kind, size = 9, len(rule.results)
        case _:
            kind, size = 12, 0
    return kind, size, str(rule)


class Domain:
    """Prompts over which rules hold or not. Rules about one number are looked up by number, which is fast."""

    def __init__(self, prompts: Prompts, variables: Sequence[str]):
        self._prompts = prompts
        self._numbers = {
            on: np.unique(prompt_numbers(prompts, on), return_inverse=True, return_counts=True) for on in variables
        }
        self._of_others: dict[Rule, Bools] = {}

    def holds(self, rule: Rule) -> Bools:
        """Which prompts satisfy the rule."""
        if rule.on in self._numbers:
            numbers, place, _ = self._numbers[rule.on]
            return rule.admits(numbers)[place]
        if rule not in self._of_others:
            self._of_others[rule] = rule.holds(self._prompts)
        return self._of_others[rule]

    def fits(self, values: Floats, rules: Sequence[Rule]) -> Floats:
        """R² of a value for each prompt on the indicator of each rule; 0 where values are not larger if the rule holds."""
        x = values - values.mean()
        total = float(np.square(x).sum())
        used = {rule.on for rule in rules} & self._numbers.keys()
        sums = {on: np.bincount(self._numbers[on][1], weights=x) for on in used}
        return np.array([self._fit(x, total, sums, rule) for rule in rules])

    def _fit(self, x: Floats, total: float, sums: Mapping[str, NDArray[Any]], rule: Rule) -> float:
        if rule.on in sums:
            numbers, _, counts = self._numbers[rule.on]
            admitted = rule.admits(numbers)
            raised, size = float(sums[rule.on][admitted].sum()), int(counts[admitted].sum())
        else:
            holds = self.holds(rule)
            raised, size = float(x.sum(where=holds)), int(holds.sum())
        spread = size * (1 - size / len(x)) * total
        return raised**2 / spread if spread > 0 and raised > 0 else 0.0


class RuleSets:
    """Legal prompts of the rules of one class, as bits, to find those that nearly coincide."""

    def __init__(self, catalogue: Catalogue, legal: Domain, direct: bool):
        self._legal = legal
        rules = [*(catalogue.direct if direct else catalogue.indirect).heuristics]
        for on in (RESULT,) if direct else ("op1", "op2"):
            numbers = np.unique(prompt_numbers(catalogue.prompts, on)).tolist()
            rules += [DigitPattern(on, f"{n:0{DIGITS}d}") for n in numbers if n < 10**DIGITS]
        if not direct:
            rules += both_operand_rules(catalogue.stratum)
        self.rules = list(dict.fromkeys(rules))
        self._bits = np.stack([self._packed(rule) for rule in self.rules])
        self._sizes = np.array([_count(bits) for bits in self._bits])
        self._known: dict[Rule, list[Rule]] = {}

    def _packed(self, rule: Rule) -> NDArray[np.uint8]:
        return np.packbits(self._legal.holds(rule))

    def coinciding(self, rule: Rule, others: Iterable[Rule] = ()) -> list[Rule]:
        """The rules of the class, and of the others, whose prompts have a Jaccard index ≥ COINCIDENCE with the rule's."""
        own = self._packed(rule)
        if rule not in self._known:
            size = _count(own)
            near = np.flatnonzero(np.minimum(self._sizes, size) >= COINCIDENCE * np.maximum(self._sizes, size))
            self._known[rule] = [self.rules[i] for i in near if _jaccard(self._bits[i], own) >= COINCIDENCE]
        more = (r for r in others if r not in self._known[rule] and _jaccard(self._packed(r), own) >= COINCIDENCE)
        return [r for r in (*self._known[rule], *more) if r != rule]


def _jaccard(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    return _count(a & b) / max(_count(a | b), 1)


def _count(bits: NDArray[np.uint8]) -> int:
    return int(_ONES[bits].sum())


class Naming:
    """Names neurons of one operator."""

    def __init__(self, catalogue: Catalogue):
        stratum = catalogue.stratum
        self._places = catalogue.grid_index.cpu().numpy()
        # With numbers of several tokens only legal prompts are run, so there is nothing beyond them.
        self._square = Domain(stratum.grid(catalogue.operator), ("op1", "op2")) if stratum.whole else None
        self._legal = Domain(catalogue.prompts, VARIABLES)
        self._sets = {direct: RuleSets(catalogue, self._legal, direct) for direct in (False, True)}

    def name(
        self, activations: Float[np.ndarray, "op1 op2"], logits: Floats, sign: int, matches: Sequence[Rule]
    ) -> Name:
        """Name a neuron.

        Args:
            activations: Its activation map over the operand square.
            logits: Its value vector's logit of each legal prompt's answer, in the catalogue's order.
            sign: Sign of its best match.
            matches: Its calibrated matches of that match's class and sign, the best one first.
        """
        direct, best = matches[0].direct, matches[0]
        sets, x = self._sets[direct], sign * activations.ravel().astype(np.float64)
        coinciding = sets.coinciding(best)
        rules = list(dict.fromkeys([best, *coinciding, *matches]))
        on_legal = x[self._places] * (logits if direct else 1.0)
        fits = self._legal.fits(on_legal, rules)
        kept = [i for i in np.flatnonzero(_good(fits)) if fits[i] > 0 or i <= len(coinciding)]
        if not direct and self._square is not None:
            kept = [kept[i] for i in np.flatnonzero(_good(self._square.fits(x, [rules[i] for i in kept])))]
        fitting = min((rules[i] for i in kept), key=simplicity)
        near = [fitting, *sets.coinciding(fitting, matches)]
        if not direct and self._square is not None:
            near = [near[i] for i in np.flatnonzero(_good(self._square.fits(x, near)))]
        name = min((fitting, *near), key=simplicity)
        [fit] = self._legal.fits(on_legal, [name])
        return Name(name, float(fit), sorted(sets.coinciding(name, matches), key=simplicity))


def _good(fits: Floats) -> Bools:
    """Which fits are as good as the largest."""
    largest = float(fits.max())
    return fits >= largest - min(TOLERANCE, RELATIVE_TOLERANCE * largest)

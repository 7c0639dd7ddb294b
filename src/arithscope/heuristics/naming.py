"""The rule that names a neuron: the simplest that fits, as different rules can hold for nearly the same legal prompts.

Of the quotients whose remainder modulo 11 is 1, nearly all are 1, so a neuron that fires where the result is 1 matches
`result mod 11 = 1`. Differences have op2 ≤ op1, so one that fires for two small operands matches `op1 in [0, 50]`.

1. Candidates: the neuron's calibrated matches of the class (direct or indirect) and sign of its best match, that of largest
   `neg_log10_p`; and rules of that class whose legal prompts nearly coincide with those of the best match: their Jaccard index
   |A ∩ B| / |A ∪ B| is at least 0.9. Besides the catalogue, these can be single numbers (`op1 ~ 000`) that it leaves out as
   repetitions, and ranges and congruences of both operands.
2. Fit of a candidate: R² of the map on its indicator. For indirect rules the map is A (−A for sign −1) over the whole operand
   square, legal or not, which tells `op1 in [0, 50]` from the corner of small operands; for direct rules A × L over legal
   prompts. A rule on whose prompts the map is not larger than elsewhere has fit 0.
3. The name is the simplest candidate (`simplicity`) whose fit is within 0.02 of the largest.
4. Aliases of the name: the rules of its class whose legal prompts nearly coincide with its own.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import (
    BOTH,
    DIGITS,
    LENGTHS,
    RESULT,
    Bools,
    DigitPattern,
    Identical,
    Modulo,
    MultiResult,
    Range,
    Rule,
    congruences,
    prompt_numbers,
    ranges,
)
from arithscope.prompts import operand_grid
from arithscope.stats.intervals import Floats

COINCIDENCE = 0.9  # smallest Jaccard index of rules that nearly coincide
TOLERANCE = 0.02  # of fits that count as equal
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1)  # bits set in each byte


class Name(NamedTuple):
    rule: Rule
    fit: float
    aliases: list[Rule]  # simplest first


def simplicity(rule: Rule) -> tuple[int, int, str]:
    """Sort key: simpler rules first.

    By kind: one number (`op1 ~ 000`), identical, range, congruence, pattern with free digits, set of results, range and
    congruence of both operands, other kinds. Then wider ranges, smaller divisors, fewer fixed digits, smaller sets; then text.
    """
    kind, size, both = 8, 0, rule.on == BOTH
    if isinstance(rule, DigitPattern):
        fixed = DIGITS - rule.template.count(".")
        kind, size = (0, 0) if fixed == DIGITS else (4, fixed)
    elif isinstance(rule, Identical):
        kind = 1
    elif isinstance(rule, Range):
        kind, size = 6 if both else 2, rule.low - rule.high
    elif isinstance(rule, Modulo):
        kind, size = 7 if both else 3, rule.divisor
    elif isinstance(rule, MultiResult):
        kind, size = 5, len(rule.results)
    return kind, size, str(rule)


class RuleSets:
    """Legal prompts of the rules of one class, as bits, to find those that nearly coincide."""

    def __init__(self, catalogue: Catalogue, max_operand: int, direct: bool):
        self._prompts = catalogue.prompts
        self._by_number = {
            on: np.unique(prompt_numbers(catalogue.prompts, on), return_inverse=True)
            for on in ((RESULT,) if direct else ("op1", "op2"))
        }
        rules = [*(catalogue.direct if direct else catalogue.indirect).heuristics]
        for on, (numbers, _) in self._by_number.items():
            rules += [DigitPattern(on, f"{n:0{DIGITS}d}") for n in numbers.tolist() if n < 10**DIGITS]
        if not direct:
            rules += [*ranges(BOTH, LENGTHS, max_operand), *congruences(BOTH)]
        self.rules = list(dict.fromkeys(rules))
        self._bits = np.stack([self._packed(rule) for rule in self.rules])
        self._sizes = np.array([_count(bits) for bits in self._bits])
        self._known: dict[Rule, list[Rule]] = {}

    def _packed(self, rule: Rule) -> NDArray[np.uint8]:
        if rule.on in self._by_number:
            numbers, place = self._by_number[rule.on]
            return np.packbits(rule.admits(numbers)[place])
        return np.packbits(rule.holds(self._prompts))

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

    def __init__(self, catalogue: Catalogue, max_operand: int):
        self._catalogue, self._numbers = catalogue, np.arange(max_operand + 1)
        self._grid = operand_grid(catalogue.operator, max_operand)
        self._results, self._result_index = catalogue.results.cpu().numpy(), catalogue.result_index.cpu().numpy()
        self._counts = catalogue.result_counts.cpu().numpy()
        self._sets = {direct: RuleSets(catalogue, max_operand, direct) for direct in (False, True)}
        self._on_grid: dict[Rule, Bools] = {}

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
        best, sets = matches[0], self._sets[matches[0].direct]
        candidates = list(dict.fromkeys([*matches, *sets.coinciding(best)]))
        fits = self.fits(activations, logits, sign, candidates)
        least = max(fits) - TOLERANCE
        fitting = [(simplicity(r), r, fit) for r, fit in zip(candidates, fits, strict=True) if fit >= least]
        _, name, fit = min(fitting, key=lambda entry: entry[0])
        return Name(name, fit, sorted(sets.coinciding(name, matches), key=simplicity))

    def fits(
        self, activations: Float[np.ndarray, "op1 op2"], logits: Floats, sign: int, rules: Sequence[Rule]
    ) -> list[float]:
        """R² of the map on the indicator of each rule, all of them direct or all indirect; 0 where it is not raised."""
        if rules[0].direct:
            on_prompts = activations.ravel()[self._catalogue.grid_index.cpu().numpy()]
            x = on_prompts.astype(np.float64) * logits
        else:
            x = sign * activations.astype(np.float64)
        x -= x.mean()
        total = float(np.square(x).sum())
        sums: dict[str, Floats]
        if rules[0].direct:
            sums = {RESULT: np.bincount(self._result_index, weights=x).astype(np.float64)}
        else:
            sums = {"op1": x.sum(1), "op2": x.sum(0)}
        return [self._fit(x, total, sums, rule) for rule in rules]

    def _fit(self, x: Floats, total: float, sums: dict[str, Floats], rule: Rule) -> float:
        if rule.on == RESULT:
            admitted = rule.admits(self._results)
            raised, size = float(sums[RESULT][admitted].sum()), int(self._counts[admitted].sum())
        elif rule.on in sums:
            admitted = rule.admits(self._numbers)
            raised, size = float(sums[rule.on][admitted].sum()), int(admitted.sum()) * len(self._numbers)
        else:
            if rule not in self._on_grid:
                self._on_grid[rule] = rule.holds(self._grid).reshape(x.shape)
            raised, size = float(x.sum(where=self._on_grid[rule])), int(self._on_grid[rule].sum())
        spread = size * (1 - size / x.size) * total
        return raised**2 / spread if spread > 0 and raised > 0 else 0.0

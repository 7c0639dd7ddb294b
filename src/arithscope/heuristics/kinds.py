"""Rule kinds: what a heuristic can say about a prompt, and every heuristic that is tried on the neurons of an operator.

To add a kind, subclass `Rule` as a frozen dataclass and give it a `kind`, a `__str__` that no other heuristic has, and `holds`.
Append an instance to `RULES`, one per parameter value; matching, calibration, knockouts, figures and `parse` then include it.
examples/new_heuristic.py does this in 30 lines and finds the new rule in a noisy neuron.

A heuristic has one text form, used in tables, figures and on the command line (paper App. E):

    op1 in [99, 199]      range           op1, op2 or the result lies in a closed interval
    result mod 5 = 2      modulo          … leaves this remainder
    result ~ .64          pattern         … has these digits, zero-padded to three; a dot is any digit
    op1 = op2             identical
    result in {1, 7, 8}   multi-result    the result is one of two to four numbers

Range and modulo may also constrain both operands: `op1, op2 in [0, 10]`, `op1, op2 mod 2 = 0`.
Where numbers have several tokens, there are rules about digits and carries too (digits.py).
Heuristics about the result are *direct*, all others *indirect*.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

import numpy as np

from arithscope.errors import UserError
from arithscope.heuristics.digits import Digit, digit_rules, parse_digit_rule
from arithscope.heuristics.rule import BOTH as BOTH
from arithscope.heuristics.rule import RESULT as RESULT
from arithscope.heuristics.rule import Bools as Bools
from arithscope.heuristics.rule import Ints as Ints
from arithscope.heuristics.rule import Rule as Rule
from arithscope.heuristics.rule import prompt_numbers as prompt_numbers
from arithscope.prompts import Prompts, Stratum

VARIABLES = ("op1", "op2", RESULT)
TARGETS = (*VARIABLES, BOTH)  # what a range or a congruence can be about
DIGITS = 3
NUMBER_LIMIT = 2**63  # numbers are kept as int64
LENGTHS, QUOTIENT_LENGTHS = (10, 30, 50, 100), (2, 10, 100)  # of ranges; the latter for results of a division
DIGIT_LENGTHS, DIGIT_DIVISORS = (1, 2, 4), (2, 3, 4, 5)  # for numbers of one digit
DIVISORS = (2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15)
TEMPLATES = tuple("".join(t) for t in product(".0123456789", repeat=DIGITS) if set(t) != {"."})


@dataclass(frozen=True)
class Identical(Rule):
    kind: ClassVar[str] = "identical"

    def __str__(self) -> str:
        return "op1 = op2"

    def holds(self, prompts: Prompts) -> Bools:
        return prompts.op1 == prompts.op2


RULES: list[Rule] = [Identical()]  # tried for every operator, unless they hold for none or all of its prompts


@dataclass(frozen=True)
class _NumberRule(Rule):
    on: str = field()

    def __post_init__(self) -> None:
        if self.on not in TARGETS:
            raise ValueError(f"a heuristic is about {', '.join(VARIABLES)} or both operands, not {self.on!r}")


@dataclass(frozen=True)
class Range(_NumberRule):
    low: int
    high: int
    kind: ClassVar[str] = "range"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.low <= self.high < NUMBER_LIMIT:
            raise ValueError(f"[{self.low}, {self.high}] is not a range of non-negative numbers")

    def __str__(self) -> str:
        return f"{self.on} in [{self.low}, {self.high}]"

    @property
    def variable(self) -> str:
        return f"{BOTH} in ranges" if self.on == BOTH else self.on

    def labels(self, prompts: Prompts, sharing: Sequence[Rule]) -> Ints:
        if self.on != BOTH:
            return super().labels(prompts, sharing)
        edges = np.unique([edge for h in sharing if isinstance(h, Range) for edge in (h.low, h.high + 1)])
        a, b = (np.searchsorted(edges, x, side="right") for x in (prompts.op1, prompts.op2))
        return a * (len(edges) + 1) + b

    def admits(self, numbers: Ints) -> Bools:
        return (numbers >= self.low) & (numbers <= self.high)


@dataclass(frozen=True)
class Modulo(_NumberRule):
    divisor: int
    remainder: int
    kind: ClassVar[str] = "modulo"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.remainder < self.divisor < NUMBER_LIMIT:
            raise ValueError(f"no number leaves the remainder {self.remainder} when divided by {self.divisor}")

    def __str__(self) -> str:
        return f"{self.on} mod {self.divisor} = {self.remainder}"

    @property
    def variable(self) -> str:
        return f"{BOTH} mod {self.divisor}" if self.on == BOTH else self.on

    def labels(self, prompts: Prompts, sharing: Sequence[Rule]) -> Ints:
        if self.on != BOTH:
            return super().labels(prompts, sharing)
        a, b = prompts.op1 % self.divisor, prompts.op2 % self.divisor
        return np.where(a == b, a, self.divisor)

    def admits(self, numbers: Ints) -> Bools:
        return numbers % self.divisor == self.remainder


@dataclass(frozen=True)
class DigitPattern(_NumberRule):
    template: str
    kind: ClassVar[str] = "pattern"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[0-9.]{3}", self.template) or self.template == "..." or self.on == BOTH:
            raise ValueError(f"{self.template!r} on {self.on} is not a pattern of three digits with at least one fixed")

    def __str__(self) -> str:
        return f"{self.on} ~ {self.template}"

    def admits(self, numbers: Ints) -> Bools:
        fits = (numbers >= 0) & (numbers < 10**DIGITS)
        for place, digit in enumerate(reversed(self.template)):
            if digit != ".":
                fits &= numbers // 10**place % 10 == int(digit)
        return fits


@dataclass(frozen=True)
class MultiResult(Rule):
    results: tuple[int, ...]  # ascending
    kind: ClassVar[str] = "multi-result"
    on = RESULT

    def __post_init__(self) -> None:
        object.__setattr__(self, "results", tuple(sorted(set(self.results))))
        if not 2 <= len(self.results) <= 4:
            raise ValueError(f"a multi-result heuristic has two to four results, not {self.results}")
        if not 0 <= self.results[0] <= self.results[-1] < NUMBER_LIMIT:
            raise ValueError("results must be non-negative numbers")

    def __str__(self) -> str:
        return f"result in {{{', '.join(map(str, self.results))}}}"

    def admits(self, numbers: Ints) -> Bools:
        return np.isin(numbers, self.results)


_ON, _NUMBER = r"(op1, op2|op1|op2|result)", r"(0|[1-9][0-9]{0,18})"


def parse(text: str) -> Rule:
    """Read a heuristic from its text form; the inverse of `str`.

    Raises:
        UserError: If the text is not a heuristic.
    """
    try:
        if m := re.fullmatch(rf"{_ON} in \[{_NUMBER}, {_NUMBER}\]", text):
            return Range(m[1], int(m[2]), int(m[3]))
        if m := re.fullmatch(rf"{_ON} mod {_NUMBER} = {_NUMBER}", text):
            return Modulo(m[1], int(m[2]), int(m[3]))
        if m := re.fullmatch(r"(op1|op2|result) ~ ([0-9.]{3})", text):
            return DigitPattern(m[1], m[2])
        if m := re.fullmatch(rf"result in \{{({_NUMBER}(?:, {_NUMBER}){{1,3}})\}}", text):
            return MultiResult(tuple(int(n) for n in m[1].split(", ")))
        if (digit_rule := parse_digit_rule(text)) is not None:
            return digit_rule
        for rule in RULES:
            if text == str(rule):
                return rule
        reason = "it has none of the known forms"
    except ValueError as error:
        reason = str(error)
    raise UserError(f"{text[:100]!r} is not a heuristic ({reason}); examples: 'op1 in [99, 199]', 'result mod 5 = 2'.")


def kind_name(kind: str, on: str) -> str:
    """Name of a kind for display, with what it is about unless that is always the same."""
    return f"{kind} of {on}" if kind in (Range.kind, Modulo.kind, DigitPattern.kind, Digit.kind) else kind


def all_heuristics(operator: str, max_operand: int, largest_result: int, both_operands: bool = False) -> list[Rule]:
    """Every heuristic except multi-result ones, which depend on the neuron. Some may hold for no prompt, or for all."""
    heuristics: list[Rule] = []
    for on in VARIABLES:
        lengths = QUOTIENT_LENGTHS if (operator, on) == ("/", RESULT) else LENGTHS
        heuristics += ranges(on, lengths, largest_result if on == RESULT else max_operand)
        heuristics += congruences(on)
        heuristics += [DigitPattern(on, template) for template in TEMPLATES]
    heuristics += RULES
    if both_operands:
        heuristics += [*ranges(BOTH, LENGTHS, max_operand), *congruences(BOTH)]
    return heuristics


def stratum_heuristics(operator: str, stratum: Stratum, results: Ints, both_operands: bool = False) -> list[Rule]:
    """Every heuristic of a stratum except multi-result ones: those of whole numbers (`all_heuristics`), or, where numbers have
    several tokens, the same kinds fitted to the sizes of the numbers, and rules about digits."""
    if stratum.whole:
        largest = max(stratum.op1[1], stratum.op2[1])
        return all_heuristics(operator, largest, int(results.max(initial=0)), both_operands)
    heuristics: list[Rule] = []
    for on, between in (("op1", stratum.op1), ("op2", stratum.op2)):
        heuristics += [*_ranges_and_residues(on, *between), *_patterns(on, between[1], fixed=2)]
    if len(results):
        low, high = int(results.min()), int(results.max())
        heuristics += _ranges_and_residues(RESULT, low, high, QUOTIENT_LENGTHS if operator == "/" else LENGTHS)
        single = [DigitPattern(RESULT, f"{digit:0{DIGITS}d}") for digit in range(10)]
        heuristics += single if high < 10 else _patterns(RESULT, high)
    heuristics += [*RULES, *digit_rules(operator, stratum)]
    return heuristics + (both_operand_rules(stratum) if both_operands else [])


def both_operand_rules(stratum: Stratum) -> list[Rule]:
    """Ranges and congruences that both operands satisfy."""
    low, high = min(stratum.op1[0], stratum.op2[0]), max(stratum.op1[1], stratum.op2[1])
    if stratum.whole:
        return [*ranges(BOTH, LENGTHS, high), *congruences(BOTH)]
    return _ranges_and_residues(BOTH, low, high)


def _ranges_and_residues(on: str, low: int, high: int, lengths: tuple[int, ...] = LENGTHS) -> list[Rule]:
    """Ranges and congruences of numbers from low to high.

    Of single digits, ranges of up to half of them, from every digit, and the divisors that leave no digit alone. Of more than
    three digits, lengths and steps are in units of the third digit.
    """
    if high < 10:
        short = [Range(on, at, at + length) for length in DIGIT_LENGTHS for at in range(low, high - length + 1)]
        return [*short, *congruences(on, DIGIT_DIVISORS)]
    return [*ranges(on, lengths, high, 10 ** max(len(str(high)) - DIGITS, 0)), *congruences(on)]


def _patterns(on: str, largest: int, fixed: int = 1) -> list[Rule]:
    """Patterns of numbers up to the largest, with at least so many fixed digits: a single one of an operand is a `Digit`."""
    places = min(len(str(largest)), DIGITS)
    return [
        DigitPattern(on, template)
        for template in TEMPLATES
        if set(template[: DIGITS - places]) <= {"."} and DIGITS - template.count(".") >= fixed
    ]


def ranges(on: str, lengths: tuple[int, ...], largest: int, unit: int = 1) -> Iterator[Range]:
    """Overlapping closed intervals of the given lengths that start below the largest value."""
    for length in lengths:
        for low in range(0, largest, unit * (2 if length == 2 else max(length // 3, 10))):
            yield Range(on, low, low + unit * length)


def congruences(on: str, divisors: tuple[int, ...] = DIVISORS) -> Iterator[Modulo]:
    return (Modulo(on, n, m) for n in divisors for m in range(n))

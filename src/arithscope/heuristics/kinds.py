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
Heuristics about the result are *direct*, all others *indirect*.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.prompts import Prompts

RESULT, BOTH = "result", "op1, op2"
VARIABLES = ("op1", "op2", RESULT)
TARGETS = (*VARIABLES, BOTH)  # what a range or a congruence can be about
DIGITS = 3
NUMBER_LIMIT = 2**63  # numbers are kept as int64
LENGTHS, QUOTIENT_LENGTHS = (10, 30, 50, 100), (2, 10, 100)  # of ranges; the latter for results of a division
DIVISORS = (2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15)
TEMPLATES = tuple("".join(t) for t in product(".0123456789", repeat=DIGITS) if set(t) != {"."})

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class Rule:
    """A heuristic: a rule that holds for some prompts. Base class of all kinds.

    A kind overrides `holds`, which may use both operands in any way, or sets `on` to a single number and overrides `admits`.
    """

    kind: ClassVar[str]
    on: str = BOTH

    @property
    def direct(self) -> bool:
        return self.on == RESULT

    def admits(self, numbers: Ints) -> Bools:
        """Which numbers satisfy the rule. A rule about both operands holds if both do."""
        raise NotImplementedError

    def holds(self, prompts: Prompts) -> Bools:
        """Which prompts satisfy the rule."""
        if self.on == BOTH:
            return self.admits(prompts.op1) & self.admits(prompts.op2)
        return self.admits(prompt_numbers(prompts, self.on))


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
        for rule in RULES:
            if text == str(rule):
                return rule
        reason = "it has none of the known forms"
    except ValueError as error:
        reason = str(error)
    raise UserError(f"{text[:100]!r} is not a heuristic ({reason}); examples: 'op1 in [99, 199]', 'result mod 5 = 2'.")


def kind_name(kind: str, on: str) -> str:
    """Name of a kind for display, with what it is about unless that is always the same."""
    return f"{kind} of {on}" if kind in (Range.kind, Modulo.kind, DigitPattern.kind) else kind


def prompt_numbers(prompts: Prompts, on: str) -> Ints:
    """op1, op2 or the result of every prompt."""
    return prompts.result if on == RESULT else getattr(prompts, on)


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


def ranges(on: str, lengths: tuple[int, ...], largest: int) -> Iterator[Range]:
    """Overlapping closed intervals of the given lengths that start below the largest value."""
    for length in lengths:
        for low in range(0, largest, 2 if length == 2 else max(length // 3, 10)):
            yield Range(on, low, low + length)


def congruences(on: str) -> Iterator[Modulo]:
    return (Modulo(on, n, m) for n in DIVISORS for m in range(n))

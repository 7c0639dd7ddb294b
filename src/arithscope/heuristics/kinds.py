"""The vocabulary of rules. A heuristic is a value that says which prompts it holds for, and has one text form:

    op1 in [100, 200]     range           op1, op2 or result lies in a closed interval
    result mod 5 = 2      modulo          … leaves this remainder
    result ~ .64          pattern         … has these digits, padded to three with zeros; a dot is any digit
    op1 = op2             identical
    result in {1, 7, 8}   multi-result    the result is one of two to four

Range and modulo may also be about both operands at once, written `op1, op2 in [0, 10]` and `op1, op2 mod 2 = 0`.
Heuristics about the result are *direct*, those about operands *indirect*.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.prompts import Prompts

OP1, OP2, RESULT = VARIABLES = ("op1", "op2", "result")
BOTH = "op1, op2"
PLACES = (*VARIABLES, BOTH)  # what a range or a congruence can be about
DIGITS = 3
LARGEST = 2**63  # what arrays of numbers cannot hold

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _OnNumbers:
    """A rule about one number of the prompt, or about both operands: each has to satisfy it."""

    on: str

    @property
    def direct(self) -> bool:
        return self.on == RESULT

    def __post_init__(self) -> None:
        if self.on not in PLACES:
            raise ValueError(f"a heuristic is about {', '.join(VARIABLES)} or both operands, not {self.on!r}")

    def admits(self, numbers: Ints) -> Bools:
        """Which numbers satisfy the rule."""
        raise NotImplementedError

    def holds(self, prompts: Prompts) -> Bools:
        if self.on == BOTH:
            return self.admits(prompts.op1) & self.admits(prompts.op2)
        return self.admits(numbers_of(prompts, self.on))


@dataclass(frozen=True)
class Range(_OnNumbers):
    low: int
    high: int
    kind: ClassVar[str] = "range"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.low <= self.high < LARGEST:
            raise ValueError(f"[{self.low}, {self.high}] is no range of numbers from 0 on")

    def __str__(self) -> str:
        return f"{self.on} in [{self.low}, {self.high}]"

    def admits(self, numbers: Ints) -> Bools:
        return (numbers >= self.low) & (numbers <= self.high)


@dataclass(frozen=True)
class Modulo(_OnNumbers):
    divisor: int
    remainder: int
    kind: ClassVar[str] = "modulo"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.remainder < self.divisor < LARGEST:
            raise ValueError(f"no number leaves the remainder {self.remainder} when divided by {self.divisor}")

    def __str__(self) -> str:
        return f"{self.on} mod {self.divisor} = {self.remainder}"

    def admits(self, numbers: Ints) -> Bools:
        return numbers % self.divisor == self.remainder


@dataclass(frozen=True)
class DigitPattern(_OnNumbers):
    template: str
    kind: ClassVar[str] = "pattern"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[0-9.]{3}", self.template) or self.template == "..." or self.on == BOTH:
            raise ValueError(f"{self.template!r} on {self.on} is no pattern of three digits, not all of them free")

    def __str__(self) -> str:
        return f"{self.on} ~ {self.template}"

    def admits(self, numbers: Ints) -> Bools:
        fits = (numbers >= 0) & (numbers < 10**DIGITS)
        for place, digit in enumerate(reversed(self.template)):
            if digit != ".":
                fits &= numbers // 10**place % 10 == int(digit)
        return fits


class Rule:
    """A rule of a kind of its own, one of `RULES`: a frozen dataclass with a kind, a text (`str`) that no other heuristic
    has, and `holds`. It is about both operands together, or about what `on` says and nothing else."""

    kind: ClassVar[str]
    on: ClassVar[str] = BOTH

    @property
    def direct(self) -> bool:
        return self.on == RESULT

    def holds(self, prompts: Prompts) -> Bools:
        raise NotImplementedError


@dataclass(frozen=True)
class Identical(Rule):
    kind: ClassVar[str] = "identical"

    def __str__(self) -> str:
        return "op1 = op2"

    def holds(self, prompts: Prompts) -> Bools:
        return prompts.op1 == prompts.op2


@dataclass(frozen=True)
class MultiResult:
    results: tuple[int, ...]  # in ascending order
    kind: ClassVar[str] = "multi-result"
    on: ClassVar[str] = RESULT
    direct: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "results", tuple(sorted(set(self.results))))
        if not 2 <= len(self.results) <= 4:
            raise ValueError(f"a multi-result heuristic has two to four results, not {self.results}")
        if not 0 <= self.results[0] <= self.results[-1] < LARGEST:
            raise ValueError("a result is a number from 0 on")

    def __str__(self) -> str:
        return f"result in {{{', '.join(map(str, self.results))}}}"

    def admits(self, numbers: Ints) -> Bools:
        return np.isin(numbers, self.results)

    def holds(self, prompts: Prompts) -> Bools:
        return self.admits(prompts.answer)


Heuristic = Range | Modulo | DigitPattern | MultiResult | Rule
RULES: list[Rule] = [Identical()]  # tried on the neurons of every operator that they say something of


def kind_name(kind: str, on: str) -> str:
    """A kind of heuristic with what it is about, unless that goes without saying."""
    return f"{kind} of {on}" if kind in (Range.kind, Modulo.kind, DigitPattern.kind) else kind


_PLACE, _NUMBER = r"(op1, op2|op1|op2|result)", r"(0|[1-9][0-9]{0,18})"


def parse(text: str) -> Heuristic:
    """The heuristic that is written so; the opposite of `str`."""
    try:
        if (found := _parsed(text)) is not None:
            return found
        reason = "it is none of the forms that there are"
    except ValueError as error:
        reason = str(error)
    raise UserError(
        f"{text[:100]!r} is not a heuristic ({reason}); examples are 'op1 in [100, 200]' and 'result mod 5 = 2'."
    )


def _parsed(text: str) -> Heuristic | None:
    if found := re.fullmatch(rf"{_PLACE} in \[{_NUMBER}, {_NUMBER}\]", text):
        return Range(found[1], int(found[2]), int(found[3]))
    if found := re.fullmatch(rf"{_PLACE} mod {_NUMBER} = {_NUMBER}", text):
        return Modulo(found[1], int(found[2]), int(found[3]))
    if found := re.fullmatch(r"(op1|op2|result) ~ ([0-9.]{3})", text):
        return DigitPattern(found[1], found[2])
    if found := re.fullmatch(rf"result in \{{({_NUMBER}(?:, {_NUMBER}){{1,3}})\}}", text):
        return MultiResult(tuple(int(n) for n in found[1].split(", ")))
    return next((rule for rule in RULES if text == str(rule)), None)


def numbers_of(prompts: Prompts, on: str) -> Ints:
    return prompts.answer if on == RESULT else getattr(prompts, on)

"""Rules about digits and carries, which are tried where numbers have several tokens.

    op1 tens = 4                    digit              of op1, op2 or the whole answer
    tens of op1, op2 = 4, 3         digit pair         a cell of the addition table
    tens of op1 + op2 mod 10 = 7    digit sum          of two digits, without the carry
    tens of op1 - op2 mod 10 = 7    digit difference   … without the borrow
    carry into tens = 1             carry              from the places below, 1 or 0
    borrow into tens = 0            borrow

A place that a number does not have holds the digit 0. All these rules are *indirect*; a digit of the token that is asked for is
a rule about the result (kinds.py), and direct.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from arithscope.heuristics.rule import ANSWER, Bools, Ints, Rule
from arithscope.prompts import Place, Prompts, Stratum, power_name

NUMBERS_WITH_DIGITS = ("op1", "op2", ANSWER)
PLACES = {power_name(exponent): exponent for exponent in range(19)}  # of numbers kept as int64


def digit_of(numbers: Ints, place: int) -> Ints:
    """The digit at 10**place."""
    return Place(place, place + 1).of(numbers)


@dataclass(frozen=True)
class Digit(Rule):
    on: str = field()
    place: int
    digit: int
    kind: ClassVar[str] = "digit"

    def __post_init__(self) -> None:
        if self.on not in NUMBERS_WITH_DIGITS:
            raise ValueError(f"digits are those of {', '.join(NUMBERS_WITH_DIGITS)}, not of {self.on!r}")
        _check(self.place, self.digit)

    @property
    def variable(self) -> str:
        return f"{self.on} {power_name(self.place)}"

    def __str__(self) -> str:
        return f"{self.variable} = {self.digit}"

    def admits(self, numbers: Ints) -> Bools:
        return (numbers >= 0) & (digit_of(numbers, self.place) == self.digit)


@dataclass(frozen=True)
class DigitPair(Rule):
    place: int
    first: int
    second: int
    kind: ClassVar[str] = "digit pair"

    def __post_init__(self) -> None:
        _check(self.place, self.first)
        _check(self.place, self.second)

    @property
    def variable(self) -> str:
        return f"{power_name(self.place)} of op1, op2"

    def __str__(self) -> str:
        return f"{self.variable} = {self.first}, {self.second}"

    def holds(self, prompts: Prompts) -> Bools:
        first, second = (digit_of(x, self.place) for x in (prompts.op1, prompts.op2))
        return (first == self.first) & (second == self.second)


@dataclass(frozen=True)
class PlaceRule(Rule):
    """What written addition or subtraction computes at a place."""

    place: int
    value: int
    form: ClassVar[str]  # the variable, with the place left out
    values: ClassVar[range] = range(10)
    lowest: ClassVar[int] = 0  # place

    def __post_init__(self) -> None:
        _check(self.place, self.value)
        if self.value not in self.values or self.place < self.lowest:
            raise ValueError(f"{self} can never hold")

    @property
    def variable(self) -> str:
        return self.form.format(power_name(self.place))

    def __str__(self) -> str:
        return f"{self.variable} = {self.value}"

    def computed(self, prompts: Prompts) -> Ints:
        """What is computed for each prompt."""
        raise NotImplementedError

    def holds(self, prompts: Prompts) -> Bools:
        return self.computed(prompts) == self.value


@dataclass(frozen=True)
class DigitSum(PlaceRule):
    kind: ClassVar[str] = "digit sum"
    form: ClassVar[str] = "{} of op1 + op2 mod 10"

    def computed(self, prompts: Prompts) -> Ints:
        return (digit_of(prompts.op1, self.place) + digit_of(prompts.op2, self.place)) % 10


@dataclass(frozen=True)
class DigitDifference(PlaceRule):
    kind: ClassVar[str] = "digit difference"
    form: ClassVar[str] = "{} of op1 - op2 mod 10"

    def computed(self, prompts: Prompts) -> Ints:
        return (digit_of(prompts.op1, self.place) - digit_of(prompts.op2, self.place)) % 10


@dataclass(frozen=True)
class Carry(PlaceRule):
    kind: ClassVar[str] = "carry"
    form: ClassVar[str] = "carry into {}"
    values: ClassVar[range] = range(2)
    lowest: ClassVar[int] = 1

    def computed(self, prompts: Prompts) -> Ints:
        below = 10**self.place
        return (prompts.op1 % below + prompts.op2 % below) // below


@dataclass(frozen=True)
class Borrow(PlaceRule):
    kind: ClassVar[str] = "borrow"
    form: ClassVar[str] = "borrow into {}"
    values: ClassVar[range] = range(2)
    lowest: ClassVar[int] = 1

    def computed(self, prompts: Prompts) -> Ints:
        below = 10**self.place
        return (prompts.op1 % below < prompts.op2 % below).astype(prompts.op1.dtype)


# By operator, the digit and the carry of written calculation. Products have none: a carry depends on how the partial products
# are added up, so there is no one carry to look for.
WRITTEN: dict[str, tuple[type[PlaceRule], type[PlaceRule]]] = {"+": (DigitSum, Carry), "-": (DigitDifference, Borrow)}


def _check(place: int, digit: int) -> None:
    if not (0 <= place < len(PLACES) and 0 <= digit <= 9):
        raise ValueError(f"{digit} at 10^{place} is not a digit at a place of a number")


def parse_digit_rule(text: str) -> Rule | None:
    """Read a rule about digits from its text form, if it is one; the inverse of `str`."""
    place, digit = f"({'|'.join(map(re.escape, PLACES))})", "([0-9])"
    if m := re.fullmatch(rf"(op1|op2|answer) {place} = {digit}", text):
        return Digit(m[1], PLACES[m[2]], int(m[3]))
    if m := re.fullmatch(rf"{place} of op1, op2 = {digit}, {digit}", text):
        return DigitPair(PLACES[m[1]], int(m[2]), int(m[3]))
    for pair in WRITTEN.values():
        for kind in pair:
            before, after = map(re.escape, kind.form.split("{}"))
            if m := re.fullmatch(rf"{before}{place}{after} = {digit}", text):
                return kind(PLACES[m[1]], int(m[2]))
    return None


def digit_rules(operator: str, stratum: Stratum) -> Iterator[Rule]:
    """Every rule about digits of a stratum's numbers. Some may hold for no prompt, or for all.

    Left out is what another rule already says: digits of the token that is asked for, which direct rules are about; the sum or
    difference of the units, which is the answer's units digit; and what is about both operands where only one has a digit.
    """
    for on, places in _places(stratum).items():
        yield from (Digit(on, place, digit) for place in places for digit in range(10))
    digits = [_digits(last) for _, last in (stratum.op1, stratum.op2)]
    shared = range(min(digits))
    yield from (DigitPair(place, a, b) for place in shared for a in range(10) for b in range(10))
    if operator in WRITTEN:
        in_place, across = WRITTEN[operator]
        yield from (in_place(place, digit) for place in shared[1:] for digit in in_place.values)
        yield from (across(place, carry) for place in range(1, max(digits) + 1) for carry in across.values)


def _places(stratum: Stratum) -> dict[str, list[int]]:
    """Places of the operands, and those of the answer that are not in the token asked for."""
    low, high = stratum.asked.low, stratum.asked.high
    op1, op2, answer = (range(_digits(last)) for _, last in (stratum.op1, stratum.op2, stratum.answers))
    others = [place for place in answer if place < low or (high is not None and place >= high)]
    return {"op1": list(op1), "op2": list(op2), ANSWER: others}


def _digits(number: int) -> int:
    return len(str(number))

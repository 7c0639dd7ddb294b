"""Written addition and subtraction, column by column from strings of digits, and what rules about digits state."""

from __future__ import annotations

import re
from collections.abc import Callable

PLACES = (
    "units", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands", "millions",
    *(f"10^{exponent}" for exponent in range(7, 19)),
)  # fmt: skip
_PLACE = f"({'|'.join(map(re.escape, PLACES))})"
Holds = Callable[[int, int, int], bool]  # of op1, op2 and the whole answer


def digit(number: int, place: int) -> int:
    """The digit at 10**place, 0 beyond the highest one."""
    text = str(number)[::-1]
    return int(text[place]) if place < len(text) else 0


def carries(a: int, b: int) -> list[int]:
    """The carry into every place, when a and b are added in columns; none into the units."""
    written = [0]
    for place in range(len(PLACES)):
        column = digit(a, place) + digit(b, place) + written[-1]
        written.append(1 if column > 9 else 0)
    return written


def borrows(a: int, b: int) -> list[int]:
    """The borrow into every place, when b is subtracted from a in columns."""
    written = [0]
    for place in range(len(PLACES)):
        column = digit(a, place) - digit(b, place) - written[-1]
        written.append(1 if column < 0 else 0)
    return written


def rule(text: str) -> Holds | None:
    """What a rule about digits states, or None if the text is none."""
    if found := re.fullmatch(rf"(op1|op2|answer) {_PLACE} = (\d)", text):
        which, place, wanted = ("op1", "op2", "answer").index(found[1]), PLACES.index(found[2]), int(found[3])
        return lambda *numbers: digit(numbers[which], place) == wanted
    if found := re.fullmatch(rf"{_PLACE} of op1, op2 = (\d), (\d)", text):
        place, pair = PLACES.index(found[1]), (int(found[2]), int(found[3]))
        return lambda a, b, answer: (digit(a, place), digit(b, place)) == pair
    if found := re.fullmatch(rf"{_PLACE} of op1 ([+-]) op2 mod 10 = (\d)", text):
        place, sign, wanted = PLACES.index(found[1]), {"+": 1, "-": -1}[found[2]], int(found[3])
        return lambda a, b, answer: (10 + digit(a, place) + sign * digit(b, place)) % 10 == wanted
    if found := re.fullmatch(rf"(carry|borrow) into {_PLACE} = (\d)", text):
        written, place, wanted = {"carry": carries, "borrow": borrows}[found[1]], PLACES.index(found[2]), int(found[3])
        return lambda a, b, answer: written(a, b)[place] == wanted
    return None

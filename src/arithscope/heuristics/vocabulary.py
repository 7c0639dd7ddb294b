"""All heuristics that are tried on the neurons of one operator, with their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, product, takewhile

from arithscope.heuristics.kinds import BOTH, DIGITS, OP1, OP2, RESULT, RULES, DigitPattern, Heuristic, Modulo, Range

LENGTHS, QUOTIENT_LENGTHS = (10, 30, 50, 100), (2, 10, 100)  # of ranges; the latter for results of a division
DIVISORS = (2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15)
TEMPLATES = tuple("".join(t) for t in product(".0123456789", repeat=DIGITS) if set(t) != {"."})


def vocabulary(operator: str, max_operand: int, largest_result: int, both_operands: bool = False) -> list[Heuristic]:
    """Every heuristic but the multi-result ones, which depend on the neuron. Some may hold for no prompt, or for all."""
    found: list[Heuristic] = []
    for on in (OP1, OP2, RESULT):
        lengths = QUOTIENT_LENGTHS if (operator, on) == ("/", RESULT) else LENGTHS
        found += ranges(on, lengths, largest_result if on == RESULT else max_operand)
        found += congruences(on)
        found += [DigitPattern(on, template) for template in TEMPLATES]
    found += RULES
    if both_operands:
        found += [*ranges(BOTH, LENGTHS, max_operand), *congruences(BOTH)]
    return found


def ranges(on: str, lengths: tuple[int, ...], largest: int) -> Iterator[Range]:
    """Closed intervals of these lengths; their beginnings overlap, and stay below the largest value there is."""
    for length in lengths:
        step = 2 if length == 2 else max(length // 3, 10)
        for low in takewhile(lambda low: low < largest, count(0, step)):
            yield Range(on, low, low + length)


def congruences(on: str) -> Iterator[Modulo]:
    return (Modulo(on, n, m) for n in DIVISORS for m in range(n))

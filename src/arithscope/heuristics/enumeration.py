"""Every heuristic that is tried on the neurons of an operator, with the parameters of the paper's App. E."""

from collections.abc import Iterator
from itertools import product

from arithscope.heuristics.kinds import BOTH, DIGITS, RESULT, RULES, VARIABLES, DigitPattern, Modulo, Range, Rule

LENGTHS, QUOTIENT_LENGTHS = (10, 30, 50, 100), (2, 10, 100)  # of ranges; the latter for results of a division
DIVISORS = (2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15)
TEMPLATES = tuple("".join(t) for t in product(".0123456789", repeat=DIGITS) if set(t) != {"."})


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

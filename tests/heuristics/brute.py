"""Matching, slow and obvious: Python sets, one neuron and one heuristic at a time, each rule written out again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations
from math import comb, fsum, log10

from tests.heuristics import schoolbook

Prompt = tuple[int, int]


def answer(operator: str, a: int, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else -1}[operator]


def legal(operator: str, max_operand: int, limit: int) -> list[Prompt]:
    numbers = range(max_operand + 1)
    return [
        (a, b)
        for a in numbers
        for b in numbers
        if not (operator == "/" and b == 0) and 0 <= answer(operator, a, b) < limit
    ]


def rule(text: str) -> Callable[[int, int, int], bool]:
    """The rule that a heuristic's text states about op1, op2 and the result, where that is the whole answer."""
    if (about_digits := schoolbook.rule(text)) is not None:
        return about_digits
    if text == "op1 = op2":
        return lambda a, b, r: a == b
    if text.startswith("op1, op2 "):
        one, two = (rule(text.replace("op1, op2", on)) for on in ("op1", "op2"))
        return lambda a, b, r: one(a, b, r) and two(a, b, r)
    on, rest = text.split(" ", 1)
    place = ("op1", "op2", "result").index(on)
    if found := re.fullmatch(r"in \[(\d+), (\d+)\]", rest):
        low, high = int(found[1]), int(found[2])
        return lambda *numbers: low <= numbers[place] <= high
    if found := re.fullmatch(r"mod (\d+) = (\d+)", rest):
        n, m = int(found[1]), int(found[2])
        return lambda *numbers: numbers[place] % n == m
    if found := re.fullmatch(r"~ (...)", rest):
        expression = re.compile(found[1])
        return lambda *numbers: expression.fullmatch(f"{numbers[place]:03d}") is not None
    if found := re.fullmatch(r"in \{(.*)\}", rest):
        results = [int(x) for x in found[1].split(", ")]
        return lambda *numbers: numbers[place] in results
    raise AssertionError(text)


def members(text: str, operator: str, prompts: Sequence[Prompt]) -> set[Prompt]:
    holds = rule(text)
    return {p for p in prompts if holds(*p, answer(operator, *p))}


def top(values: dict[Prompt, float], k: int, tie_order: dict[Prompt, int]) -> set[Prompt]:
    return set(sorted(values, key=lambda p: (-values[p], tie_order[p]))[:k])


def overlap(text: str, operator: str, values: dict[Prompt, float], tie_order: dict[Prompt, int]) -> tuple[int, int]:
    """|H ∩ top-k| and k."""
    set_ = members(text, operator, list(values))
    return len(set_ & top(values, len(set_), tie_order)), len(set_)


def mean(text: str, operator: str, values: dict[Prompt, float]) -> float:
    """Mean over the prompts for which a heuristic holds."""
    set_ = members(text, operator, list(values))
    return fsum(values[p] for p in set_) / len(set_)


def tail(total: int, k: int, x: int) -> Fraction:
    """P(X ≥ x), exactly."""
    ways = sum(comb(k, i) * comb(total - k, k - i) for i in range(x, k + 1))
    return Fraction(ways, comb(total, k))


def neg_log10_tail(total: int, k: int, x: int) -> float:
    p = tail(total, k, x)
    return log10(p.denominator) - log10(p.numerator)


def smallest_accounting_set(results: Sequence[int], everything: Sequence[int]) -> tuple[int, ...] | None:
    """The smallest set that contains at least 95 % of the results, by trying all sets of up to four. Ties go to the set that
    contains more results, then to the one with smaller results."""
    for size in range(1, 5):
        candidates = []
        for chosen in combinations(sorted(set(everything)), size):
            covered = sum(r in chosen for r in results)
            if 100 * covered >= 95 * len(results):
                candidates.append((-covered, chosen))
        if candidates:
            return min(candidates)[1]
    return None

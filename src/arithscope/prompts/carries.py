"""Carries of column arithmetic, and counterfactuals that differ in a carry or in a digit.

The *carry into* a place is what the digits below it hand up: for `+` whether their sum is too large for them, for `-` (where it
is a borrow) whether those of op2 are larger than those of op1. Other operators have no such carries.

A counterfactual is searched among all prompts of the stratum whose operands differ from the prompt's in a given number of
digits, and drawn uniformly from those that fit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from arithscope.prompts.stratum import Stratum
from arithscope.prompts.table import Ints, Prompts
from arithscope.prompts.template import OPERATORS

MOST_CHANGED = 3  # digits in which a carry counterfactual may differ; two suffice where both operands are equally long
_TRIED = 2**20  # candidates tried at a time

Bools = NDArray[np.bool_]
Digit = tuple[str, int]  # `op1` or `op2`, and the exponent of the digit's place
Fits = Callable[[Prompts, Prompts], Bools]  # whether candidates are what is wanted for the prompts beside them


def carry_into(prompts: Prompts, exponent: int) -> Ints:
    """The carry (for `-` the borrow) into a place of the answer, 0 or 1 for each prompt.

    Args:
        prompts: Prompts with `+` or `-`.
        exponent: Exponent of the place: 0 for units, into which nothing is carried, 1 for tens.

    Raises:
        ValueError: If a prompt has another operator.

    Example:
        >>> carry_into(Prompts([45, 45], [0, 1], [78, 38]), 1)  # 45+78 carries, 45-38 borrows
        array([1, 1])
    """
    op1, op2 = prompts.op1 % 10**exponent, prompts.op2 % 10**exponent
    return np.where(_adds(prompts), op1 + op2 >= 10**exponent, op1 < op2).astype(np.int64)


def chain_length(prompts: Prompts) -> Ints:
    """How far a carry travels: the largest number of consecutive places that one carry goes into, 0 without any carry.

    A carry that arises at one place goes into the next. It goes on into the one after that if the digits there hand it up only
    because it has come: if their sum is 9, or for `-` their difference 0.

    Raises:
        ValueError: If a prompt has another operator than `+` and `-`.

    Example:
        >>> chain_length(Prompts([44, 45, 995, 87], [0, 0, 0, 0], [33, 48, 7, 68]))  # in 87+68, each place makes its own carry
        array([0, 1, 3, 1])
    """
    adds = _adds(prompts)
    largest = int(max(prompts.op1.max(initial=0), prompts.op2.max(initial=0)))
    length = longest = np.zeros(len(prompts), dtype=np.int64)
    for exponent in range(len(str(largest))):
        op1, op2 = (number // 10**exponent % 10 for number in (prompts.op1, prompts.op2))
        passes = np.where(adds, op1 + op2 == 9, op1 == op2)
        length = np.where(carry_into(prompts, exponent + 1), np.where(passes, length + 1, 1), 0)
        longest = np.maximum(longest, length)
    return longest


def carry_counterfactuals(prompts: Prompts, stratum: Stratum, random: np.random.Generator) -> tuple[Prompts, Bools]:
    """For each prompt, draw one that differs in the carry into the place that is asked for, and in nothing above it.

    Its operands have the same digits at that place and above, so the token asked for differs by exactly one (modulo its number
    of values). Below that place as few digits as possible differ, at most MOST_CHANGED. It belongs to the stratum, and the
    answer's earlier tokens, which the model is given, are the same.

    Args:
        prompts: Prompts of the stratum, with `+` or `-`.
        stratum: Says which operands and answers are allowed, and what is asked for.
        random: Source of the draws.

    Returns:
        The counterfactuals, and the mask of the prompts that have one; as many as the mask selects, in the same order.

    Raises:
        ValueError: If a prompt has another operator.
    """
    low = stratum.asked.low

    def fits(prompts: Prompts, candidates: Prompts) -> Bools:
        differs = carry_into(candidates, low) != carry_into(prompts, low)
        return differs & _same_above(stratum, prompts, candidates)

    digits = _digits(stratum, low)
    tries = dict.fromkeys(range(1, min(MOST_CHANGED, len(digits)) + 1), _all(prompts))
    return _drawn(prompts, stratum, digits, tries, fits, random)


def same_carry_controls(
    prompts: Prompts, counterfactuals: Prompts, stratum: Stratum, random: np.random.Generator
) -> tuple[Prompts, Bools]:
    """For each prompt and its carry counterfactual, draw a control: as many digits differ, all below the place that is asked
    for, but the carry into it is the same, and with it the token asked for and all tokens before.

    Args:
        prompts: The prompts that have a carry counterfactual.
        counterfactuals: Theirs, from `carry_counterfactuals`.
        stratum: The stratum of both.
        random: Source of the draws.

    Returns:
        The controls, and the mask of the prompts that have one; as many as the mask selects, in the same order.
    """
    low = stratum.asked.low

    def fits(prompts: Prompts, candidates: Prompts) -> Bools:
        return carry_into(candidates, low) == carry_into(prompts, low)

    wanted = changed_digits(prompts, counterfactuals)
    tries = {count: wanted == count for count in np.unique(wanted).tolist()}
    return _drawn(prompts, stratum, _digits(stratum, low), tries, fits, random)


def digit_counterfactuals(prompts: Prompts, stratum: Stratum, random: np.random.Generator) -> tuple[Prompts, Bools]:
    """For each prompt, draw one that differs in one digit of one operand, and whose answer differs only in the token asked for.

    Args:
        prompts: Prompts of the stratum, with any operator.
        stratum: Says which operands and answers are allowed, and what is asked for.
        random: Source of the draws.

    Returns:
        The counterfactuals, and the mask of the prompts that have one; as many as the mask selects, in the same order.
    """
    low = stratum.asked.low

    def fits(prompts: Prompts, candidates: Prompts) -> Bools:
        same_below = candidates.answer % 10**low == prompts.answer % 10**low
        return (candidates.result != prompts.result) & same_below & _same_above(stratum, prompts, candidates)

    digits = _digits(stratum, len(str(max(stratum.op1[1], stratum.op2[1]))))
    return _drawn(prompts, stratum, digits, {1: _all(prompts)}, fits, random)


def changed_digits(prompts: Prompts, others: Prompts) -> Ints:
    """Number of digits in which the operands of two prompts of each row differ."""
    pairs = (prompts.op1, others.op1), (prompts.op2, others.op2)
    largest = int(max(np.max(numbers, initial=0) for pair in pairs for numbers in pair))
    powers = [10**exponent for exponent in range(len(str(largest)))]
    return np.sum([a // p % 10 != b // p % 10 for a, b in pairs for p in powers], axis=0)


def _adds(prompts: Prompts) -> Bools:
    """Which prompts have `+`; all others must have `-`."""
    adds, subtracts = (prompts.operator == OPERATORS.index(sign) for sign in "+-")
    if not (adds | subtracts).all():
        raise ValueError("only + and - have carries")
    return adds


def _digits(stratum: Stratum, below: int) -> list[Digit]:
    """The operands' digits below a place, as far as numbers of the stratum have them."""
    ranges = ("op1", stratum.op1), ("op2", stratum.op2)
    return [(name, e) for name, (_, largest) in ranges for e in range(below) if 10**e <= largest]


def _same_above(stratum: Stratum, prompts: Prompts, candidates: Prompts) -> Bools:
    """Whether the answers' tokens before the one asked for are the same."""
    high = stratum.asked.high
    if high is None:  # there are none
        return _all(prompts)
    return candidates.answer // 10**high == prompts.answer // 10**high


def _all(prompts: Prompts) -> Bools:
    return np.ones(len(prompts), dtype=np.bool_)


def _drawn(
    prompts: Prompts,
    stratum: Stratum,
    digits: Sequence[Digit],
    tries: Mapping[int, Bools],
    fits: Fits,
    random: np.random.Generator,
) -> tuple[Prompts, Bools]:
    """Draw for each prompt a legal candidate that fits. `tries` are the numbers of digits to change, in order, each with the
    prompts to try it for. Returns what was drawn, and the mask of the prompts for which there was something to draw."""
    op1, op2 = prompts.op1.copy(), prompts.op2.copy()
    found = ~_all(prompts)
    for count, tried in tries.items():
        steps = _steps(len(digits), count)
        for rows in _blocks(np.flatnonzero(tried & ~found), len(steps)):
            repeated = replace(prompts[np.repeat(rows, len(steps))], asked=stratum.asked)
            candidates = _changed(repeated, digits, np.tile(steps, (len(rows), 1)))
            fit = (stratum.legal(candidates) & fits(repeated, candidates)).reshape(len(rows), len(steps))
            has = fit.any(1)
            nth = random.integers(0, np.maximum(fit.sum(1), 1))
            chosen = (np.arange(len(rows)) * len(steps) + (fit.cumsum(1) > nth[:, None]).argmax(1))[has]
            op1[rows[has]], op2[rows[has]], found[rows[has]] = candidates.op1[chosen], candidates.op2[chosen], True
    return Prompts(op1, prompts.operator, op2, stratum.asked)[found], found


def _steps(digits: int, count: int) -> Ints:
    """Every way to change exactly `count` of some digits: what is added to each, modulo 10, [ways, digits]."""
    ways = [
        dict(zip(which, steps, strict=True))
        for which in combinations(range(digits), count)
        for steps in product(range(1, 10), repeat=count)
    ]
    return np.array([[way.get(i, 0) for i in range(digits)] for way in ways], dtype=np.int64).reshape(-1, digits)


def _changed(prompts: Prompts, digits: Sequence[Digit], steps: Ints) -> Prompts:
    """Prompts with steps [prompts, digits] added to their digits, modulo 10."""
    operands = {"op1": prompts.op1.copy(), "op2": prompts.op2.copy()}
    for (name, exponent), step in zip(digits, steps.T, strict=True):
        old = getattr(prompts, name) // 10**exponent % 10
        operands[name] += ((old + step) % 10 - old) * 10**exponent
    return Prompts(operands["op1"], prompts.operator, operands["op2"], prompts.asked)


def _blocks(rows: Ints, candidates: int) -> Iterator[Ints]:
    size = max(1, _TRIED // max(1, candidates))
    return (rows[start : start + size] for start in range(0, len(rows), size))

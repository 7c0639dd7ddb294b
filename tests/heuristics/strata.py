"""Strata of numbers with several tokens, neurons to match in them, and what rules state there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import Rule
from arithscope.heuristics.neuron_matching import NeuronBatch
from arithscope.prompts import Layout, Stratum
from tests.heuristics import brute, schoolbook

TWO = (1, 0)  # a token a digit
SUMS = Stratum((10, 99), (10, 99), (100, 198), Layout(TWO, TWO, (2, 1, 0)), step=2)
DIFFERENCES = Stratum((10, 99), (10, 99), (10, 89), Layout(TWO, TWO, TWO), step=1)
MANY_PRODUCTS = Stratum((10, 99), (10, 99), (1000, 9801), Layout(TWO, TWO, (3, 2, 1, 0)), step=3)
PRODUCTS = Stratum((10, 99), (2, 9), (100, 891), Layout(TWO, (0,), (2, 1, 0)), step=2)
QUOTIENTS = Stratum((100, 299), (2, 9), (10, 99), Layout((2, 1, 0), (0,), TWO), step=1)
GROUPED = Stratum(
    (990, 1020), (5, 30), (995, 1050), Layout((0,), (0,), (3, 0)), step=2
)  # asks for the last three digits
STRATA = {"+": SUMS, "-": DIFFERENCES, "*": PRODUCTS, "/": QUOTIENTS}


def small(operator: str) -> Stratum:
    """Few prompts of the operator's layout."""
    whole = STRATA[operator]
    op1, op2 = {
        "+": ((15, 40), (66, 93)),
        "-": ((50, 75), (11, 34)),
        "*": ((40, 70), (3, 8)),
        "/": ((120, 170), (3, 8)),
    }[operator]
    return Stratum(op1, op2, whole.answers, whole.layout, whole.step)


def members(text: str, operator: str, stratum: Stratum, prompts: Sequence[brute.Prompt]) -> set[brute.Prompt]:
    """Prompts for which a rule holds: by written calculation, or by the digits of the answer that are asked for."""
    about_digits, other = schoolbook.rule(text), brute.rule(text)
    if about_digits is not None:
        return {(a, b) for a, b in prompts if about_digits(a, b, brute.answer(operator, a, b))}
    return {(a, b) for a, b in prompts if other(a, b, asked(stratum, brute.answer(operator, a, b)))}


def asked(stratum: Stratum, answer: int) -> int:
    """The token of the answer that is asked for, cut out of the written answer."""
    places, step = stratum.tokens.answer, stratum.step
    written = f"{answer:0{places[0] + 1}d}"
    start = 0 if step == 1 else len(written) - places[step - 2]
    return int(written[start : len(written) - places[step - 1]])


def noise(n: int, stratum: Stratum, logits: NDArray[np.float32], seed: int = 0, gated: bool = False) -> NeuronBatch:
    """Random activations, with the given value vectors."""
    random = np.random.default_rng(seed)
    activations = random.standard_normal((n, *stratum.shape), dtype=np.float32).astype(np.float16)
    return NeuronBatch(activations, logits[:n, : stratum.limit], gated)


def planted(sets: Catalogue, rules: Sequence[Rule], strength: float, seed: int = 0) -> NeuronBatch:
    """Unit noise, raised where a rule holds; for a direct one, value vectors that promote its results."""
    random, stratum = np.random.default_rng(seed), sets.stratum
    everything = stratum.grid(sets.operator)
    maps = [strength * rule.holds(everything) + random.standard_normal(len(everything)) for rule in rules]
    # Promoted results are promoted alike: otherwise some of them alone could fit better.
    logits = 0.3 * random.standard_normal((len(rules), stratum.limit))
    for own, rule in zip(logits, rules, strict=True):
        if rule.direct:
            own += strength * rule.admits(np.arange(stratum.limit))
    activations = np.stack(maps).reshape(len(rules), *stratum.shape)
    return NeuronBatch(activations.astype(np.float16), logits.astype(np.float32))

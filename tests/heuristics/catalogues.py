"""Catalogues of all operators, and activation maps to match with them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from arithscope.heuristics.catalogue import Catalogue, catalogue
from arithscope.prompts import OPERATORS
from tests.heuristics import brute

MAX_OPERAND = 23  # cuts off ranges and digit patterns
LIMITS = {"+": 43, "-": 130, "*": 130, "/": 130}  # some sums and products are illegal; some have three digits
CATALOGUES = {o: catalogue(o, MAX_OPERAND, limit, both_operands=True) for o, limit in LIMITS.items()}
SMALL = catalogue("/", 11, 1000)  # results 0…11: few enough to try all sets of up to four
operators = pytest.mark.parametrize("operator", OPERATORS)


def pairs_of(sets: Catalogue) -> list[brute.Prompt]:
    return list(zip(sets.prompts.op1.tolist(), sets.prompts.op2.tolist(), strict=True))


def activation_maps() -> NDArray[np.float16]:
    """Random; with few values, so that nearly all prompts are tied; mostly zero; constant; and three rules with noise."""
    random = np.random.default_rng(0)
    size = (MAX_OPERAND + 1, MAX_OPERAND + 1)
    noise = random.standard_normal(size)
    a, b = np.indices(size)
    rows = [noise, random.integers(-1, 2, size), np.maximum(noise - 1, 0), np.zeros(size), (a % 5 == 2) + noise / 4]
    return np.stack([*rows, noise / 4 - ((b >= 10) & (b <= 20)), (a == b) * 2 + noise / 4]).astype(np.float16)

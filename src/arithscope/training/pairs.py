"""Which pairs of operands training sees, and the digits and carries by which they are told apart."""

import numpy as np

from arithscope.prompts import Ints, Prompts, legal_prompts, random_source
from arithscope.training.recipe import DataRecipe


def split_pairs(data: DataRecipe, seed: int) -> dict[str, tuple[Prompts, Prompts]]:
    """For each operator, a random split of its legal prompts into (seen, unseen); training never uses the unseen ones."""
    pairs = {}
    for operator, shares in data.seen.items():
        prompts = legal_prompts(operator, data.max_operand, data.numbers)
        prompts = prompts[random_source(seed, "seen pairs", operator).permutation(len(prompts))]
        if isinstance(shares, list):
            length = np.maximum(digits(prompts.op1), digits(prompts.op2)) - 1
        else:
            length, shares = np.zeros(len(prompts), dtype=np.int64), [shares]
        cuts = [round(share * n) for share, n in zip(shares, np.bincount(length, minlength=len(shares)), strict=True)]
        allowed = prompts.answer <= data.largest.get(operator, data.numbers)
        if data.chains < 1 and operator in "+-":
            chained = np.flatnonzero(longest_chain(operator, prompts) > 1)
            left_out = np.diff(np.floor(np.arange(len(chained) + 1) * data.chains)) == 0  # evenly, in the random order
            allowed[chained[left_out]] = False
        seen = np.concatenate([np.flatnonzero((length == i) & allowed)[:cut] for i, cut in enumerate(cuts)])
        pairs[operator] = prompts[seen], prompts[np.setdiff1d(np.arange(len(prompts)), seen)]
    return pairs


def digits(numbers: Ints) -> Ints:
    """How many digits each number has."""
    return np.searchsorted(10 ** np.arange(1, 19), numbers, side="right") + 1


def carries(op1: Ints, op2: Ints) -> tuple[Ints, Ints]:
    """How many carries each sum has, and the longest chain of carries: a carry that causes the next one is a chain of two."""
    number, chain, longest, carry = (np.zeros(len(op1), dtype=np.int64) for _ in range(4))
    while op1.any() or op2.any():
        total = op1 % 10 + op2 % 10
        carried = total + carry >= 10
        chain = np.where(carried, np.where(total == 9, chain + 1, 1), 0)
        number, longest, carry = number + carried, np.maximum(longest, chain), carried.astype(np.int64)
        op1, op2 = op1 // 10, op2 // 10
    return number, longest


def longest_chain(operator: str, prompts: Prompts) -> Ints:
    """The longest chain of carries of sums, or of borrows of differences: those of answer + op2."""
    return carries(prompts.op1 if operator == "+" else prompts.answer, prompts.op2)[1]

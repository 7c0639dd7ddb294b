"""A stratum: the prompts of one layout, and the answer step that is studied.

A *layout* says how many tokens op1, op2 and the answer take, and which digits each token holds. All prompts of a layout have
the same length, so nothing is padded. An *answer step* j gives the model the right answer's first j−1 tokens and asks for the
j-th. Where numbers are whole tokens, as in the paper, there is a single step, and a stratum is what the paper studies: operands
0…300 and answers below the single-token limit.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arithscope.prompts.samples import random_source
from arithscope.prompts.table import Ints, Place, Prompts, operator_indices

# On each side of the operand grid, as in the paper; of a larger range, a random sample that is always the same.
MOST_OPERANDS = 301
_NAMES = ("units", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands", "millions")

Range = tuple[int, int]  # both ends included
Places = tuple[int, ...]  # exponent of the lowest digit of each token, descending; (1, 0) are two digits, a token each


@dataclass(frozen=True)
class Layout:
    """Which digits of op1, op2 and the answer each of their tokens holds.

    Example:
        >>> Layout((1, 0), (1, 0), (2, 1, 0)).counts  # 45+78=123, a token a digit
        (2, 2, 3)
    """

    op1: Places = (0,)
    op2: Places = (0,)
    answer: Places = (0,)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Number of tokens of op1, op2 and the answer."""
        return len(self.op1), len(self.op2), len(self.answer)

    def token(self, number: str, index: int) -> Place:
        """What the token at this index, from 0, of `op1`, `op2` or `answer` says."""
        return place_of(getattr(self, number), index)


def place_of(places: Places, index: int) -> Place:
    return Place(places[index], places[index - 1] if index else None)


def place_name(places: Places, index: int, digits: int | None = None) -> str:
    """What a token holds, in words: `tens`, `thousands and up`, `last 3 digits`; `number` for a whole number.

    Args:
        places: Lowest digit of each token.
        index: Which token, from 0.
        digits: Number of digits of the largest number; by default, a first token before single digits holds a single one, too.
    """
    low, high = places[index], places[index - 1] if index else None
    if len(places) == 1:
        return "number"
    if high is None:
        # 45 and 1234 may have the same places: 4|5 and 123|4.
        single = places == tuple(range(len(places) - 1, -1, -1)) and digits in (None, len(places))
        return power_name(low) if single else f"{power_name(low)} and up"
    if high - low == 1:
        return power_name(low)
    return f"last {high} digits" if low == 0 else f"{power_name(low)} to {power_name(high - 1)}"


def power_name(exponent: int) -> str:
    """Name of a decimal place: `units`, `tens`, …"""
    return _NAMES[exponent] if exponent < len(_NAMES) else f"10^{exponent}"


@dataclass(frozen=True)
class Stratum:
    """The prompts of one layout, and the answer step that is studied.

    Attributes:
        op1: First operands, from and to.
        op2: Second operands.
        answers: Legal answers.
        layout: How numbers are cut into tokens; None for the paper's study of whole numbers.
        step: Which token of the answer is asked for, from 1.
    """

    op1: Range
    op2: Range
    answers: Range
    layout: Layout | None = None
    step: int = 1

    @property
    def whole(self) -> bool:
        """Whether this is the paper's study of whole numbers: every pair of operands is run, whatever its answer."""
        return self.layout is None

    @property
    def tokens(self) -> Layout:
        return self.layout or Layout()

    @property
    def steps(self) -> int:
        """Number of answer steps."""
        return len(self.tokens.answer)

    def at_step(self, step: int) -> "Stratum":
        return replace(self, step=step)

    def every_step(self) -> list["Stratum"]:
        """The stratum at each of its answer steps."""
        return [self.at_step(step) for step in range(1, self.steps + 1)]

    @property
    def asked(self) -> Place:
        """What the token that is asked for says."""
        return self.tokens.token("answer", self.step - 1)

    @property
    def limit(self) -> int:
        """Results are smaller than this."""
        low, high = self.asked.low, self.asked.high
        return self.answers[1] // 10**low + 1 if high is None else 10 ** (high - low)

    @property
    def layout_name(self) -> str:
        """Number of tokens of op1, op2 and the answer: `2-2-3`."""
        return "-".join(map(str, self.tokens.counts))

    @property
    def step_name(self) -> str:
        """What is asked for: `tens`."""
        return place_name(self.tokens.answer, self.step - 1, len(str(self.answers[1])))

    @property
    def token_name(self) -> str:
        """The token that is asked for: `tens digit`, `last 3 digits`; `answer` if it is the whole answer."""
        if self.steps == 1:
            return "answer"
        return f"{self.step_name} digit" if self.step_name == power_name(self.asked.low) else self.step_name

    def cut(self, number: str, value: int) -> list[str]:
        """The digits of each token of a value of `op1`, `op2` or `answer`: 123 is `1`, `2`, `3` where digits are tokens."""
        digits = str(value)
        ends = [len(digits) - low for low in getattr(self.tokens, number)]
        return [digits[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    @cached_property
    def sides(self) -> tuple[Ints, Ints]:
        """The operands on the two sides of the operand grid, ascending."""
        return self._side(self.op1), self._side(self.op2)

    def _side(self, between: Range) -> Ints:
        low, high = between
        size = high + 1 - low
        if self.whole or size <= MOST_OPERANDS:
            return np.arange(low, high + 1, dtype=np.int64)
        return low + np.sort(random_source(0, "operands", low, high).choice(size, MOST_OPERANDS, replace=False))

    @property
    def shape(self) -> tuple[int, int]:
        """Size of the operand grid."""
        op1, op2 = self.sides
        return len(op1), len(op2)

    def grid(self, operators: str | Sequence[str]) -> Prompts:
        """All pairs of operands, legal or not, ordered by operator, then op1, then op2."""
        operator, op1, op2 = np.meshgrid(operator_indices(operators), *self.sides, indexing="ij")
        return Prompts(op1, operator, op2, self.asked)

    def legal(self, prompts: Prompts) -> NDArray[np.bool_]:
        """Mask of the prompts whose operands and answer belong to the stratum."""
        parts = (prompts.op1, self.op1), (prompts.op2, self.op2), (prompts.answer, self.answers)
        return np.logical_and.reduce([(low <= numbers) & (numbers <= high) for numbers, (low, high) in parts])

    def prompts(self, operators: str | Sequence[str]) -> Prompts:
        """The legal prompts of the operand grid."""
        grid = self.grid(operators)
        return grid[self.legal(grid)]

    def run(self, operators: str | Sequence[str]) -> Prompts:
        """The prompts to run a model on: of whole numbers the grid, as in the paper; otherwise the legal ones, as others have
        another layout."""
        return self.grid(operators) if self.whole else self.prompts(operators)

    def on_grid(self, prompts: Prompts) -> NDArray[np.bool_]:
        """Mask of the prompts whose operands are on the sides of the operand grid."""
        op1, op2 = self.sides
        return np.isin(prompts.op1, op1) & np.isin(prompts.op2, op2)

    def cells(self, prompts: Prompts) -> Ints:
        """Places of prompts in the flattened operand grid. Raises ValueError for operands that are not on its sides."""
        row, column = self.indices(prompts)
        return row * len(self.sides[1]) + column

    def indices(self, prompts: Prompts) -> tuple[Ints, Ints]:
        """Row and column of prompts in the operand grid. Raises ValueError for operands that are not on its sides."""
        return _places_on(self.sides[0], prompts.op1), _places_on(self.sides[1], prompts.op2)

    def described(self) -> str:
        """Operands and answers in words: `10…99 and 10…99, answers 100…198`; of whole numbers `0…300`, as all answers that are
        single tokens are legal."""
        if self.whole:
            return "{}…{}".format(*self.op1)
        ranges = (f"{low}…{high}" for low, high in (self.op1, self.op2, self.answers))
        return "{} and {}, answers {}".format(*ranges)

    def as_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))


def _places_on(side: Ints, operands: Ints) -> Ints:
    places = np.searchsorted(side, operands)
    absent = side[np.minimum(places, len(side) - 1)] != operands
    if absent.any():
        raise ValueError(f"the operand {operands[absent][0]} is not on the side of the operand grid")
    return places


def whole_numbers(max_operand: int, limit: int) -> Stratum:
    """The paper's study: operands 0…max_operand, and answers that are single tokens."""
    return Stratum((0, max_operand), (0, max_operand), (0, limit - 1))


def stratum_from_json(record: dict[str, Any]) -> Stratum:
    """The inverse of `as_json`. Raises KeyError, TypeError, ValueError or OverflowError if it is not one."""
    layout = record["layout"] and Layout(**{name: tuple(map(int, x)) for name, x in dict(record["layout"]).items()})
    ranges = (tuple(map(int, record[name])) for name in ("op1", "op2", "answers"))
    op1, op2, answers = ((low, high) for low, high in ranges)
    return Stratum(op1, op2, answers, layout, int(record["step"]))


def operand_grid(operators: str | Sequence[str], max_operand: int) -> Prompts:
    """All prompts with operands 0…max_operand, legal or not, ordered by operator, then op1, then op2."""
    return whole_numbers(max_operand, max_operand + 1).grid(operators)


def legal_prompts(operators: str | Sequence[str], max_operand: int, limit: int) -> Prompts:
    """All legal prompts: both operands and the answer are single tokens.

    Args:
        operators: Operators to include, for example "+-".
        max_operand: Largest operand.
        limit: Numbers below this are single tokens (`model.limit`).

    Returns:
        The prompts, ordered by operator, then op1, then op2.

    Example:
        >>> len(legal_prompts("+", max_operand=300, limit=1000))
        90601
    """
    grid = operand_grid(operators, max_operand)
    return grid[grid.legal(limit)]

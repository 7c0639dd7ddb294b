"""A table of arithmetic prompts with their exact answers. Independent of model and tokenizer.

Prompts are stored as integer columns: an operand grid of 362,404 prompts is three arrays. A `Template` renders a row as text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.prompts.template import OPERATORS, Template

UNDEFINED = int(np.iinfo(np.int64).min)  # the answer of a division by zero; outside every legal range

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Place:
    """What a token says about the number it is part of: its digits from 10**low up to, but not including, 10**high.

    Example:
        >>> Place(1, 2).of(np.array([83, 417]))  # tens
        array([8, 1])

    Attributes:
        low: Exponent of its lowest digit.
        high: Exponent above its highest digit; None if no token comes before it, so that it says all higher digits.
    """

    low: int = 0
    high: int | None = None

    def of(self, numbers: Ints) -> Ints:
        """The token's value in each number."""
        value = numbers // 10**self.low
        return value if self.high is None else value % 10 ** (self.high - self.low)

    def text(self, value: int) -> str:
        """The token's digits; behind other tokens with leading zeros, `07`."""
        return str(value) if self.high is None else f"{value:0{self.high - self.low}}"


@dataclass(frozen=True, eq=False)
class Prompts:
    """A table of arithmetic prompts, one per row. Index it with a slice, a mask or row numbers to select rows.

    Example:
        >>> prompts = Prompts([226, 7], [1, 3], [68, 2])
        >>> prompts.text(Template()), prompts.answer
        (['226-68=', '7/2='], array([158,   3]))

    Attributes:
        op1: First operands.
        operator: Operators, as indices into OPERATORS.
        op2: Second operands.
        asked: Which token of the answer is asked for; by default, the whole answer is one token.
    """

    op1: Ints
    operator: Ints
    op2: Ints
    asked: Place = Place()

    def __post_init__(self) -> None:
        for name in ("op1", "operator", "op2"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64).reshape(-1))
        if not len(self.op1) == len(self.operator) == len(self.op2):
            raise ValueError("op1, operator and op2 must have the same length")

    def __len__(self) -> int:
        return len(self.op1)

    def __getitem__(self, rows: slice | NDArray[np.generic] | Sequence[int]) -> "Prompts":
        return Prompts(self.op1[rows], self.operator[rows], self.op2[rows], self.asked)

    @cached_property
    def answer(self) -> Ints:
        """Exact integer answers; `/` rounds down, and division by zero gives UNDEFINED."""
        a, b = self.op1, self.op2
        quotient = np.where(b == 0, UNDEFINED, a // np.where(b == 0, 1, b))
        return np.choose(self.operator, [a + b, a - b, a * b, quotient])

    @cached_property
    def result(self) -> Ints:
        """Value of the answer's token that is asked for: the answer itself, where it is one token."""
        return self.asked.of(self.answer)

    def asking(self, asked: Place) -> "Prompts":
        """The same prompts, asked for another token of the answer."""
        return Prompts(self.op1, self.operator, self.op2, asked)

    def legal(self, limit: int) -> NDArray[np.bool_]:
        """Mask of the rows whose operands and answer all lie in 0…limit−1."""
        smallest = np.minimum(np.minimum(self.op1, self.op2), self.answer)
        largest = np.maximum(np.maximum(self.op1, self.op2), self.answer)
        return (smallest >= 0) & (largest < limit)

    def text(self, template: Template) -> list[str]:
        """The prompts as text."""
        rows = zip(self.op1.tolist(), self.operator.tolist(), self.op2.tolist(), strict=True)
        return [template.render(a, OPERATORS[o], b) for a, o, b in rows]


def concatenate_prompts(tables: Sequence[Prompts]) -> Prompts:
    """One table with the rows of all tables, in order; all ask for the same token."""
    op1, operator, op2 = (np.concatenate([getattr(t, name) for t in tables]) for name in ("op1", "operator", "op2"))
    return Prompts(op1, operator, op2, tables[0].asked)


def operator_indices(operators: str | Sequence[str]) -> list[int]:
    """Indices into OPERATORS, sorted and without repeats. Raises UserError for an unknown operator, or none."""
    unknown = [o for o in operators if o not in OPERATORS]
    if unknown or not operators:
        problem = f"{unknown[0]!r} is not an operator" if unknown else "No operator was given"
        raise UserError(f"{problem}; choose from {' '.join(OPERATORS)}, for example --operators '+-'.")
    return [i for i, o in enumerate(OPERATORS) if o in operators]

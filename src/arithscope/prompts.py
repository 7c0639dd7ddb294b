"""Arithmetic prompts: operators, exact answers, legality, samples and counterfactuals. Independent of model and tokenizer.

Prompts are stored as integer columns: an operand grid of 362,404 prompts is three arrays. A `Template` renders a row as text.
"""

import re
import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from arithscope.errors import UserError

OPERATORS = ("+", "-", "*", "/")
UNDEFINED = int(np.iinfo(np.int64).min)  # the answer of a division by zero; outside every legal range

Ints = NDArray[np.int64]


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
    """

    op1: Ints
    operator: Ints
    op2: Ints

    def __post_init__(self) -> None:
        for name in ("op1", "operator", "op2"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64).reshape(-1))
        if not len(self.op1) == len(self.operator) == len(self.op2):
            raise ValueError("op1, operator and op2 must have the same length")

    def __len__(self) -> int:
        return len(self.op1)

    def __getitem__(self, rows: slice | NDArray[np.generic] | Sequence[int]) -> "Prompts":
        return Prompts(self.op1[rows], self.operator[rows], self.op2[rows])

    @cached_property
    def answer(self) -> Ints:
        """Exact integer answers; `/` rounds down, and division by zero gives UNDEFINED."""
        a, b = self.op1, self.op2
        quotient = np.where(b == 0, UNDEFINED, a // np.where(b == 0, 1, b))
        return np.choose(self.operator, [a + b, a - b, a * b, quotient])

    def legal(self, limit: int) -> NDArray[np.bool_]:
        """Mask of the rows whose operands and answer all lie in 0…limit−1."""
        smallest = np.minimum(np.minimum(self.op1, self.op2), self.answer)
        largest = np.maximum(np.maximum(self.op1, self.op2), self.answer)
        return (smallest >= 0) & (largest < limit)

    def text(self, template: "Template") -> list[str]:
        """The prompts as text."""
        rows = zip(self.op1.tolist(), self.operator.tolist(), self.op2.tolist(), strict=True)
        return [template.render(a, OPERATORS[o], b) for a, o, b in rows]


def concatenate_prompts(tables: Sequence[Prompts]) -> Prompts:
    """One table with the rows of all tables, in order."""
    return Prompts(*(np.concatenate([getattr(t, name) for t in tables]) for name in ("op1", "operator", "op2")))


@dataclass(frozen=True)
class Template:
    """How a prompt is written.

    Example:
        >>> Template("{op1} {operator} {op2} = ", prefix="1 + 2 = 3\\n").render(4, "+", 5)
        '1 + 2 = 3\\n4 + 5 = '

    Attributes:
        text: Format string with {op1}, {operator} and {op2}, once each and in this order.
        prefix: Text before every prompt, for example few-shot examples.

    Raises:
        UserError: If `text` is not such a format string, or the template is not valid Unicode.
    """

    text: str = "{op1}{operator}{op2}="
    prefix: str = ""

    def __post_init__(self) -> None:
        try:
            pieces = list(string.Formatter().parse(self.text))
        except ValueError as error:
            raise UserError(f"The template {self.text!r} cannot be read ({error}); write {{{{ for a brace.") from None
        fields = [(name, spec, conversion) for _, name, spec, conversion in pieces if name is not None]
        if fields != [("op1", "", None), ("operator", "", None), ("op2", "", None)]:
            raise UserError(f"The template {self.text!r} needs {{op1}}, {{operator}} and {{op2}} once each, in order.")
        if any("\ud800" <= letter <= "\udfff" for letter in self.text + self.prefix):
            raise UserError(f"The template {self.prefix + self.text!r} is not valid Unicode; write it in UTF-8.")

    def render(self, op1: int | str, operator: str, op2: int | str) -> str:
        """One prompt as text."""
        return self.prefix + self.text.format(op1=op1, operator=operator, op2=op2)


def parse_prompt(text: str, operators: Sequence[str], max_operand: int, limit: int) -> Prompts:
    """Parse a prompt written as `226-68=`. Spaces and the equals sign are optional; the template plays no role.

    Args:
        text: The prompt.
        operators: Operators allowed, such as those of a run.
        max_operand: Largest operand allowed.
        limit: Operands and answer must be smaller than this (the tokenizer's single-token limit).

    Returns:
        A table with this one prompt.

    Raises:
        UserError: If the text is not such a prompt, or the prompt is not legal.

    Example:
        >>> parse_prompt("226 - 68", "+-", 300, 1000).answer
        array([158])
    """
    if not text.strip():
        raise UserError("The prompt is empty; write one as in 226-68=.")
    shown = repr(text if len(text) <= 40 else text[:39] + "…")
    match = re.search(r"[+\-*/]", text)
    if match is None:
        raise UserError(f"{shown} has none of the operators {' '.join(OPERATORS)}; write a prompt as in 226-68=.")
    operator = match[0]
    operands = text[: match.start()].strip(), text[match.end() :].strip().removesuffix("=").strip()
    for operand in operands:
        if not re.fullmatch(r"0|[1-9][0-9]*", operand):
            problem = f"{operand[:40]!r} is not a whole number of 0 or more" if operand else "an operand is missing"
            raise UserError(f"In {shown}, {problem}; write a prompt as in 226-68=.")
        if len(operand) > len(str(max_operand)) or int(operand) > max_operand:
            raise UserError(f"{operand[:40]} is beyond {max_operand}, the largest operand here; choose smaller ones.")
    if operator not in operators:
        raise UserError(f"The operator {operator} was not studied in this run; choose from {' '.join(operators)}.")
    prompt = Prompts(*(np.array([n]) for n in (int(operands[0]), OPERATORS.index(operator), int(operands[1]))))
    [answer] = prompt.answer.tolist()
    if answer == UNDEFINED:
        raise UserError(f"{shown} divides by zero and has no answer; choose another second operand.")
    if not 0 <= answer < limit:
        raise UserError(f"{shown} gives {answer}, but only 0 to {limit - 1} are single tokens; choose other operands.")
    return prompt


def operator_indices(operators: str | Sequence[str]) -> list[int]:
    """Indices into OPERATORS, sorted and without repeats. Raises UserError for an unknown operator, or none."""
    unknown = [o for o in operators if o not in OPERATORS]
    if unknown or not operators:
        problem = f"{unknown[0]!r} is not an operator" if unknown else "No operator was given"
        raise UserError(f"{problem}; choose from {' '.join(OPERATORS)}, for example --operators '+-'.")
    return [i for i, o in enumerate(OPERATORS) if o in operators]


def operand_grid(operators: str | Sequence[str], max_operand: int) -> Prompts:
    """All prompts with operands 0…max_operand, legal or not, ordered by operator, then op1, then op2."""
    numbers = np.arange(max_operand + 1)
    operator, op1, op2 = np.meshgrid(operator_indices(operators), numbers, numbers, indexing="ij")
    return Prompts(op1, operator, op2)


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


def random_source(seed: int, *names: str | int) -> np.random.Generator:
    """A random generator that depends only on the seed and on the names of its purpose.

    Different purposes never share a stream, so adding an experiment does not change the samples of another.
    """
    return np.random.default_rng([seed, *(zlib.crc32(str(n).encode()) for n in names)])


def sample(prompts: Prompts, size: int, random: np.random.Generator) -> Prompts:
    """Draw at most `size` different prompts, in random order."""
    return prompts[random.permutation(len(prompts))[:size]]


def disjoint_samples(prompts: Prompts, sizes: Sequence[int], random: np.random.Generator) -> list[Prompts]:
    """Draw samples that share no prompt, such as discovery and evaluation.

    If there are too few prompts, all samples shrink in proportion, but not below one prompt while there are any.
    """
    total = sum(sizes)
    if total > len(prompts):
        sizes = [min(size, max(1, size * len(prompts) // total)) for size in sizes]
    order = random.permutation(len(prompts))
    ends = np.cumsum([0, *sizes])
    return [prompts[order[a:b]] for a, b in pairwise(ends)]


def counterfactuals(prompts: Prompts, pool: Prompts, random: np.random.Generator) -> Prompts:
    """For each prompt, draw a prompt with a different answer uniformly from the pool."""
    by_answer = np.argsort(pool.answer, kind="stable")
    answers = pool.answer[by_answer]
    first, end = np.searchsorted(answers, prompts.answer, "left"), np.searchsorted(answers, prompts.answer, "right")
    candidates = len(pool) - (end - first)
    if len(prompts) and candidates.min(initial=1) == 0:
        raise UserError("All correct prompts have the same answer, so there is no counterfactual; use more operands.")
    draw = random.integers(0, candidates) if len(prompts) else np.empty(0, dtype=np.int64)
    # The prompts with the same answer are one block of the sorted pool: skip it.
    return pool[by_answer[np.where(draw < first, draw, draw + (end - first))]]

"""Which operands a study of numbers of several tokens has: `--digits 2`, `--operands 10-99,1-9`."""

import re

from arithscope.errors import UserError
from arithscope.prompts.stratum import Range

MOST_DIGITS = 9  # so that every answer fits into 64 bits

Operands = tuple[Range, Range]  # of op1 and of op2, both ends included


def operands_of_digits(text: str) -> Operands:
    """Numbers of some digits: `2` for both operands, or `2,1` for op1 and op2.

    Example:
        >>> operands_of_digits("2,1")
        ((10, 99), (0, 9))
    """
    if not re.fullmatch(r"[1-9](,[1-9])?", text.replace(" ", "")):
        problem = f"--digits {text[:40]!r} is not a number of digits from 1 to {MOST_DIGITS}"
        raise UserError(f"{problem}; write 2, or 2,1 for op1 and op2.")
    op1, *rest = (int(digits) for digits in text.split(","))
    return _of_digits(op1), _of_digits(rest[0] if rest else op1)


def _of_digits(digits: int) -> Range:
    return (0 if digits == 1 else 10 ** (digits - 1)), 10**digits - 1


def parse_operands(text: str) -> Operands:
    """Ranges of numbers: `10-99` for both operands, or `10-99,1-9` for op1 and op2.

    Example:
        >>> parse_operands("10-99")
        ((10, 99), (10, 99))
    """
    number = rf"(0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}})"
    if not (match := re.fullmatch(rf"{number}-{number}(?:,{number}-{number})?", text.replace(" ", ""))):
        problem = f"--operands {text[:40]!r} is not a range of numbers of at most {MOST_DIGITS} digits"
        raise UserError(f"{problem}; write 10-99, or 10-99,1-9 for op1 and op2.")
    low, high, *rest = (int(part) for part in match.groups() if part is not None)
    return checked_operands(((low, high), (rest[0], rest[1]) if rest else (low, high)))


def checked_operands(operands: Operands) -> Operands:
    """The same operands. Raises UserError if a range is empty, negative or too large."""
    for low, high in operands:
        if not 0 <= low <= high < 10**MOST_DIGITS:
            problem = f"There is no range of operands {low}-{high}"
            raise UserError(f"{problem}; use numbers from 0 to {10**MOST_DIGITS - 1}, the smaller one first.")
    return operands

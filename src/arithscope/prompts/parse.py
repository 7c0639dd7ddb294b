"""Reading a prompt that a person typed."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arithscope.errors import UserError
from arithscope.prompts.stratum import Stratum, whole_numbers
from arithscope.prompts.table import UNDEFINED, Prompts
from arithscope.prompts.template import OPERATORS

_SIGNS = str.maketrans("−×÷", "-*/")  # as printed, and as the explorer shows them


def parse_prompt(text: str, operators: Sequence[str], max_operand: int, limit: int) -> Prompts:
    """Parse a prompt written as `226-68=`. Spaces and the equals sign are optional, and − × ÷ are read, too; the template
    plays no role.

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
    return parse_in_stratum(text, operators, whole_numbers(max_operand, limit))


def parse_in_stratum(text: str, operators: Sequence[str], *strata: Stratum) -> Prompts:
    """Parse a prompt of one of these strata; see `parse_prompt`. It asks for what the first stratum that has it asks for."""
    if not text.strip():
        raise UserError("The prompt is empty; write one as in 226-68=.")
    shown, text = repr(text if len(text) <= 40 else text[:39] + "…"), text.translate(_SIGNS)
    match = re.search(r"[+\-*/]", text)
    if match is None:
        raise UserError(f"{shown} has none of the operators {' '.join(OPERATORS)}; write a prompt as in 226-68=.")
    operator = match[0]
    operands = text[: match.start()].strip(), text[match.end() :].strip().removesuffix("=").strip()
    for operand, name in zip(operands, ("op1", "op2"), strict=True):
        if not re.fullmatch(r"0|[1-9][0-9]*", operand):
            problem = f"{operand[:40]!r} is not a whole number of 0 or more" if operand else "an operand is missing"
            raise UserError(f"In {shown}, {problem}; write a prompt as in 226-68=.")
        low, high = min(getattr(s, name)[0] for s in strata), max(getattr(s, name)[1] for s in strata)
        if len(operand) > len(str(high)) or int(operand) > high:
            raise UserError(f"{operand[:40]} is beyond {high}, the largest operand here; choose smaller ones.")
        if int(operand) < low:
            raise UserError(f"{operand} is below {low}, the smallest operand here; choose larger ones.")
    if operator not in operators:
        raise UserError(f"The operator {operator} was not studied in this run; choose from {' '.join(operators)}.")
    op1, op2 = (np.array([int(operand)]) for operand in operands)
    prompt = Prompts(op1, np.array([OPERATORS.index(operator)]), op2)
    [answer] = prompt.answer.tolist()
    if answer == UNDEFINED:
        raise UserError(f"{shown} divides by zero and has no answer; choose another second operand.")
    fitting = [stratum for stratum in strata if stratum.legal(prompt)[0]]
    if not fitting:
        if strata[0].whole:
            last = strata[0].answers[1]
            raise UserError(f"{shown} gives {answer}, but only 0 to {last} are single tokens; choose other operands.")
        studied = " and ".join(f"{low} to {high}" for low, high in sorted({s.answers for s in strata}))
        raise UserError(f"{shown} gives {answer}, but answers from {studied} were studied; choose other operands.")
    return replace(prompt, asked=fitting[0].asked)

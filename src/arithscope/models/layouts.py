"""The strata of a study: its operands and answers, grouped by how the tokenizer cuts them.

1. All first operands must be cut alike, and all second ones: prompts of one length need no padding.
2. The answers of each operator span a range. Numbers of equally many digits that are cut alike are one group of answers, and so
   are neighbouring groups that are (0…999 in a tokenizer that keeps them whole).
3. Each group with enough prompts is a stratum.

How a number is cut is read off whole encoded texts. Of a large range a sample is read; the encoder of a stratum then compares
its tables with whole texts again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from arithscope.errors import UserError
from arithscope.models.tokenization import PromptEncoder
from arithscope.prompts import Ints, Layout, Operands, Prompts, Stratum, operator_indices, random_source
from arithscope.prompts.stratum import Places, Range

FEWEST_PROMPTS = 30  # legal prompts that at least one operator needs in a stratum
SAMPLED = 1000  # numbers read of a larger range


@dataclass(frozen=True)
class _Run:
    """Consecutive numbers that are cut alike; None if they are not cut between their digits."""

    between: Range
    places: Places | None


def find_strata(encoder: PromptEncoder, operators: str | Sequence[str], operands: Operands) -> list[Stratum]:
    """The strata of a study, each asked for its first answer step; ordered by number of answer tokens.

    Args:
        encoder: The model's encoder.
        operators: Operators to study.
        operands: Ranges of op1 and op2.

    Raises:
        UserError: If operands are cut in several ways, or no group of answers has enough prompts.
    """
    encoder.check_operators(operators)
    op1, op2 = (_places_of_operand(encoder, name, own) for name, own in zip(("op1", "op2"), operands, strict=True))
    found, uncut, refusals = [], [], []
    for run in _runs(encoder, "answer", _answer_range(operators, operands)):
        if run.places is None:
            uncut.append(run.between)
        else:
            stratum = Stratum(*operands, run.between, Layout(op1, op2, run.places))
            if max(len(stratum.prompts(operator)) for operator in operators) >= FEWEST_PROMPTS:
                try:
                    encoder.at(stratum)
                    found.append(stratum)
                except UserError as refusal:  # some number that was not read is cut in another way
                    refusals.append(refusal)
    if not found and refusals:
        raise refusals[0]
    if not found:
        shown = " and ".join(f"{low}…{high}" for low, high in operands)
        problem = f"There are no {FEWEST_PROMPTS} prompts with operands {shown} whose answers are"
        if uncut:
            low, high = max(uncut, key=lambda between: between[1] - between[0])
            reason = f"the tokenizer does not cut the answers {low}…{high} between their digits"
            advice = f"use other operands, or another template, such as {encoder.template.respaced()}"
            raise UserError(f"{problem} cut alike, as {reason}; {advice}.")
        raise UserError(f"{problem} 0 or more and cut alike; use more operands, or other operators.")
    return sorted(found, key=lambda stratum: (stratum.steps, stratum.answers))


def stratum_names(strata: Sequence[Stratum]) -> list[str]:
    """A name for each stratum: tokens of op1, op2 and answer, `2-2-3`; with its answers where these repeat."""
    names = [stratum.layout_name for stratum in strata]
    return [
        name if names.count(name) == 1 else f"{name}-answers-{stratum.answers[0]}-{stratum.answers[1]}"
        for name, stratum in zip(names, strata, strict=True)
    ]


def _places_of_operand(encoder: PromptEncoder, name: str, between: Range) -> Places:
    runs = list(_runs(encoder, name, between))
    if len(runs) == 1 and runs[0].places is not None:
        return runs[0].places
    if any(run.places is None for run in runs):
        problem = f"The tokenizer does not cut {name} between its digits for all of {between[0]}…{between[1]}"
        raise UserError(f"{problem}; choose other --operands, or another --template.")
    longest = max(runs, key=lambda run: run.between[1] - run.between[0])
    problem = f"{between[0]}…{between[1]} mixes numbers that the tokenizer cuts into different tokens"
    raise UserError(f"As {name}, {problem}; use --operands {longest.between[0]}-{longest.between[1]}.")


def _answer_range(operators: str | Sequence[str], operands: Operands) -> Range:
    """The smallest and the largest answer that is not negative: reached where operands are smallest or largest."""
    (a, b), (c, d) = operands
    ends = np.array([(x, y) for x in (a, b) for y in {c, d, max(c, 1)}], dtype=np.int64).T
    answers = np.concatenate(
        [Prompts(ends[0], np.full_like(ends[0], o), ends[1]).answer for o in operator_indices(operators)]
    )
    reached = answers[answers >= 0]
    least = 0 if (answers < 0).any() else int(reached.min())
    return least, int(reached.max(initial=least))


def _runs(encoder: PromptEncoder, slot: str, between: Range) -> Iterator[_Run]:
    """Numbers of a range, as runs that are cut alike; numbers of different length are read apart, then joined."""
    runs: list[_Run] = []
    for digits in range(len(str(between[0])), len(str(between[1])) + 1):
        low, high = max(between[0], 10 ** (digits - 1) if digits > 1 else 0), min(between[1], 10**digits - 1)
        runs += _runs_of_one_length(encoder, slot, (low, high))
    for places, alike in groupby(runs, key=lambda run: run.places):
        some = list(alike)
        yield _Run((some[0].between[0], some[-1].between[1]), places)


def _runs_of_one_length(encoder: PromptEncoder, slot: str, between: Range) -> Iterator[_Run]:
    """Numbers of equally many digits, as runs that are cut alike. In a range that is only sampled, a cut counts from the first
    to the last number that was seen with it."""
    numbers = _some_numbers(*between)
    start = 0
    for places, alike in groupby(encoder.places(slot, numbers)):
        end = start + len(list(alike))
        yield _Run((int(numbers[start]), int(numbers[end - 1])), places)
        start = end


def _some_numbers(low: int, high: int) -> Ints:
    if high - low < SAMPLED:
        return np.arange(low, high + 1)
    drawn = random_source(0, "numbers", low, high).integers(low, high + 1, SAMPLED)
    return np.unique(np.concatenate([drawn, [low, high]]))

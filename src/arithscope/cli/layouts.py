"""How a model's tokenizer cuts numbers, and how well the model answers by number of digits, for `arithscope doctor`."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from arithscope.errors import UserError
from arithscope.experiments.whole_answers import measure_answers
from arithscope.models.layouts import find_strata, stratum_names
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Operands, Stratum, operands_of_digits, random_source, sample
from arithscope.stats.intervals import Mean, share_of

SAMPLE = 100  # prompts of each operator in a layout
DIGITS = ("1", "2", "3", "2,1")  # compared unless operands are named
WORTH = 0.5  # of the answers must be right for a study to be worth while


@dataclass(frozen=True)
class _Choice:
    """Operands to choose, as options of the command line."""

    options: str
    operands: Operands


def compare_layouts(model: Model, operators: Sequence[str], named: Operands | None) -> Generator[str, None, bool]:
    """Show how prompts are cut into tokens and how many answers are right, by number of digits; and what is worth studying.

    Args:
        model: The model.
        operators: Operators to ask about.
        named: Operands to ask about; None compares numbers of one to three digits.

    Yields:
        Lines for the terminal.

    Returns:
        Whether any answers are clearly better than one answer for all prompts.
    """
    yield f"layouts       tokens of op1, op2 and answer; accuracy on up to {SAMPLE} prompts of each operator, all tokens right"
    worth: dict[str, list[str]] = {}
    able = False
    for choice in _choices(named):
        try:
            strata = find_strata(model.encoder, operators, choice.operands)
        except UserError as error:
            yield f"  {choice.options}: {error}"
            continue
        for name, stratum in zip(stratum_names(strata), strata, strict=True):
            asked = model.at(stratum.every_step()[-1])
            whole, steps = _accuracy(asked, operators)
            yield f"  {choice.options}  {name}  {_cut(asked)}"
            for operator, right in whole.items():
                by_step = "" if stratum.steps == 1 else f"; by token {' '.join(f'{x:.2f}' for x in steps[operator])}"
                yield f"      {operator}  {right.value:.2f} ({right.low:.2f}–{right.high:.2f}){by_step}"
                able = able or right.low > _baseline(stratum, operator)
                if right.low > WORTH:
                    worth.setdefault(choice.options, []).append(operator)
    if not worth:
        yield f"  none has more than {WORTH:.0%} of its answers right, so a study would be about wrong answers"
    for options, operators_right in worth.items():
        yield f"  worth studying: {options} --operators '{''.join(o for o in OPERATORS if o in operators_right)}'"
    return able


def _baseline(stratum: Stratum, operator: str) -> float:
    """Accuracy of always giving the operator's most frequent answer."""
    counts = np.unique(stratum.prompts(operator).answer, return_counts=True)[1]
    return float(counts.max() / counts.sum())


def _choices(named: Operands | None) -> list[_Choice]:
    if named is not None:
        return [_Choice("--operands " + ",".join(f"{low}-{high}" for low, high in named), named)]
    return [_Choice(f"--digits {digits}", operands_of_digits(digits)) for digits in DIGITS]


def _accuracy(model: Model, operators: Sequence[str]) -> tuple[dict[str, Mean], dict[str, list[float]]]:
    """By operator, the share of a sample whose whole answer is right, and the shares of each step."""
    stratum, whole, steps = _stratum(model), {}, {}
    for operator in operators:
        prompts = sample(stratum.prompts(operator), SAMPLE, random_source(0, "layouts", operator))
        if len(prompts):
            right = measure_answers(model, prompts)
            whole[operator], steps[operator] = share_of(right.all(0)), right.mean(1).tolist()
    return whole, steps


def _cut(model: Model) -> str:
    """An example prompt and its answer, with `·` between the tokens of a number."""
    prompt = model.encoder.examples()[:1]
    layout, operator = _stratum(model).tokens, OPERATORS[int(prompt.operator[0])]
    numbers = (_numeral(int(getattr(prompt, name)[0]), getattr(layout, name)) for name in ("op1", "op2", "answer"))
    op1, op2, answer = numbers
    return f"{op1} {operator} {op2} = {answer}"


def _numeral(number: int, places: Sequence[int]) -> str:
    """A number with `·` between its tokens, whose lowest digits have these exponents."""
    digits = str(number)
    cuts = [0, *(len(digits) - low for low in places)]
    return "·".join(digits[a:b] for a, b in pairwise(cuts))


def _stratum(model: Model) -> Stratum:
    assert model.encoder.stratum is not None
    return model.encoder.stratum

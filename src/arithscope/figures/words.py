"""Words of captions and findings for what a run asks for: the answer, or one token of an answer of several tokens."""

from dataclasses import dataclass

import numpy as np

from arithscope.figures.style import SIGNS
from arithscope.prompts import OPERATORS, Prompts, Stratum


@dataclass(frozen=True)
class Words:
    """What takes the place of {ANSWER} and so on in texts about a run; by default the words of a study of whole numbers.

    Attributes:
        answer: What the model is asked for.
        last: The position at which it predicts that.
        op1: Where the model has read the first operand.
        legal: What makes a prompt legal.
        example: A sentence on the prompt that the diagram of the circuit shows.
    """

    answer: str = "answer"
    last: str = "the last position"
    op1: str = "op1"
    legal: str = "operands within range, and an answer that is a single token"
    example: str = "The tokens of 226−68= serve as an example."

    def fill(self, text: str) -> str:
        """The text in these words."""
        for name in ("answer", "last", "op1", "legal", "example"):
            text = text.replace(f"{{{name.upper()}}}", getattr(self, name))
        return text


WHOLE_NUMBERS = Words()


def words_for(stratum: Stratum) -> Words:
    """The words of a study of a stratum: at the second step of 45+78=123, the `tens digit` is asked for at `answer.1`."""
    if stratum.whole:
        return WHOLE_NUMBERS
    named = stratum.steps == 1 or stratum.token_name.endswith("digit")
    given = ", with the right tokens before the one that is asked for" if stratum.step > 1 else ""
    return Words(
        answer=stratum.token_name if named else "answer token",
        last=f"answer.{stratum.step - 1}" if stratum.step > 1 else WHOLE_NUMBERS.last,
        op1="the last token of op1" if len(stratum.tokens.op1) > 1 else WHOLE_NUMBERS.op1,
        legal=f"operands and an answer of this layout{given}",
        example=WHOLE_NUMBERS.example if stratum.tokens.counts == (1, 1, 1) else "Columns are positions.",
    )


def shown_prompt(stratum: Stratum, op1: int, operator: str, op2: int) -> str:
    """A prompt with the right tokens that a step is given: `226−68=`, or `45+78=1·` at the second step."""
    prompt = Prompts(np.array([op1]), np.array([OPERATORS.index(operator)]), np.array([op2]))
    answer = int(prompt.answer[0])
    given = stratum.cut("answer", answer)[: stratum.step - 1]
    return f"{op1}{SIGNS[operator]}{op2}={''.join(f'{token}·' for token in given)}"

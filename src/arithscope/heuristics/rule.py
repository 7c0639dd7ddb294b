"""What every heuristic is: a rule that holds for some prompts."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from arithscope.prompts import Prompts

RESULT, ANSWER, BOTH = "result", "answer", "op1, op2"  # the answer's token that is asked for, all of it, both operands
NUMBERS = ("op1", "op2", RESULT, ANSWER)

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class Rule:
    """A heuristic: a rule that holds for some prompts. Base class of all kinds.

    A kind overrides `holds`, which may use both operands in any way, or sets `on` to a single number and overrides `admits`.
    Where many rules depend on the same few values, such as a digit, it names them by `variable`.
    """

    kind: ClassVar[str]
    on: str = BOTH

    @property
    def direct(self) -> bool:
        return self.on == RESULT

    @property
    def variable(self) -> str:
        """Name of what the rule depends on. The overlaps of rules that share it are counted together, which is fast."""
        return str(self) if self.on == BOTH else self.on

    def labels(self, prompts: Prompts, sharing: Sequence["Rule"]) -> Ints:
        """A number for each prompt, on which alone it depends whether the rules that share the variable hold.

        By default the number of the prompt that gives the variable its name, or else which of the rules hold.
        """
        if self.variable in NUMBERS:
            return prompt_numbers(prompts, self.variable)
        held = np.packbits([rule.holds(prompts) for rule in sharing], axis=0)
        as_bytes = np.ascontiguousarray(held.T).view(f"V{len(held)}").ravel()  # one item a prompt, which sorts fast
        return np.unique(as_bytes, return_inverse=True)[1]

    def admits(self, numbers: Ints) -> Bools:
        """Which numbers satisfy the rule. A rule about both operands holds if both do."""
        raise NotImplementedError

    def holds(self, prompts: Prompts) -> Bools:
        """Which prompts satisfy the rule."""
        if self.on == BOTH:
            return self.admits(prompts.op1) & self.admits(prompts.op2)
        return self.admits(prompt_numbers(prompts, self.on))


def prompt_numbers(prompts: Prompts, on: str) -> Ints:
    """op1, op2, the result or the answer of every prompt."""
    numbers: Ints = getattr(prompts, on)
    return numbers

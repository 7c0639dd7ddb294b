"""How a prompt is written."""

import string
from dataclasses import dataclass

from arithscope.errors import UserError


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

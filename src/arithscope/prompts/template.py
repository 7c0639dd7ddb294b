"""How a prompt is written."""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unicodedata import category

from arithscope.errors import UserError

OPERATORS = ("+", "-", "*", "/")

Words = tuple[tuple[str, str], ...]  # pairs of an operator and its word


@dataclass(frozen=True)
class Template:
    """How a prompt is written.

    Example:
        >>> Template("{op1} {operator} {op2} = ", prefix="1 + 2 = 3\\n").render(4, "+", 5)
        '1 + 2 = 3\\n4 + 5 = '
        >>> Template("What is {op1} {operator} {op2}? ", words={"+": "plus"}).render(4, "+", 5)
        'What is 4 plus 5? '

    Attributes:
        text: Format string with {op1}, {operator} and {op2}, once each and in this order.
        prefix: Text before every prompt, for example few-shot examples.
        words: Words for operators, as a mapping or as pairs, which is how they are kept; other operators keep their sign.
        chat: Whether prefix and text are the user's message in the tokenizer's chat template.
        reply: What the assistant says before the answer.

    Raises:
        UserError: If `text` is not such a format string, a word or the reply cannot be used, or a text is not valid Unicode.
    """

    text: str = "{op1}{operator}{op2}="
    prefix: str = ""
    words: Mapping[str, str] | Words = ()
    chat: bool = False
    reply: str = ""

    def __post_init__(self) -> None:
        try:
            pieces = list(string.Formatter().parse(self.text))
        except ValueError as error:
            raise UserError(f"The template {self.text!r} cannot be read ({error}); write {{{{ for a brace.") from None
        fields = [(name, spec, conversion) for _, name, spec, conversion in pieces if name is not None]
        if fields != [("op1", "", None), ("operator", "", None), ("op2", "", None)]:
            raise UserError(f"The template {self.text!r} needs {{op1}}, {{operator}} and {{op2}} once each, in order.")
        object.__setattr__(self, "words", _checked_words(self.words))
        if self.reply and not self.chat:
            raise UserError(f"The reply {self.reply!r} is for conversations; use --reply together with --chat.")
        if any(f"{{{name}}}" in self.reply for name, *_ in fields):
            raise UserError(f"The reply {self.reply!r} is the same for all prompts; leave operands and operator out.")
        written = "".join([self.prefix, self.text, *dict(self.words).values(), self.reply])
        if any("\ud800" <= letter <= "\udfff" for letter in written):
            raise UserError(f"The template {self.prefix + self.text!r} is not valid Unicode; write it in UTF-8.")

    def sign(self, operator: str) -> str:
        """What is written for an operator: its word, or else itself."""
        return dict(self.words).get(operator, operator)

    def render(self, op1: int | str, operator: str, op2: int | str) -> str:
        """One prompt as text; in a conversation, the user's message."""
        return self.prefix + self.text.format(op1=op1, operator=self.sign(operator), op2=op2)

    def respaced(self) -> str:
        """The option with which to try the other way to end a template: with a space, or without."""
        text = self.text.rstrip() if self.text.endswith(" ") else f"{self.text} "
        return f"--template {text!r}"

    def as_json(self) -> dict[str, Any]:
        """Text and prefix, and everything else that is not the default."""
        words = {"operator_words": dict(self.words)} if self.words else {}
        chat = {"chat": True, "reply": self.reply} if self.chat else {}
        return {"template": self.text, "prefix": self.prefix, **words, **chat}


def template_from_json(record: Mapping[str, Any]) -> Template:
    """The inverse of `as_json`; other entries do not matter.

    Raises:
        UserError: If it describes no template.
    """
    words, chat, reply = record.get("operator_words", {}), record.get("chat", False), record.get("reply", "")
    return Template(record["template"], record["prefix"], words, chat, reply)


def read_words(text: str) -> Words:
    """Read operator words as the command line has them: `+=plus,-=minus`.

    Raises:
        UserError: If a pair has no `=`.
    """
    pairs = [pair.partition("=") for pair in text.split(",")] if text else []
    if wrong := ["".join(pair) for pair in pairs if not pair[1]]:
        raise UserError(f"{wrong[0]!r} does not say which operator has which word; write words as in +=plus,-=minus.")
    return tuple((operator.strip(), word.strip()) for operator, _, word in pairs)


def _checked_words(words: Mapping[str, str] | Words) -> Words:
    """Words in the order of operators. Raises UserError if one cannot stand for its operator."""
    pairs = list(words.items()) if isinstance(words, Mapping) else list(words)
    for operator, word in pairs:
        if operator not in OPERATORS:
            raise UserError(f"{operator!r} is not an operator; give words to {' '.join(OPERATORS)} only.")
        shown = f"The word {word!r} for {operator}"
        if not word or word != word.strip():
            raise UserError(f"{shown} is empty or has spaces around it; spaces belong into the template.")
        if any(category(letter)[0] == "N" or letter in (*OPERATORS, "=") for letter in word):
            raise UserError(f"{shown} holds a digit or a sign of arithmetic; use a word without them.")
    for what, used in (("operator", [o for o, _ in pairs]), ("word", [word for _, word in pairs])):
        if repeated := [each for each in used if used.count(each) > 1]:
            raise UserError(f"The {what} {repeated[0]!r} is named twice; give every operator a word of its own.")
    return tuple(sorted(pairs, key=lambda pair: OPERATORS.index(pair[0])))

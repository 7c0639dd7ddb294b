"""Conversations: what a tokenizer's chat template writes around the user's message.

A chat template is a program. It is run on a message whose text is a mark: what then stands before and after the mark should
stand around every message. What it writes for a few real prompts shows whether that is so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arithscope.errors import UserError
from arithscope.prompts import OPERATORS, Template

_MARK = "\ue000"  # a letter of Unicode's private area
# In front of a template that writes today's date, so that prompts do not change from day to day.
_ONE_DATE = (
    "{% macro strftime_now(format) %}{{ format | replace('%d', '26') | replace('%b', 'Jul') | replace('%B', 'July')"
    " | replace('%m', '07') | replace('%Y', '2024') }}{% endmacro %}{{ '' }}"
)


@dataclass(frozen=True)
class Surroundings:
    """What stands before and after the text of every prompt.

    Attributes:
        before: Text before, without BOS.
        after: Text between prompt and answer.
        trimmed: Whether spaces around the text are removed.
    """

    before: str = ""
    after: str = ""
    trimmed: bool = False

    def around(self, text: str) -> str:
        """The whole text of a prompt."""
        return self.before + (text.strip() if self.trimmed else text) + self.after


def surroundings_of(tokenizer: Any, template: Template) -> Surroundings:
    """What the tokenizer's chat template writes around the prompts of a template; nothing outside conversations.

    Raises:
        UserError: If there is no chat template, or it does more than write something around the message.
    """
    if not template.chat:
        return Surroundings()
    if not getattr(tokenizer, "chat_template", None):
        raise UserError("The tokenizer of this model has no chat template; leave out --chat and --reply.")
    before, *others = _rendered(tokenizer, _MARK).split(_MARK)
    if len(others) == 1:
        texts = _some_prompts(template)
        rendered = [_rendered(tokenizer, text) for text in texts]
        for trimmed in (False, True):
            found = Surroundings(before, others[0], trimmed)
            if [found.around(text) for text in texts] == rendered:
                bos = tokenizer.bos_token or ""  # the encoder puts it in front of every prompt
                return Surroundings(before.removeprefix(bos), others[0] + template.reply, trimmed)
    problem = "does not only write something around the user's message, but changes or repeats it"
    raise UserError(f"The tokenizer's chat template {problem}; leave out --chat, or choose another --template.")


def _some_prompts(template: Template) -> Sequence[str]:
    numbers = ("1", "2"), ("45", "38"), ("300", "0")
    return [template.render(op1, operator, op2) for operator in OPERATORS for op1, op2 in numbers]


def _rendered(tokenizer: Any, message: str) -> str:
    """A conversation with one message of the user, up to where the assistant's reply begins."""
    try:
        chat_template = tokenizer.get_chat_template()
        if "strftime_now" in chat_template:
            chat_template = _ONE_DATE + chat_template
        conversation = [{"role": "user", "content": message}]
        options = dict(chat_template=chat_template, tokenize=False, add_generation_prompt=True)
        return str(tokenizer.apply_chat_template(conversation, **options))
    except Exception as error:  # whatever the template's program raises
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"The tokenizer's chat template cannot be used ({reason}); leave out --chat.") from error

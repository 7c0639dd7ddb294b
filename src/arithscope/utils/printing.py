"""Text that comes from outside (names of models, tokens, paths, messages), shown as it is.

Such text may hold escape sequences of a terminal, Rich's markup, or characters that no file of text or XML can hold. All
output of the command line goes through `say` or a `PlainConsole`.
"""

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

# Control characters except tab and newline, marks that change the direction of text, surrogates, and what XML forbids.
_RANGES = [(0, 8), (0xB, 0x1F), (0x7F, 0x9F), (0x61C, 0x61C), (0x200E, 0x200F), (0x202A, 0x202E), (0x2066, 0x2069)]
_RANGES += [(0xD800, 0xDFFF), (0xFFFE, 0xFFFF)]
_ESCAPES = {code: f"\\u{code:04x}" for first, last in _RANGES for code in range(first, last + 1)}


def printable(text: str) -> str:
    r"""The text with control characters written out, as \u001b (which is also how JSON writes them)."""
    return text.translate(_ESCAPES)


def say(text: object, *, error: bool = False) -> None:
    """Print a text to stdout, or to stderr."""
    print(printable(str(text)), file=sys.stderr if error else sys.stdout, flush=True)


class PlainConsole(Console):
    """A console for tables and progress bars, in whose texts nothing is markup and control characters are written out."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        # While a progress bar is shown, Rich turns whatever else is printed into Text and sends it here.
        super().print(*(x.plain if isinstance(x, Text) else x for x in objects), **options)

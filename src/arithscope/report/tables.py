"""Tables of a report, before they become HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, NamedTuple

from arithscope.report.formatting import NOTHING, as_mean, interval, number
from arithscope.stats.intervals import Mean


class Cell(NamedTuple):
    """A cell with small print below its text, with a link, or set as code."""

    text: str
    notes: tuple[str, ...] = ()
    href: str = ""
    code: bool = False


@dataclass(frozen=True)
class Table:
    """The first cell of each row is its header; `style` is a class of the style sheet."""

    caption: str
    header: Sequence[Cell | str]
    rows: Sequence[Sequence[Cell | str]]
    style: str = ""


def value_cell(value: Any, suffix: str = "") -> Cell | str:
    """A value of a summary or a finding: a mean with its interval and sample size, names, a number or a text."""
    if isinstance(value, dict):
        value = as_mean(value)
    if isinstance(value, Mean):
        text = number(value.value)
        notes = (interval(value),) if not isnan(value.low) else ()
        return text if text == NOTHING else Cell(text, (*notes, f"n = {value.n:,}"))
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if value is None or isinstance(value, float):
        return number(value)
    return f"{value:,}{suffix}" if isinstance(value, int) else str(value)

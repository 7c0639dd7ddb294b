"""Numbers in tables: a mean with its interval and sample size, names, a plain number; a finding's numbers by operator."""

from __future__ import annotations

from typing import Any

from arithscope.experiments.common.result import AVERAGE
from arithscope.figures.style import SIGNS
from arithscope.prompts import OPERATORS
from arithscope.report.findings.finding import Finding
from arithscope.report.formatting import NOTHING, as_mean, interval, number
from arithscope.report.markup import Markup, element, table, together
from arithscope.stats.intervals import Mean


def cell(entry: Any, suffix: str = "") -> Markup:
    """Of a summary or a finding: a mean, a list of names, a plain number or a text."""
    if isinstance(entry, dict):
        entry = as_mean(entry)
    if isinstance(entry, Mean):
        if (value := number(entry.value)) == NOTHING:
            return together(NOTHING)
        return together(value, element("small", interval(entry)), element("small", f"n = {entry.n:,}"))
    if isinstance(entry, list):
        return together(" ".join(map(str, entry)) or "none")
    if isinstance(entry, float):
        return together(number(entry))
    return together(NOTHING if entry is None else f"{entry:,}{suffix}" if isinstance(entry, int) else str(entry))


def numbers_table(finding: Finding, title: str) -> Markup | None:
    """A column for each operator that has a number, and one for the average where there are several; None without numbers."""
    lines = {name: values for name, values in finding.numbers.items() if values}
    operators = [o for o in OPERATORS if any(o in values for values in lines.values())]
    if not operators:
        return None
    averaged = len(operators) > 1 and any(AVERAGE in values for values in lines.values())
    columns = [*operators, *([AVERAGE] if averaged else [])]
    rows = [[together(name), *(cell(values.get(c)) for c in columns)] for name, values in lines.items()]
    return table(f"Numbers: {title}", ["", *(SIGNS.get(c, "all operators") for c in columns)], rows, "numbers")

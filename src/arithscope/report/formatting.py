"""Numbers in sentences: means with intervals, operators side by side, and the claims that intervals support. The sentences
themselves are in the folder templates."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from arithscope.experiments.common.result import AVERAGE
from arithscope.figures.style import SIGNS
from arithscope.stats.intervals import Mean, clear_signs, difference
from arithscope.utils.printing import printable

NOTHING = "–"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short_number(x: float) -> str:
    """About three significant digits: .957, 1.00, 12.3, 12,300, 1.2e+06; whole numbers from 1,000 on in full: 1,501."""
    if abs(x) >= 999_500:
        return f"{x:.1e}"
    if abs(x) >= 999.95:
        return f"{x if x == round(x) else float(f'{x:.3g}'):,.0f}"
    if abs(x) >= 10:
        return f"{x:.1f}"
    return f"{x:.3f}".replace("0.", ".", 1) if abs(x) < 0.9995 else f"{x:.2f}"


def number(x: float | None) -> str:
    """.957, 12.3, 1,500 or 7.7×10⁶; a dash for a missing number."""
    if x is None or math.isnan(x):
        return NOTHING
    mantissa, _, power = short_number(x).partition("e")
    exponent = f"×10{str(int(power)).translate(_SUPERSCRIPT)}" if power else ""
    return mantissa.replace("-", "−") + exponent


def interval(mean: Mean) -> str:
    return f"[{number(mean.low)}, {number(mean.high)}]"


def with_interval(mean: Mean) -> str:
    """A mean and its interval, if it has one."""
    if math.isnan(mean.value):
        return NOTHING
    return number(mean.value) if math.isnan(mean.low) else f"{number(mean.value)} {interval(mean)}"


def p_value(p: float) -> str:
    return "p < .001" if p < 0.001 else f"p = {number(p)}"


def as_mean(entry: Any) -> Mean:
    """A mean from a table's row, or from an entry of a summary, where None stands for NaN."""
    value, low, high = (math.nan if entry[name] is None else float(entry[name]) for name in ("value", "low", "high"))
    return Mean(value, low, high, int(entry["n"]))


def means_of(table: pd.DataFrame, measure: str) -> dict[str, Mean]:
    """One measure of a table of means, by operator, and their average."""
    if table.empty:
        return {}
    rows = table[table.measure == measure].to_dict("records")
    return {str(row["operator"]): as_mean(row) for row in rows if not pd.isna(row["value"])}


def operators_of(means: Mapping[str, Mean]) -> list[str]:
    return [operator for operator in means if operator != AVERAGE]


def overall(means: Mapping[str, Mean]) -> str:
    """The average over operators, or the mean of the only one, with its sample size."""
    operators = operators_of(means)
    if not operators:
        return NOTHING
    mean = means[AVERAGE] if AVERAGE in means and len(operators) > 1 else means[operators[0]]
    return f"{with_interval(mean)} (n = {mean.n:,})"


def grouped(values: Mapping[str, str]) -> str:
    """Values with the operators that have them: L0H0 for + and ×, L0H2 for −."""
    groups = {value: [SIGNS[o] for o in values if values[o] == value] for value in values.values()}
    return ", ".join(f"{value} for {_operators(signs, values)}" for value, signs in groups.items())


def span(counts: Mapping[str, int]) -> str:
    """The range of counts over operators: 12, or 12 to 30."""
    low, high = min(counts.values()), max(counts.values())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def listed(names: Iterable[str]) -> str:
    """a, b and c"""
    *most, last = list(names) or [NOTHING]
    return f"{', '.join(most)} and {last}" if most else last


def differences(a: Mapping[str, Mean], b: Mapping[str, Mean]) -> dict[str, Mean]:
    """a − b for each operator that has both."""
    return {operator: difference(a[operator], b[operator]) for operator in a if operator in b}


def clear_sign(mean: Mean, comparisons: int = 1) -> int:
    """1 or −1 if a mean, one of so many comparisons, is clearly above or below zero; 0 if not, or without an interval."""
    return clear_signs([mean], comparisons)[0]


def comparisons_in(*tables: Mapping[str, Mean]) -> int:
    """How many means of these tables, other than averages, have an interval and so can be clearly above or below zero."""
    return sum(not math.isnan(means[o].low) for means in tables for o in operators_of(means))


def verdict(
    means: Mapping[str, Mean],
    above: str,
    below: str,
    neither: str = "there is no clear difference",
    comparisons: int | None = None,
) -> str:
    """A sentence on which operators' differences are clearly above zero, clearly below, or neither.

    Corrected for the number of operators, or for all comparisons of the table if there are more: then their number is given.
    """
    operators = operators_of(means)
    signs = clear_signs([means[o] for o in operators], comparisons)
    return sign_verdict(dict(zip(operators, signs, strict=True)), above, below, neither)


def sign_verdict(signs: Mapping[str, int], above: str, below: str, neither: str) -> str:
    """The sentence of `verdict`, given which differences are clear: 1 or −1, or 0 if they are not."""
    parts = []
    for sign, wording in ((1, above), (-1, below), (0, neither)):
        if named := [SIGNS[o] for o in signs if signs[o] == sign]:
            parts.append(f"for {_operators(named, signs)} {wording}")
    text = "; ".join(parts)
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _operators(signs: Sequence[str], operators: Iterable[str]) -> str:
    return "all operators" if len(signs) == len(list(operators)) > 1 else listed(signs)


TEMPLATES = Environment(
    loader=PackageLoader(__package__),
    autoescape=select_autoescape(["html"]),
    finalize=lambda value: printable(value) if type(value) is str else value,  # HTML cannot hold control characters
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {f.__name__: f for f in (clear_sign, grouped, listed, number, overall, span, with_interval)}
TEMPLATES.filters |= {"sign": lambda operator: SIGNS[str(operator)], "thousands": lambda count: f"{count:,}"}
TEMPLATES.globals |= {"differences": differences, "verdict": verdict, "sign_verdict": sign_verdict}


def worded(template: str, name: str, /, **values: Any) -> str:
    """A text of templates/TEMPLATE.txt, in one line: the macro of that name with these values as arguments."""
    macro = getattr(TEMPLATES.get_template(f"{template}.txt").module, name)
    return " ".join(macro(**values).split())

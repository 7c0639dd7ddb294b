"""Numbers in sentences: means with intervals, operators side by side, and what an interval allows to be said."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from arithscope.experiments.common.result import AVERAGE
from arithscope.figures.style import SIGNS
from arithscope.report.terminal import figure
from arithscope.stats.intervals import Mean, difference

NOTHING = "–"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(x: float | None) -> str:
    """.957, 12.3, 7.7×10⁶; a dash for what is not there."""
    if x is None or math.isnan(x):
        return NOTHING
    mantissa, _, power = figure(x).partition("e")
    exponent = f"×10{str(int(power)).translate(_SUPERSCRIPT)}" if power else ""
    return mantissa.replace("-", "−") + exponent


def interval(mean: Mean) -> str:
    return f"[{number(mean.low)}, {number(mean.high)}]"


def shown(mean: Mean) -> str:
    """A mean with its interval, if it has one."""
    if math.isnan(mean.value):
        return NOTHING
    return number(mean.value) if math.isnan(mean.low) else f"{number(mean.value)} {interval(mean)}"


def p_value(p: float) -> str:
    return "p < .001" if p < 0.001 else f"p = {number(p)}"


def as_mean(entry: Any) -> Mean:
    """From a table's row or an entry of a summary, in which what is not there is None."""
    value, low, high = (math.nan if entry[name] is None else float(entry[name]) for name in ("value", "low", "high"))
    return Mean(value, low, high, int(entry["n"]))


def means_of(table: pd.DataFrame, measure: str) -> dict[str, Mean]:
    """One measure of a table with the columns operator, measure, value, low, high, n: by operator, and the average."""
    if table.empty:
        return {}
    rows = table[table.measure == measure].to_dict("records")
    return {str(row["operator"]): as_mean(row) for row in rows if not pd.isna(row["value"])}


def operators_of(means: Mapping[str, Mean]) -> list[str]:
    return [operator for operator in means if operator != AVERAGE]


def overall(means: Mapping[str, Mean]) -> str:
    """The average over operators, or what there is of the only one, with the sample size."""
    operators = operators_of(means)
    if not operators:
        return NOTHING
    mean = means[AVERAGE] if AVERAGE in means and len(operators) > 1 else means[operators[0]]
    return f"{shown(mean)} (n = {mean.n:,})"


def grouped(values: Mapping[str, str]) -> str:
    """Operators of the same value together: L0H0 for + and ×, L0H2 for −."""
    distinct = dict.fromkeys(values.values())
    parts = [(value, [SIGNS[o] for o in values if values[o] == value]) for value in distinct]
    return ", ".join(f"{value} for {_all(names, list(values))}" for value, names in parts)


def span(counts: Mapping[str, int]) -> str:
    """12, or 12 to 30: what operators have."""
    low, high = min(counts.values()), max(counts.values())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def listed(names: Iterable[str]) -> str:
    """a, b and c"""
    *most, last = list(names) or [NOTHING]
    return f"{', '.join(most)} and {last}" if most else last


def gaps(ours: Mapping[str, Mean], theirs: Mapping[str, Mean]) -> dict[str, Mean]:
    """Ours minus theirs, operator by operator, where both are there."""
    return {operator: difference(ours[operator], theirs[operator]) for operator in ours if operator in theirs}


def clear(mean: Mean) -> int:
    """Which side of zero the whole interval is on: 1 above, −1 below, 0 if it includes zero or is not there."""
    return int(mean.low > 0) - int(mean.high < 0)


def verdict(
    differences: Mapping[str, Mean], above: str, below: str, neither: str = "there is no clear difference"
) -> str:
    """A sentence that says for which operators a difference is clearly above zero, for which below, and for which neither."""
    operators = operators_of(differences)
    sayings = {1: above, -1: below, 0: neither}
    parts = [
        (names, saying)
        for sign, saying in sayings.items()
        if (names := [SIGNS[o] for o in operators if clear(differences[o]) == sign])
    ]
    if not parts:
        return ""
    text = "; ".join(f"for {_all(names, operators)} {saying}" for names, saying in parts)
    return f" {text[0].upper()}{text[1:]}."


def _all(names: Sequence[str], operators: Sequence[str]) -> str:
    return "all operators" if len(names) == len(operators) > 1 else listed(names)

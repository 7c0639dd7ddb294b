"""What comes out when a study is repeated."""

from __future__ import annotations

import math

from arithscope.experiments.common.headline import HeadlineNumber
from arithscope.experiments.common.result import AVERAGE
from arithscope.experiments.stability import CORRELATION, HALF, HEADS, NEURONS, SEED, WHOLE, Stability
from arithscope.report.findings.finding import Cell, Finding
from arithscope.report.formatting import NOTHING, listed, number, shown
from arithscope.stats.intervals import Mean


def repeated(result: Stability) -> Finding:
    overall = result.operators[-1]  # all together, or the only one
    numbers: dict[str, dict[str, Cell]] = {}
    for row in result.rows:
        found = {operator: result.means(row, operator) for operator in result.operators}
        if not any(found.values()):  # said of all together, though there is one operator only
            found = {overall: result.means(row, AVERAGE)}
        numbers[row.short] = {operator: _in_short(row, means) for operator, means in found.items() if means}
    summary = result.summary()[overall]
    says = [_least_stable(result, overall), _clear(summary["clear_differences"], summary["of_comparisons"])]
    for way, between in (("halves", "between the halves"), ("seeds", "between seeds")):
        correlation, heads, neurons = (summary.get(f"{way}_{c}", math.nan) for c in (CORRELATION, HEADS, NEURONS))
        if not math.isnan(correlation):
            says.append(
                f"{between[0].upper()}{between[1:]} the effects of neurons have a rank correlation of {number(correlation)}; "
                f"the circuits' heads overlap by {number(heads)} and the top neurons by {number(neurons)}."
            )
    return Finding(" ".join(says), numbers)


def _in_short(row: HeadlineNumber, means: dict[str, Mean]) -> str:
    """.957; halves .950, .964; seeds .957, .957"""
    parts = [_value(row, means[WHOLE]) if WHOLE in means else NOTHING]
    for way, begins in (("halves", HALF), ("seeds", SEED)):
        values = [_value(row, mean) for name, mean in means.items() if name.startswith(begins)]
        parts.append(f"{way} {', '.join(values) or NOTHING}")
    return "; ".join(parts)


def _value(row: HeadlineNumber, mean: Mean) -> str:
    counts = not row.share and math.isnan(mean.low)
    return f"{mean.value:,.0f}" if counts else number(mean.value)


def _least_stable(result: Stability, operator: str) -> str:
    """Of the numbers on one scale, that which moves most."""
    names = {(row.experiment, row.measure): row.short for row in result.rows if row.share}
    mine = result.table[(result.table.operator == operator) & result.table.largest.notna()]
    rows = [row for row in mine.to_dict("records") if (row["experiment"], row["measure"]) in names]
    if not rows:
        return "No repetition has numbers to compare."
    worst = max(rows, key=lambda row: row["largest"])
    key = worst["experiment"], worst["measure"]
    [row] = [r for r in result.rows if (r.experiment, r.measure) == key]
    found = result.means(row, operator)
    others = listed(f"{number(mean.value)} ({name})" for name, mean in found.items() if name != WHOLE)
    return (
        f"Repeated {len(result.runs) - 1} times, the share or faithfulness that moves most is {names[key]}: "
        f"{shown(found[WHOLE])} in the run, {others} in repetitions."
    )


def _clear(clear: int, comparisons: int) -> str:
    return f"Of {comparisons} comparisons of a key number with that of a repetition, {clear} are clearly different."

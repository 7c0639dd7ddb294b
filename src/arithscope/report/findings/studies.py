"""Findings on several studies: training checkpoints, and repetitions."""

import math
from typing import Any

import pandas as pd

from arithscope.experiments.bag import ABOVE_FLOOR
from arithscope.experiments.classify import CRITERIA
from arithscope.experiments.common.key_numbers import KeyNumber
from arithscope.experiments.common.result import AVERAGE, with_average
from arithscope.experiments.prompt_knockout import OTHER_HEURISTICS, OWN
from arithscope.experiments.stability import CORRELATION, HALF, HEADS, NEURONS, SEED, WHOLE, Stability
from arithscope.experiments.training import FIRST, LAST, LOST, Training
from arithscope.report.findings.finding import Finding, Value, finding, worded
from arithscope.report.formatting import NOTHING, as_mean, means_of, number
from arithscope.stats.intervals import Mean

KNOCKED_OUT = {OWN: "associated neurons", OTHER_HEURISTICS: "neurons of other heuristics"}


@finding("training", Training)
def training_curves(result: Training) -> Finding:
    ends = result.checkpoints[0], result.checkpoints[-1]
    numbers: dict[str, Any] = {f"accuracy at {name}": _at(result.accuracy, name) for name in ends}
    summary = result.summary()
    shares: dict[str, Any] = {}
    above_floor: dict[str, Any] = {}
    for criterion in CRITERIA:
        present = result.present[result.present.criterion == criterion]
        shares[criterion] = None if present.empty else means_of(result.mutual_share, f"{criterion}_mutual_share")
        if present.empty:
            continue
        above_floor[criterion] = means_of(result.mutual_share, f"{criterion}_mutual_share{ABOVE_FLOOR}")
        start, half = str(present.checkpoint.iloc[0]), f"{criterion}_half_present_at"
        numbers |= {
            f"{criterion}: final pairs present at {start}": _at(present, start),
            f"{criterion}: half of them first present at": {
                str(o): summary.get(str(o), {}).get(half, NOTHING) for o in present.operator.unique()
            },
            f"{criterion}: share carried by mutual neurons": shares[criterion],
            f"{criterion}: the same above the floor": above_floor[criterion],
        }
        for at in (FIRST, LAST):
            for ablated, name in KNOCKED_OUT.items():
                rows = result.knocked_out(at)
                means = with_average(rows[(rows.criterion == criterion) & (rows.ablated == ablated)].assign(measure=at))
                numbers[f"{criterion}: accuracy left without {LOST} {name} per layer, {at} checkpoint"] = means_of(
                    means, at
                )
    return worded("training", numbers, earlier=len(result.checkpoints) - 1, shares=shares, above_floor=above_floor)


def _at(table: pd.DataFrame, checkpoint: str) -> dict[str, Mean]:
    return {str(row["operator"]): as_mean(row) for row in table[table.checkpoint == checkpoint].to_dict("records")}


@finding("stability", Stability)
def repeated(result: Stability) -> Finding:
    overall = result.operators[-1]  # all operators together, or the only one
    numbers: dict[str, dict[str, Value]] = {}
    for row in result.key_numbers:
        means = {operator: result.means(row, operator) for operator in result.operators}
        if not any(means.values()):  # measured for all operators together only
            means = {overall: result.means(row, AVERAGE)}
        numbers[row.short] = {o: _values(row, by_run) for o, by_run in means.items() if by_run}
    summary, agreement = result.summary()[overall], {}
    for kind, between in (("halves", "the halves"), ("seeds", "seeds")):
        found = [summary.get(f"{kind}_{choice}", math.nan) for choice in (CORRELATION, HEADS, NEURONS)]
        if not math.isnan(found[0]):
            agreement[between] = found
    words = {"repetitions": len(result.runs) - 1, "summary": summary, "agreement": agreement}
    return worded("stability", numbers, **words, **_least_stable(result, overall))


def _values(row: KeyNumber, means: dict[str, Mean]) -> str:
    """.957; halves .950, .964; seeds .957, .957"""

    def text(mean: Mean) -> str:
        is_count = not row.share and math.isnan(mean.low)
        return f"{mean.value:,.0f}" if is_count else number(mean.value)

    parts = [text(means[WHOLE]) if WHOLE in means else NOTHING]
    for kind, prefix in (("halves", HALF), ("seeds", SEED)):
        values = [text(mean) for name, mean in means.items() if name.startswith(prefix)]
        parts.append(f"{kind} {', '.join(values) or NOTHING}")
    return "; ".join(parts)


def _least_stable(result: Stability, operator: str) -> dict[str, Any]:
    """The key number that varies most, among those on the same scale: its name, and its values in the run and repetitions."""
    shares = {(row.experiment, row.measure): row for row in result.key_numbers if row.share}
    table = result.table[(result.table.operator == operator) & result.table.largest.notna()]
    entries = [entry for entry in table.to_dict("records") if (entry["experiment"], entry["measure"]) in shares]
    if not entries:
        return {"least": None}
    worst = max(entries, key=lambda entry: entry["largest"])
    row = shares[worst["experiment"], worst["measure"]]
    means = result.means(row, operator)
    others = [f"{number(mean.value)} ({name})" for name, mean in means.items() if name != WHOLE]
    return {"least": row.short, "run": means[WHOLE], "others": others}

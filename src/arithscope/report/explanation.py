"""One prompt explained, as a person sees it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from arithscope.experiments.neurons import neuron_name
from arithscope.heuristics.kinds import kind_name
from arithscope.report.terminal import bare_table
from arithscope.results.explanation import HEURISTIC_NEURONS, Answer, Explanation

MOST_HEURISTICS, MOST_NEURONS = 12, 15
BAR = 24  # characters that the longest bar takes


def explanation_report(e: Explanation) -> Iterator[str | Table]:
    """What is known of a prompt, in the order in which it is printed."""
    verdict = "right" if e.answer.number == e.right else f"wrong: it is {e.right}, with P = {e.answer.p_answer:.3f}"
    yield f"{e.prompt} {_said(e.answer)} ({verdict})"
    yield ""
    yield f"The logit of {e.right} is {e.logit:.2f}, the sum of"
    table = _table(("", "adds", "sum", ""))
    total = 0.0
    longest = max(map(abs, e.parts.values()))
    for name, value in e.parts.items():
        total += value
        table.add_row(name, f"{value:+.3f}", f"{total:.2f}", _bar(value, longest))
    yield table
    yield (
        f"{len(e.heuristics)} heuristics that hold for it are matched by {len(e.neurons)} neurons ({e.criterion}). "
        "A neuron may match several; what those of each heuristic add together:"
    )
    yield from _first(e.heuristics, MOST_HEURISTICS, ("heuristic", "neurons", "contribution"))
    yield "By kind, each neuron once, with its best heuristic:"
    kinds = _table(("kind", "neurons", "adds", "sum", ""))
    longest = max(map(abs, e.kinds.contribution), default=0.0)
    for row in e.kinds.to_dict("records"):
        kinds.add_row(
            kind_name(row["kind"], row["on"]),
            str(row["neurons"]),
            f"{row['contribution']:+.3f}",
            f"{row['running']:.2f}",
            _bar(row["contribution"], longest),
        )
    yield kinds
    named = e.neurons.assign(name=[neuron_name(*n) for n in zip(e.neurons.layer, e.neurons.neuron, strict=True)])
    yield f"Its {HEURISTIC_NEURONS}: activation × logit of {e.right} in the value vector ÷ scale ({e.scale:.2f})"
    columns = ("name", "activation", "value_logit", "contribution", "heuristic", "score")
    yield from _first(named, MOST_NEURONS, columns)
    s = e.ablated
    yield f"Without these {s.neurons} neurons: {e.prompt} {_said(s.answer)}, P({e.right}) = {s.answer.p_answer:.3f}"
    if s.control is None:
        yield "There are not as many other top neurons in each layer to compare with."
    else:
        yield (
            f"Without as many other top neurons of each layer: {e.prompt} {_said(s.control)}, "
            f"P({e.right}) = {s.control.p_answer:.3f}"
        )


def _said(answer: Answer) -> str:
    said = repr(answer.token) if answer.number is None else str(answer.number)
    return f"{said} with P = {answer.probability:.3f}"


def _table(header: Sequence[str]) -> Table:
    table = bare_table()
    for name in header:
        table.add_column(name, no_wrap=True, justify="left" if name in ("", "kind", "heuristic", "neuron") else "right")
    return table


def _first(rows: pd.DataFrame, most: int, columns: Sequence[str]) -> Iterator[str | Table]:
    """The first rows of a table, and how many more there are."""
    header = {"contribution": "adds", "value_logit": "logit", "name": "neuron"}
    table = _table([header.get(column, column) for column in columns])
    for row in rows.head(most).to_dict("records"):
        table.add_row(*(_shown(column, row[column]) for column in columns))
    yield table
    if len(rows) > most:
        yield f"and {len(rows) - most} more"


def _shown(column: str, value: Any) -> str:
    if column == "contribution":
        return f"{value:+.3f}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _bar(value: float, longest: float) -> str:
    return ("▇" if value >= 0 else "░") * round(BAR * abs(value) / max(longest, 1e-30))

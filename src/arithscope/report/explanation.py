"""The explanation of one prompt in the terminal."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from arithscope.experiments.neurons import neuron_name
from arithscope.heuristics.kinds import kind_name
from arithscope.report.terminal import bare_table
from arithscope.results.explanation import HEURISTIC_NEURONS, Answer, Explanation

MOST_HEURISTICS, MOST_NEURONS = 12, 15
BAR = 24  # characters of the longest bar
HEADERS = {"contribution": "adds", "value_logit": "logit", "name": "neuron"}  # of columns named differently


def explanation_report(e: Explanation) -> Iterator[str | Table]:
    """Lines and tables to print on a prompt."""
    correct = "correct" if e.answer.number == e.right else f"wrong: it is {e.right}, with P = {e.answer.p_answer:.3f}"
    yield f"{e.prompt} {_prediction(e.answer)} ({correct})"
    yield ""
    yield f"The logit of {e.right} is {e.logit:.2f}, the sum of"
    table = _table(("", "adds", "sum", ""))
    total, longest = 0.0, max(map(abs, e.parts.values()))
    for name, value in e.parts.items():
        total += value
        table.add_row(name, f"{value:+.3f}", f"{total:.2f}", _bar(value, longest))
    yield table
    yield (
        f"{len(e.heuristics)} heuristics hold for this prompt and are matched by {len(e.neurons)} neurons ({e.criterion}). "
        "A neuron may match several. Contribution of each heuristic's neurons:"
    )
    yield from _top_rows(e.heuristics, MOST_HEURISTICS, ("heuristic", "neurons", "contribution"))
    yield "By kind, each neuron counted once, for its best heuristic:"
    table = _table(("kind", "neurons", "adds", "sum", ""))
    longest = max(map(abs, e.kinds.contribution), default=0.0)
    for row in e.kinds.to_dict("records"):
        name, adds = kind_name(row["kind"], row["on"]), row["contribution"]
        table.add_row(name, str(row["neurons"]), f"{adds:+.3f}", f"{row['running']:.2f}", _bar(adds, longest))
    yield table
    names = [neuron_name(*n) for n in zip(e.neurons.layer, e.neurons.neuron, strict=True)]
    yield f"Its {HEURISTIC_NEURONS}: activation × logit of {e.right} in the value vector ÷ scale ({e.scale:.2f})"
    columns = ("name", "activation", "value_logit", "contribution", "heuristic", "score")
    yield from _top_rows(e.neurons.assign(name=names), MOST_NEURONS, columns)
    ablated, control = e.ablated.answer, e.ablated.control
    yield f"Without these {e.ablated.neurons} neurons: {_ablated(e, ablated)}"
    if control is None:
        yield "There are not as many other top neurons in each layer for a control."
    else:
        yield f"Without as many other top neurons of each layer: {_ablated(e, control)}"


def _prediction(answer: Answer) -> str:
    token = repr(answer.token) if answer.number is None else str(answer.number)
    return f"{token} with P = {answer.probability:.3f}"


def _ablated(e: Explanation, answer: Answer) -> str:
    return f"{e.prompt} {_prediction(answer)}, P({e.right}) = {answer.p_answer:.3f}"


def _table(header: Sequence[str]) -> Table:
    table = bare_table()
    for name in header:
        table.add_column(name, no_wrap=True, justify="left" if name in ("", "kind", "heuristic", "neuron") else "right")
    return table


def _top_rows(rows: pd.DataFrame, most: int, columns: Sequence[str]) -> Iterator[str | Table]:
    """The first rows of a table, and the number of the others."""
    table = _table([HEADERS.get(column, column) for column in columns])
    for row in rows.head(most).to_dict("records"):
        table.add_row(*(_text(column, row[column]) for column in columns))
    yield table
    if len(rows) > most:
        yield f"and {len(rows) - most} more"


def _text(column: str, value: Any) -> str:
    if column == "contribution":
        return f"{value:+.3f}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _bar(value: float, longest: float) -> str:
    return ("▇" if value >= 0 else "░") * round(BAR * abs(value) / max(longest, 1e-30))

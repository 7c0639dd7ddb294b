"""What every experiment returns: a frozen dataclass of dataframes, arrays and plain values, with a summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, Protocol

import pandas as pd

from arithscope.measures import Mean, average

AVERAGE = "mean"  # the row of a table that averages over operators, each weighing the same
MEAN = [field.name for field in fields(Mean)]  # the columns of a table that make up a mean


class Result(Protocol):
    """A dataclass whose fields are dataframes, numpy arrays, or plain values that JSON can hold."""

    def summary(self) -> dict[str, Any]:
        """Headline numbers by operator: means as {value, low, high, n}, or plain values."""


def mean_entry(row: Any) -> dict[str, Any]:
    """The columns of a table's row that make up a mean: value, low, high, n."""
    return {name: row[name] for name in MEAN}


def strongest(rows: pd.DataFrame, name: Callable[[Any], str]) -> dict[str, Any]:
    """Of a table of effects the largest one: its mean with interval, its median, and the name of the component."""
    best = rows.iloc[int(rows.value.argmax())]
    return {**mean_entry(best), "median": best["median"], "component": name(best)}


def of_neuron(table: pd.DataFrame, operator: str, layer: int, neuron: int) -> pd.DataFrame:
    """The rows of a table that are about one neuron under one operator."""
    return table[(table.operator == operator) & (table.layer == layer) & (table.neuron == neuron)]


def by_operator(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """A table with the columns operator, measure, value, low, high, n as {operator: {measure: {value, low, high, n}}}."""
    out: dict[str, dict[str, Any]] = {}
    for row in table.to_dict("records"):
        operator, measure = str(row.pop("operator")), str(row.pop("measure"))
        out.setdefault(operator, {})[measure] = row
    return out


def with_average(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the columns operator, measure and those of a mean as such a table, with averages as in `table_of`."""
    measured: dict[str, dict[str, Mean]] = {}
    for row in rows.to_dict("records"):
        measured.setdefault(str(row["operator"]), {})[str(row["measure"])] = Mean(**mean_entry(row))
    return table_of(measured)


def table_of(measured: Mapping[str, Mapping[str, Mean]]) -> pd.DataFrame:
    """{operator: {measure: mean}} as such a table, with a row behind for the average over the operators that have it."""
    names = list(dict.fromkeys(m for means in measured.values() for m in means))
    averages = {m: average([means[m] for means in measured.values() if m in means]) for m in names}
    rows = [
        {"operator": operator, "measure": m, **asdict(mean)}
        for operator, means in [*measured.items(), (AVERAGE, averages)]
        for m, mean in means.items()
    ]
    return pd.DataFrame(rows)

"""What every experiment returns: a frozen dataclass of dataframes, arrays and plain values, with a summary."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.stats.measures import Mean, average

AVERAGE = "mean"  # the row of a table that averages over operators, each weighing the same
MEAN = [field.name for field in fields(Mean)]  # the columns of a table that make up a mean


class Shown:
    """A dataclass (with `repr=False`) that says of its fields how large they are, instead of printing all of them."""

    def __repr__(self) -> str:
        fields_said = (f"{name}={_in_short(value)}" for name, value in self._fields())
        return f"{type(self).__name__}({', '.join(fields_said)})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{name}</th><td>{html.escape(_said(value))}</td></tr>" for name, value in self._fields()
        )
        return f"<b>{type(self).__name__}</b><table>{rows}</table>"

    def _fields(self) -> Iterator[tuple[str, Any]]:
        for field in fields(self):  # type: ignore[arg-type]  # every class of this kind is a dataclass
            yield field.name, getattr(self, field.name)


class Result(Shown):
    """A dataclass whose fields are dataframes, numpy arrays, or plain values that JSON can hold."""

    def summary(self) -> dict[str, Any]:
        """Headline numbers by operator: means as {value, low, high, n}, or plain values."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        found = pd.DataFrame(list(numbers_of(self.summary())), columns=["operator", "measure", *MEAN])
        if found.empty:
            return super()._repr_html_()
        found["shown"] = [_interval(row) for row in found.to_dict("records")]
        table = found.pivot(index="measure", columns="operator", values="shown")
        table = table.loc[found.measure.unique(), found.operator.unique()].fillna("")
        return super()._repr_html_() + table.rename_axis(index=None, columns=None).to_html()


def _said(value: Any) -> str:
    if isinstance(value, pd.DataFrame):
        return f"{len(value):,} rows of {', '.join(map(str, value.columns))}"
    if isinstance(value, np.ndarray):
        return f"{' × '.join(f'{n:,}' for n in value.shape)} {value.dtype}"
    return _shortened(repr(value), 200)


def _in_short(value: Any) -> str:
    """For one line of a terminal: tables without the names of their columns."""
    return f"{len(value):,} rows" if isinstance(value, pd.DataFrame) else _shortened(_said(value), 80)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _interval(mean: Mapping[Any, Any]) -> str:
    if pd.isna(mean["low"]):
        return "–" if pd.isna(mean["value"]) else f"{mean['value']:.4g}"
    return f"{mean['value']:.3f} [{mean['low']:.3f}, {mean['high']:.3f}]"


def numbers_of(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The means and plain numbers of a summary, one by one; names and texts are left out."""
    for operator, entries in summary.items():
        for measure, entry in entries.items():
            named = {"operator": operator, "measure": measure}
            if isinstance(entry, dict):
                yield {**named, **mean_entry(entry)}
            elif isinstance(entry, int | float) and not isinstance(entry, bool):
                yield {**named, "value": float(entry)}


class ByNeuron:
    """Finds the rows of a table that are about one neuron, or one layer, of an operator without looking at all of them."""

    def __init__(self, table: pd.DataFrame):
        self.table = table
        self._operators = {str(o): i for i, o in enumerate(table.operator.unique())}
        operator = table.operator.map(self._operators).to_numpy(dtype=np.int64)
        codes = (operator << 48) + (table.layer.to_numpy(dtype=np.int64) << 32) + table.neuron.to_numpy(dtype=np.int64)
        self._order = np.argsort(codes, kind="stable")
        self._codes = codes[self._order]

    def places(self, operator: str, layer: int, neuron: int | None = None) -> NDArray[np.int64]:
        """Which rows they are, in the table's order; of all neurons of the layer if none is named."""
        if operator not in self._operators or not 0 <= layer < 2**15 or not 0 <= (neuron or 0) < 2**31:
            return np.empty(0, dtype=np.int64)
        # int: of a dataframe's int32, the bits that are shifted out would be lost.
        first = (self._operators[operator] << 48) + (int(layer) << 32) + int(neuron or 0)
        end = first + (2**31 if neuron is None else 1)
        low, high = np.searchsorted(self._codes, [first, end])
        return np.sort(self._order[low:high])

    def rows(self, operator: str, layer: int, neuron: int | None = None) -> pd.DataFrame:
        return self.table.iloc[self.places(operator, layer, neuron)]


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

"""What every experiment returns: a frozen dataclass of tables, arrays and plain values, with a summary."""

import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.experiments.common.schema import Array, Table, Value
from arithscope.stats.intervals import Mean, average

AVERAGE = "mean"  # row of a table that averages over operators, each with the same weight
MEAN = [each.name for each in fields(Mean)]  # columns of a table that make up a mean


class Described:
    """A dataclass (with `repr=False`) that shows the sizes of its fields instead of printing them."""

    def __repr__(self) -> str:
        held = (f"{name}={_described(value, brief=True)}" for name, value in self._contents())
        return f"{type(self).__name__}({', '.join(held)})"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{name}</th><td>{html.escape(_described(held))}</td></tr>" for name, held in self._contents())
        return f"<b>{type(self).__name__}</b><table>{''.join(rows)}</table>"

    def _contents(self) -> Iterator[tuple[str, Any]]:
        for each in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            yield each.name, getattr(self, each.name)


class Result(Described):
    """Base class of results: a frozen dataclass whose fields are declared with the functions of `schema`."""

    table: pd.DataFrame  # a summary table, in most results

    def __post_init__(self) -> None:
        """A table made of no rows has no columns; it gets those that are declared."""
        for name, declared in self.schema().items():
            if isinstance(declared, Table) and getattr(self, name).columns.empty:
                object.__setattr__(self, name, self.frame(name, []))

    @classmethod
    def schema(cls) -> dict[str, Table | Array | Value]:
        """What each field holds."""
        return {each.name: each.metadata["schema"] for each in fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def columns(cls, name: str) -> list[str]:
        """Names of the columns declared for a table."""
        return cls.schema()[name].names  # type: ignore[union-attr]  # only tables have columns

    @classmethod
    def frame(cls, name: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
        """Rows as a table with its declared columns."""
        return pd.DataFrame(list(rows), columns=cls.columns(name))

    def summary(self) -> dict[str, Any]:
        """Measures by operator, by default the rows of `table`: means as {value, low, high, n}, or plain values."""
        return by_operator(self.table)

    def _repr_html_(self) -> str:
        means = pd.DataFrame(list(summary_numbers(self.summary())), columns=["operator", "measure", *MEAN])
        if means.empty:
            return super()._repr_html_()
        means["shown"] = [_interval(row) for row in means.to_dict("records")]
        shown = means.pivot(index="measure", columns="operator", values="shown")
        shown = shown.loc[means.measure.unique(), means.operator.unique()].fillna("")
        return super()._repr_html_() + shown.rename_axis(index=None, columns=None).to_html()


def _described(value: Any, brief: bool = False) -> str:
    if isinstance(value, pd.DataFrame):
        return f"{len(value):,} rows" + ("" if brief else f" of {', '.join(map(str, value.columns))}")
    if isinstance(value, np.ndarray):
        return f"{' × '.join(f'{n:,}' for n in value.shape)} {value.dtype}"
    text, length = repr(value), 80 if brief else 200
    return text if len(text) <= length else text[: length - 1] + "…"


def _interval(mean: Mapping[Any, Any]) -> str:
    if pd.isna(mean["low"]):
        return "–" if pd.isna(mean["value"]) else f"{mean['value']:.4g}"
    return f"{mean['value']:.3f} [{mean['low']:.3f}, {mean['high']:.3f}]"


def summary_numbers(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The means and plain numbers of a summary as rows; texts and lists are skipped."""
    for operator, entries in summary.items():
        for measure, entry in entries.items():
            row = {"operator": operator, "measure": measure}
            if isinstance(entry, dict):
                yield {**row, **mean_entry(entry)}
            elif isinstance(entry, int | float) and not isinstance(entry, bool):
                yield {**row, "value": float(entry)}


class NeuronRows:
    """Finds the rows of a table about one neuron, or one layer, of an operator by binary search."""

    def __init__(self, table: pd.DataFrame):
        self.table = table
        self._operators = {str(o): i for i, o in enumerate(table.operator.unique())}
        operator = table.operator.map(self._operators).to_numpy(dtype=np.int64)
        codes = (operator << 48) + (table.layer.to_numpy(dtype=np.int64) << 32) + table.neuron.to_numpy(dtype=np.int64)
        self._order = np.argsort(codes, kind="stable")
        self._codes = codes[self._order]

    def places(self, operator: str, layer: int, neuron: int | None = None) -> NDArray[np.int64]:
        """Row numbers in the table's order; of the whole layer if no neuron is given."""
        if operator not in self._operators or not 0 <= layer < 2**15 or not 0 <= (neuron or 0) < 2**31:
            return np.empty(0, dtype=np.int64)
        # int(): shifting a dataframe's int32 would lose bits.
        first = (self._operators[operator] << 48) + (int(layer) << 32) + int(neuron or 0)
        end = first + (2**31 if neuron is None else 1)
        low, high = np.searchsorted(self._codes, [first, end])
        return np.sort(self._order[low:high])

    def rows(self, operator: str, layer: int, neuron: int | None = None) -> pd.DataFrame:
        return self.table.iloc[self.places(operator, layer, neuron)]


def mean_entry(row: Any) -> dict[str, Any]:
    """The columns of a row that make up a mean: value, low, high, n."""
    return {name: row[name] for name in MEAN}


def strongest(rows: pd.DataFrame, name: Callable[[Any], str]) -> dict[str, Any]:
    """The largest effect of a table: its mean with interval, its median, and the component's name."""
    best = rows.iloc[int(rows.value.argmax())]
    return {**mean_entry(best), "median": best["median"], "component": name(best)}


def of_operator(effects: pd.DataFrame, operator: str, measure: str) -> pd.DataFrame:
    """The rows of a table of effects about one operator, by one effect measure."""
    return effects[(effects.operator == operator) & (effects.measure == measure)]


def of_neuron(table: pd.DataFrame, operator: str, layer: int, neuron: int) -> pd.DataFrame:
    """The rows of a table about one neuron under one operator."""
    return table[(table.operator == operator) & (table.layer == layer) & (table.neuron == neuron)]


def by_operator(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """A summary table as {operator: {measure: {value, low, high, n}}}."""
    out: dict[str, dict[str, Any]] = {}
    for row in table.to_dict("records"):
        out.setdefault(str(row.pop("operator")), {})[str(row.pop("measure"))] = row
    return out


def with_average(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with operator, measure and the columns of a mean as a summary table, averages included."""
    entries = by_operator(rows[["operator", "measure", *MEAN]])
    return summary_table({o: {m: Mean(**entry) for m, entry in own.items()} for o, own in entries.items()})


def summary_table(measured: Mapping[str, Mapping[str, Mean]]) -> pd.DataFrame:
    """{operator: {measure: mean}} as a summary table, with a last row per measure for the average over operators."""
    names = list(dict.fromkeys(m for means in measured.values() for m in means))
    averages = {m: average([means[m] for means in measured.values() if m in means]) for m in names}
    with_averages = {**measured, AVERAGE: averages}.items()
    return pd.DataFrame([row for operator, means in with_averages for row in mean_rows(means, operator=operator)])


def mean_rows(means: Mapping[str, Mean], **key: Any) -> list[dict[str, Any]]:
    """{measure: mean} as rows of a table: the key, `measure`, and the columns of a mean."""
    return [{**key, "measure": measure, **asdict(mean)} for measure, mean in means.items()]

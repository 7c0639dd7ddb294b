"""Declaring what a result holds: the columns of its tables, the axes of its arrays, its plain values.

    @dataclass(frozen=True, repr=False)
    class Overlap(Result):
        table: pd.DataFrame = schema.table("Overlap of two operators' top neurons.", schema.OPERATOR, schema.number("iou", "…"))

This is the only declaration: stored files are checked against it, `verify` matches rows by its keys, and the documentation's
tables of columns are generated from it.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column of a stored table. Key columns together identify a row."""

    name: str
    doc: str
    key: bool = False
    kind: str = field(kw_only=True)  # text, integer, number, boolean or list


text = partial(Column, kind="text")
integer = partial(Column, kind="integer")
number = partial(Column, kind="number")
boolean = partial(Column, kind="boolean")
listing = partial(Column, kind="list")


@dataclass(frozen=True)
class Table:
    """A stored table. If `unique`, readers rely on keys not repeating, and a table that repeats a key is rejected."""

    doc: str
    columns: tuple[Column, ...]
    unique: bool = False

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def keys(self) -> list[str]:
        return [column.name for column in self.columns if column.key]


@dataclass(frozen=True)
class Array:
    doc: str
    dtype: str
    axes: str


@dataclass(frozen=True)
class Value:
    doc: str


def table(doc: str, *columns: Column, unique: bool = False) -> Any:
    """Declare a field that holds a dataframe with these columns; by default, with those of a summary table."""
    return field(metadata={"schema": Table(doc, columns or SUMMARY_TABLE, unique)})


def array(doc: str, dtype: str, axes: str) -> Any:
    """Declare a field that holds a numpy array."""
    return field(metadata={"schema": Array(doc, dtype, axes)})


def value(doc: str) -> Any:
    """Declare a field that holds a plain value: a number, a string, or a list or dict of these."""
    return field(metadata={"schema": Value(doc)})


STUDIED = "operands, legal answers, and where numbers take several tokens the layout and the answer step"
OPERATOR = text("operator", "one of `+ - * /`", key=True)
LAYER = integer("layer", "layer, from 0", key=True)
STEP = integer("step", "answer step, from 1", key=True)
HEAD = integer("head", "attention head, from 0", key=True)
NEURON = integer("neuron", "neuron of the layer's MLP, from 0", key=True)
POSITION = text(
    "position",
    "token position: `op1`, `operator`, `op2` or `last`; with several tokens a number, `op1.1`, `answer.1`",
    key=True,
)
HEAD_KEY, NEURON_KEY = (OPERATOR, LAYER, HEAD), (OPERATOR, LAYER, NEURON)
PROMPT_KEY = (OPERATOR, integer("op1", "first operand", key=True), integer("op2", "second operand", key=True))
MEASURE = text("measure", "what is averaged", key=True)
EFFECT_MEASURE = text("measure", "effect measure: `probability` (Eq. 1), `log_ratio` or `logit`", key=True)
METHOD = text("method", "`exact` patching, or the attribution method that estimated the effect")
CRITERION = text("criterion", "`raw`: every match; `calibrated`: calibrated matches only", key=True)
CRITERION_KEY = (OPERATOR, CRITERION)
MEAN_COLUMNS = (
    number("value", "the mean"),
    number("low", "lower end of its 95 % interval"),
    number("high", "upper end of its 95 % interval"),
    number("n", "number of values averaged"),
)
EFFECT_COLUMNS = (
    *MEAN_COLUMNS,
    number("median", "median over prompts"),
    number("mean_abs", "mean of the absolute effect over prompts"),
    number("std", "standard deviation over prompts"),
)
MEASURED = (MEASURE, *MEAN_COLUMNS)
SUMMARY_TABLE = (OPERATOR, *MEASURED)

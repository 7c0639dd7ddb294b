"""What every experiment returns: a frozen dataclass of dataframes, arrays and plain values, with a summary."""

from __future__ import annotations

from typing import Any, Protocol

import pandas as pd


class Result(Protocol):
    """A dataclass whose fields are dataframes, numpy arrays, or plain values that JSON can hold."""

    def summary(self) -> dict[str, Any]:
        """Headline numbers by operator."""


def by_operator(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """A table with the columns operator, measure, value, low, high, n as {operator: {measure: {value, low, high, n}}}."""
    out: dict[str, dict[str, Any]] = {}
    for row in table.to_dict("records"):
        operator, measure = str(row.pop("operator")), str(row.pop("measure"))
        out.setdefault(operator, {})[measure] = row
    return out

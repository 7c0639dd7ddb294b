"""What all results share: the rows of a neuron, against plain masks, and how results are displayed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arithscope.experiments.common import schema
from arithscope.experiments.common.result import NeuronRows, Result, summary_numbers
from arithscope.experiments.common.schema import Table
from arithscope.experiments.common.stage import Stage
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.store import RunFolder
from tests.markup import tags, words

operators = st.sampled_from("+-*/")
layers = st.sampled_from([0, 1, 2, 31, 32, 79, 2**15 - 1])
neurons = st.sampled_from([0, 1, 2, 511, 14335, 2**31 - 1])
places = st.tuples(operators, layers, st.none() | neurons)


def table(rows: list[tuple[str, int, int]]) -> pd.DataFrame:
    """A table whose index does not count its rows, as in a selection from a larger table."""
    columns = {name: list(x) for name, x in zip(("operator", "layer", "neuron"), zip(*rows, strict=True), strict=False)}
    frame = pd.DataFrame(columns, columns=["operator", "layer", "neuron"])
    frame = frame.astype({"layer": np.int32, "neuron": np.int32, "operator": str})
    return frame.assign(number=np.arange(len(frame)))[::-1]


@settings(max_examples=50)
@given(st.lists(st.tuples(operators, layers, neurons), max_size=40), st.lists(places, min_size=1, max_size=10))
def test_rows_equal_a_plain_mask(rows: list[tuple[str, int, int]], wanted: list[tuple[str, int, Any]]) -> None:
    frame = table(rows)
    found = NeuronRows(frame)
    for operator, layer, neuron in [*wanted, *rows]:
        mask = (frame.operator == operator) & (frame.layer == layer)
        if neuron is not None:
            mask &= frame.neuron == neuron
        assert found.places(operator, layer, neuron).tolist() == np.flatnonzero(mask).tolist()
        pd.testing.assert_frame_equal(found.rows(operator, layer, neuron), frame[mask])


@settings(max_examples=50)
@given(st.lists(st.tuples(operators, layers, neurons), min_size=1, max_size=20), st.sampled_from([np.int32, np.int64]))
def test_numpy_integers_are_accepted(rows: list[tuple[str, int, int]], kind: Any) -> None:
    """A layer is shifted by more bits than an int32 has."""
    found = NeuronRows(table(rows))
    for operator, layer, neuron in rows:
        assert (
            found.places(operator, kind(layer), kind(neuron)).tolist() == found.places(operator, layer, neuron).tolist()
        )
        assert len(found.places(operator, kind(layer), kind(neuron)))


@pytest.mark.parametrize("place", [("%", 1, 2), ("+", -1, 2), ("+", 1, -1), ("+", 2**20, 2), ("+", 1, 2**40)])
def test_impossible_neurons_are_not_found(place: tuple[str, int, int]) -> None:
    """Numbers too large for their bits must not be taken for another neuron."""
    frame = table([(o, layer, n) for o in "+-" for layer in range(3) for n in range(3)])
    assert len(NeuronRows(frame).places(*place)) == 0


@pytest.fixture(scope="module")
def results(small_run: Any) -> dict[str, Result]:
    folder = RunFolder(small_run)
    return {stage.name: folder.read(stage.result) for stage in all_stages() if not stage.on_request}


def test_the_repr_of_a_result_is_short(results: dict[str, Result]) -> None:
    for name, result in results.items():
        shown = repr(result)
        assert shown.startswith(type(result).__name__ + "("), name
        assert len(shown) < 500, (name, len(shown))
        for field in fields(result):  # type: ignore[arg-type]
            assert f"{field.name}=" in shown
            value = getattr(result, field.name)
            if isinstance(value, pd.DataFrame):
                assert f"{len(value):,} rows" in shown


def test_the_html_of_a_result_shows_every_number_of_its_summary(results: dict[str, Result]) -> None:
    for name, result in results.items():
        shown = words(result)
        for row in summary_numbers(result.summary()):
            assert row["measure"] in shown, name
            if pd.notna(row.get("low")):
                assert f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" in shown, (name, row)
            elif pd.notna(row["value"]):
                assert f"{row['value']:.4g}" in shown, (name, row)


@dataclass(frozen=True, repr=False)
class Hostile(Result):
    table: pd.DataFrame = schema.table("Some rows.", schema.integer("op1", "a number"))
    numbers: np.ndarray[Any, Any] = schema.array("Some numbers.", "float64", "rows, columns")
    name: str = schema.value("A name.")

    def summary(self) -> dict[str, Any]:
        mean = {"value": 0.25, "low": 0.125, "high": 0.5, "n": 3}
        return {"<b>+</b>": {"<script>alert(1)</script>": mean, "a & b": 7, "known": True, "names": ["x"]}, "-": {}}


def test_html_is_escaped() -> None:
    script = "<script>alert('&')</script>"
    hostile = Hostile(pd.DataFrame({"<i>": [1, 2]}), np.zeros((2, 3)), script)
    shown = words(hostile)
    for text in (script, "<script>alert(1)</script>", "a & b", "<b>+</b>", "0.250 [0.125, 0.500]", "2 rows of <i>"):
        assert text in shown
    assert "2 × 3 float64" in shown
    assert tags(hostile) <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}


def test_long_values_are_cut() -> None:
    assert len(repr(Hostile(pd.DataFrame(), np.zeros(0), "long" * 1000))) < 500


def test_summary_numbers_skips_booleans_and_names() -> None:
    found = list(summary_numbers(Hostile(pd.DataFrame(), np.zeros(0), "").summary()))
    assert [(row["measure"], row["value"]) for row in found] == [("<script>alert(1)</script>", 0.25), ("a & b", 7.0)]


@pytest.mark.parametrize("stage", all_stages(), ids=lambda stage: stage.name)
def test_a_table_without_rows_has_the_declared_columns(stage: Stage) -> None:
    """Also one that was made of no rows, and so of no columns."""
    declared = stage.result.schema()
    result = stage.result(
        **{name: pd.DataFrame() if isinstance(held, Table) else None for name, held in declared.items()}
    )
    for name in (name for name, held in declared.items() if isinstance(held, Table)):
        assert list(getattr(result, name).columns) == stage.result.columns(name)

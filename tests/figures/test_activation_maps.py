"""Outlines of rules on activation maps, and texts that name rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.experiments.classify import Classification
from arithscope.experiments.patterns import ActivationMaps
from arithscope.figures.activation_maps import example_neurons, heuristic_gallery, is_legible, outline, rule_map
from arithscope.figures.neurons import share_by_threshold
from arithscope.heuristics.kinds import parse
from arithscope.prompts import whole_numbers
from tests.experiments.test_classify import known
from tests.figures.test_figures import drawn, texts

__all__ = ["known"]  # a fixture


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5))
def test_outline_against_single_edges(cells: list[list[bool]]) -> None:
    """Every edge between a cell of the set and one outside is part of exactly one line, and no other edge is."""
    holds = np.array(cells)

    def inside(a: int, b: int) -> bool:
        return 0 <= a < holds.shape[0] and 0 <= b < 4 and bool(holds[a, b])

    want = set()
    for a in range(-1, holds.shape[0] + 1):
        for b in range(-1, 5):
            if inside(a, b) != inside(a + 1, b):
                want.add((a + 0.5, b - 0.5, a + 0.5, b + 0.5))
            if inside(a, b) != inside(a, b + 1):
                want.add((a - 0.5, b + 0.5, a + 0.5, b + 0.5))
    found = []
    for (x0, y0), (x1, y1) in outline(holds):
        assert (x0 == x1) != (y0 == y1)
        length = int(max(x1 - x0, y1 - y0))
        step = ((x1 - x0) / length, (y1 - y0) / length)
        found += [
            (x0 + i * step[0], y0 + i * step[1], x0 + (i + 1) * step[0], y0 + (i + 1) * step[1]) for i in range(length)
        ]
    assert sorted(found) == sorted(want)


@pytest.mark.parametrize(
    ("text", "legible"),
    [("op1 in [0, 50]", True), ("result in [100, 200]", True), ("op1 mod 9 = 1", False), ("result mod 2 = 0", False)],
)
def test_fine_rules_have_no_outline(text: str, legible: bool) -> None:
    assert is_legible(rule_map(parse(text), "+", whole_numbers(300, 1000))) == legible


def test_panels_show_names(known: tuple[ActivationMaps, Classification]) -> None:
    maps, found = known
    effects = np.arange(len(maps.neurons), 0, -1.0)
    tokens = [np.arange(10)] * len(effects)
    maps = replace(maps, neurons=maps.neurons.assign(effect=effects, tokens=tokens))
    titles = [axes.get_title() for axes in drawn(heuristic_gallery(maps, found)).axes if axes.get_title()]
    named = found.names.drop_duplicates(["kind", "on"])
    assert len(titles) == len(named)
    for row in named.to_dict("records"):
        [title] = [t for t in titles if f"{row['kind']}: {row['heuristic']}" in t]
        assert f"R² {row['fit']:.2f}" in title
    shown = texts(drawn(example_neurons(maps, found)))
    assert {f"name: {name}" for name in found.names.heuristic} == {text.split("\n")[1] for text in shown}


def test_a_neuron_that_fires_negatively_says_so(known: tuple[ActivationMaps, Classification]) -> None:
    maps, found = known
    first = found.names.iloc[:1].assign(sign=-1)
    key = ["operator", "layer", "neuron"]
    own = found.matches.merge(first[key], on=key).assign(sign=-1)
    changed: dict[str, Any] = {"names": first, "matches": own}
    negative = Classification(**{name: changed.get(name, getattr(found, name)) for name in Classification.schema()})
    titles = [axes.get_title() for axes in drawn(heuristic_gallery(maps, negative)).axes]
    assert any(f"fires negatively on {first.heuristic.iloc[0]}" in title for title in titles)


def test_shares_by_threshold_are_those_of_the_table(known: tuple[ActivationMaps, Classification]) -> None:
    _, found = known
    lines = drawn(share_by_threshold(found)).axes[0].lines
    table: pd.DataFrame = found.thresholds
    rows = [rows for _, rows in table.groupby(["operator", "criterion"], sort=False)]
    for line, own in zip(lines, rows, strict=False):
        assert list(line.get_ydata()) == own.value.tolist()
        assert (line.get_linestyle() == "--") == (own.criterion.iloc[0] == "raw")

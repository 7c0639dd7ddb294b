"""The overlap of top neurons against Python's sets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.experiments.overlap import Overlap, overlap
from arithscope.experiments.topk import TopK
from tests.contexts import context
from tests.families import small

Sets = dict[str, set[tuple[int, int]]]


def top_neurons(sets: Sets) -> TopK:
    rows = [(o, layer, 0, n, 0.0) for o, neurons in sets.items() for layer, n in sorted(neurons)]
    top = pd.DataFrame(rows, columns=["operator", "layer", "rank", "neuron", "value"])
    top = top.assign(mean_abs=0.0)
    return TopK(*[pd.DataFrame()] * 4, top, {o: len(neurons) for o, neurons in sets.items()}, "mean", 9, {})


some = st.sets(st.tuples(st.integers(2, 4), st.integers(0, 8)), max_size=12)


@given(st.dictionaries(st.sampled_from("+-*/"), some, min_size=1))
def test_overlaps_equal_set_operations(sets: Sets) -> None:
    found = overlap(context(small("llama"), None, top_neurons(sets)))
    pairs = {frozenset((row.operator, row.other)): row for row in found.table.itertuples()}
    assert len(pairs) == len(found.table) == len(sets) * (len(sets) - 1) // 2
    for pair, row in pairs.items():
        a, b = in_layers_of_all([sets[o] for o in pair])
        assert (row.shared, row.union) == (len(a & b), len(a | b))
        assert row.iou == pytest.approx(len(a & b) / len(a | b)) if a | b else np.isnan(row.iou)
    for row in found.by_layer.itertuples():
        a, b = ({n for n in sets[o] if n[0] == row.layer} for o in (row.operator, row.other))
        assert (row.shared, row.union) == (len(a & b), len(a | b))
    for name in ("shared", "union"):
        assert found.by_layer[name].sum() == found.table[name].sum()
    compared = dict(zip(sets, in_layers_of_all(list(sets.values())), strict=True))
    unique = found.unique.set_index("operator")
    assert set(unique.index) == (set(sets) if len(sets) > 1 else set())
    for operator, row in unique.iterrows():
        own, others = compared[operator], [neurons for o, neurons in compared.items() if o != operator]
        alone = [neuron for neuron in own if not any(neuron in other for other in others)]
        assert row.n == len(own)
        assert row.value == pytest.approx(len(alone) / len(own)) if own else np.isnan(row.value)


def in_layers_of_all(sets: list[set[tuple[int, int]]]) -> list[set[tuple[int, int]]]:
    """Only neurons of layers in which every set has some."""
    return [{n for n in own if all(any(m[0] == n[0] for m in other) for other in sets)} for own in sets]


def test_summary() -> None:
    sets: Sets = {"+": {(2, 1), (2, 2)}, "-": {(2, 1)}, "*": {(3, 1)}}
    found = overlap(context(small("llama"), None, top_neurons(sets)))
    summary = {o: entries["mean_iou"] for o, entries in found.summary().items()}
    assert summary == pytest.approx({"+": 0.5, "-": 0.5, "*": np.nan, "mean": 0.5}, nan_ok=True)
    assert len(found.pairs_with("+")) == 2
    assert overlap(context(small("llama"), None, top_neurons({"+": {(2, 1)}}))).summary() == {}
    assert isinstance(found, Overlap)

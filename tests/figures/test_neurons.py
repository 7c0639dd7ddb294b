"""Figures of single neurons show the numbers of their results, and cope with large, estimated and empty ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from arithscope.experiments.neurons import RECALLED, NeuronEffects
from arithscope.experiments.overlap import overlap
from arithscope.figures.neurons import (
    attribution_against_exact,
    faithfulness_by_neurons,
    neuron_effects,
    neuron_overlap,
)
from tests.contexts import context
from tests.experiments.test_overlap import top_neurons
from tests.families import small
from tests.figures.test_figures import drawn, texts


def many(operators: str, layers: int, neurons: int) -> NeuronEffects:
    """Made-up effects, some of them negative; all estimated, so that there are no exact ones to compare with."""
    keys = [(o, layer, n) for o in operators for layer in range(5, 5 + layers) for n in range(neurons)]
    table = pd.DataFrame(keys, columns=["operator", "layer", "neuron"])
    value = np.random.default_rng(0).normal(0, 1, len(table)) ** 3
    table = table.assign(
        measure="probability", method="atp", value=value, low=value, high=value, n=9, median=0.0, std=1.0
    )
    return NeuronEffects(table, *[pd.DataFrame()] * 3, dict.fromkeys(operators, 5), "cause")


def test_effects_are_sorted_within_their_layer() -> None:
    neurons = many("+-", 3, 20)
    figure = drawn(neuron_effects(neurons))
    rows = neurons.effects[(neurons.effects.operator == "-") & (neurons.effects.layer == 6)]
    want = np.sort(rows.value)[::-1]
    shown = figure.axes[1].lines[2].get_ydata()
    floor = figure.axes[1].get_ylim()[0]
    assert shown == pytest.approx(np.maximum(want, floor))
    assert len(figure.axes[1].lines) == 2 * 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["layer 5", "layer 6", "layer 7", "median"]


def test_many_layers_stay_legible() -> None:
    figure = drawn(neuron_effects(many("+-*/", 40, 30)))
    assert max(figure.get_size_inches()) < 20
    assert len(figure.legends[0].get_texts()) <= 11


def test_the_curve_shows_the_table_and_marks_the_choice(adder_results: dict[str, Any]) -> None:
    topk = adder_results["topk"]
    figure = drawn(faithfulness_by_neurons(topk))
    rows = topk.curve[(topk.curve.circuit == "found") & (topk.curve.measure == "accuracy")]
    lines = figure.axes[1].lines
    assert lines[0].get_ydata() == pytest.approx(rows.value.to_numpy())
    other = topk.curve[(topk.curve.circuit == "by_mean") & (topk.curve.measure == "accuracy")]
    assert lines[2].get_ydata() == pytest.approx(other.value.to_numpy())
    assert list(lines[3].get_xdata()) == [topk.k["+"]]


def test_attribution_methods_show_their_agreement(adder_results: dict[str, Any]) -> None:
    agreement = adder_results["neurons"].agreement
    figure = drawn(attribution_against_exact(adder_results["neurons"]))
    rows = agreement[(agreement.measure == "log_ratio") & (agreement.ranking == "mean_abs")].set_index("method")
    correlations, recalls = figure.axes[2:4]
    assert [bar.get_height() for bar in correlations.patches] == pytest.approx(rows.rank_correlation.tolist())
    assert recalls.lines[1].get_ydata() == pytest.approx(rows.loc["ig", [f"recall_{p}" for p in RECALLED]].tolist())
    notes = texts(drawn(attribution_against_exact(many("+-", 2, 10))))
    assert all("not compared" in text for text in notes)
    assert len(notes) == 2


def test_the_map_shows_the_overlap() -> None:
    """Each pair in the layers that both study."""
    sets = {"+": {(2, 1), (2, 2)}, "-": {(2, 1), (3, 5)}, "*": {(2, 1), (2, 2)}}
    figure = drawn(neuron_overlap(overlap(context(small("llama"), None, top_neurons(sets)))))
    image = figure.axes[0].images[0].get_array()
    assert np.asarray(image) == pytest.approx(np.array([[1, 1 / 2, 1], [1 / 2, 1, 1 / 2], [1, 1 / 2, 1]]))
    for line, want in zip(figure.axes[1].lines, ([0.5], [1.0], [0.5]), strict=True):
        assert list(line.get_ydata()) == pytest.approx(want)
    for few in ({"+": {(2, 1)}}, {"+": set(), "-": set()}):
        drawn(neuron_overlap(overlap(context(small("llama"), None, top_neurons(few)))))


def test_without_any_faithfulness(adder_results: dict[str, Any]) -> None:
    topk = adder_results["topk"]
    drawn(faithfulness_by_neurons(replace(topk, curve=topk.curve.assign(value=np.nan, low=np.nan, high=np.nan))))

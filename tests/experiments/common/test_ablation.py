from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arithscope.experiments.circuit import EVERY_SIZE, head_counts
from arithscope.experiments.common.ablation import (
    TOLERANCE,
    Baseline,
    ablated_scores,
    curve_means,
    mean_ablation,
    measured_curve,
    nested_sets,
    smallest_on_plateau,
)
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.heads import heads
from arithscope.models.engine.sweep import mean_activations
from arithscope.prompts import operand_grid
from arithscope.settings import SampleSizes
from arithscope.stats.intervals import paired_difference, share, unit_mean
from tests.contexts import context
from tests.experiments import plain
from tests.experiments.plain import all_correct
from tests.families import small
from tests.hand_built import copy_and_add


def curve(*values: float) -> pd.DataFrame:
    """The found circuits of an operator, beside others that must not be looked at."""
    sizes = [*range(len(values))]
    found = pd.DataFrame(
        {"operator": "+", "circuit": "found", "size": sizes, "measure": "faithfulness", "value": values}
    )
    others = {"circuit": "random"}, {"operator": "-"}, {"measure": "accuracy"}
    return pd.concat([found, *(found.assign(**other, value=1.0) for other in others)])


def test_the_smallest_circuit_that_also_answers() -> None:
    """Accuracy counts only among the sizes that are faithful enough; 1 is the most accurate size, but not one of them."""
    faithful = curve(0.5, 0.9, 0.98, 0.99, 1.0, 0.99)
    accuracies = [0.3, 0.99, 0.6, 0.79, 0.81, 0.9]
    accurate = (faithful.measure == "accuracy") & (faithful.circuit == "found") & (faithful.operator == "+")
    both = pd.concat([faithful[~accurate], faithful[accurate].assign(value=accuracies)])
    assert smallest_on_plateau(both, "+") == 2
    assert smallest_on_plateau(both, "+", ("faithfulness", "accuracy")) == 4


def test_the_smallest_circuit_on_the_plateau() -> None:
    assert smallest_on_plateau(curve(0.0, 0.5, 0.97, 0.985, 0.97, 1.0), "+") == 3
    assert smallest_on_plateau(curve(0.0, 0.9, 0.91, 0.90), "+") == 1  # the plateau is the best there is, not 1
    assert smallest_on_plateau(curve(1.0, 1.0), "+") == 0
    assert smallest_on_plateau(curve(np.nan, np.nan), "+") == 0
    assert smallest_on_plateau(curve(np.nan, 0.2, 1.0), "+") == 2


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_no_smaller_circuit_reaches_the_plateau(values: list[float]) -> None:
    chosen = smallest_on_plateau(curve(*values), "+")
    assert values[chosen] >= max(values) - TOLERANCE
    assert all(v < max(values) - TOLERANCE for v in values[:chosen])


@given(st.integers(1, 5000))
def test_head_counts_grow_by_at_most_a_tenth(total: int) -> None:
    counts = head_counts(total)
    assert counts[0] == 0
    assert counts[-1] == total
    assert all(a < b for a, b in pairwise(counts))
    assert set(range(min(total, EVERY_SIZE) + 1)) <= set(counts)
    assert all(b <= 1.1 * a + 1 for a, b in pairwise(counts) if a > 0)
    assert len(counts) < EVERY_SIZE + 60


@given(st.integers(0, 1000), st.integers(1, 8))
def test_nested_sets_against_a_loop(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    orders = [random.permutation(size) for _ in range(3)]
    counts = sorted(random.integers(0, size + 1, 4).tolist())
    found = nested_sets(orders, counts)
    assert found.shape == (3 * 4, size)
    for i, order in enumerate(orders):
        for j, n in enumerate(counts):
            assert set(np.flatnonzero(found[i * 4 + j].numpy())) == set(order[:n].tolist())


def test_measures_of_circuits_and_of_random_draws() -> None:
    """Two prompts, two circuits, two draws, by hand."""
    empty, whole_model = np.array([0.0, 0.5]), np.array([1.0, 1.0])
    scores = np.array([[[0.5, 0, 0.1], [1.0, 1, 0.9]], [[1.0, 1, 0.6], [1.0, 1, 0.8]]])  # nl, right, probability
    scale = Baseline(empty, whole_model)
    half, full = scale.measure(scores)
    assert half["faithfulness"].value == pytest.approx(0.75)
    assert half["accuracy"].value == pytest.approx(0.5)
    assert half["p_answer"].value == pytest.approx(0.5)
    assert full["faithfulness"].value == pytest.approx(1.0)
    [draws] = scale.measure_draws(scores[:, None])
    assert draws["faithfulness"] == unit_mean([0.75, 1.0])
    assert draws["accuracy"].value == pytest.approx(0.75)
    change = scale.change(scores[0], scores[1])
    assert change == paired_difference([1.0, 1.0], [0.5, 1.0])


def test_both_curves_in_one_table() -> None:
    """Circuits of two sizes and two draws of random ones, each with the score of the whole model or of the empty circuit."""
    scores = np.zeros((6, 5, 3))
    scores[1::2] = 1.0  # variants go by draw, then by size
    table = measured_curve("+", [0, 3], scores, Baseline(np.zeros(5), np.ones(5)))
    assert len(table) == 2 * 2 * 3
    assert set(table.circuit) == {"found", "random"}
    assert table[table["size"] == 3].value.eq(1).all()
    assert table[table["size"] == 0].value.eq(0).all()
    assert set(zip(table.circuit, table.n, strict=True)) == {("found", 5), ("random", 2)}
    means = curve_means(table, "+")
    assert list(means) == [0, 3]
    assert means[3]["accuracy"] == share(5, 5)
    assert means[3]["random_accuracy"] == share(2, 2)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_mean_ablation_of_neurons_at_all_positions_or_the_last_ones(family: str) -> None:
    """With all heads, against plain hooks: neurons of earlier positions reach the answer too."""
    model = small(family, "sdpa")
    s, prompts = model.sizes, operand_grid("+", 9)[[5, 37, 88]]
    means = mean_activations(model, operand_grid("+", 3))
    slow = plain.means(model, operand_grid("+", 3))
    heads = {(layer, head) for layer in range(s.layers) for head in range(s.heads)}
    keep = torch.ones(1, s.layers, s.heads, dtype=torch.bool)
    some = nested_sets([np.arange(s.neurons)], [0, 9])
    found = []
    for first, at in ((None, None), (model.positions.op2, [model.positions.op2, model.positions.final])):
        edits = mean_ablation(model, means, keep, {0: some, 2: some}, first)
        scores = ablated_scores(model, prompts, edits)
        for i, n in enumerate((0, 9)):
            kept = {0: set(range(n)), 2: set(range(n))}
            want = plain.measures(model, prompts, slow, heads, kept, at)
            assert scores[i, :, 2].mean() == pytest.approx(want["p_answer"], rel=1e-3)
        found.append(scores)
    assert not np.allclose(*found, rtol=1e-2)


def test_a_circuit_without_heads_has_no_roles(adder_results: dict[str, Any]) -> None:
    circuit = adder_results["circuit"]
    circuit = replace(circuit, heads=circuit.heads.assign(in_circuit=False))
    found = heads(context(copy_and_add(), None, adder_results["accuracy"], adder_results["means"], circuit))
    assert len(found.roles) == len(found.attention) == len(found.isolation) == 0
    assert found.summary() == {}


def test_samples_shrink_together_and_stay_disjoint() -> None:
    accuracy = all_correct(small("llama", "sdpa"), "+-", 5)
    for wanted in (SampleSizes(4, 6, 2, 1, 5), SampleSizes(1000, 1000, 2, 1, 1000)):
        for operator, split in split_prompts(accuracy, wanted, 3).items():
            parts = (split.discovery, split.evaluation, split.held_out, split.selection)
            keys = [list(zip(p.op1.tolist(), p.op2.tolist(), strict=True)) for p in parts]
            assert len(set().union(*keys)) == sum(map(len, keys))
            available = len(accuracy.correct(operator))
            assert len(keys[0]) == min(wanted.discovery, available // 4)
            assert len(keys[3]) == min(wanted.selection, available // 4)
            enough = available - 15 if wanted.discovery == 4 else available // 4
            assert len(keys[2]) == enough
            assert np.all(split.counterfactuals.answer != split.discovery.answer)
    assert set(split.counterfactuals.operator.tolist()) == {0, 1}  # counterfactuals come from all operators

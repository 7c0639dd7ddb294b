"""Answer layers by cause: against plain hooks, on the model that adds by hand, and the rule that chooses them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.experiments.answer_layers import answer_layers, first_answer_layer
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.means import means
from arithscope.prompts import operand_grid
from arithscope.settings import SampleSizes, Settings
from tests.contexts import compute, context
from tests.experiments import plain
from tests.families import small
from tests.hand_built import ADDING_LAYER, LAYERS

SIZES = SampleSizes(discovery=3, evaluation=4, first_mlp=1, probe=1, selection=6)


@pytest.mark.parametrize(("family", "attention"), [("llama", "sdpa"), ("gpt_neox", "eager")])
def test_accuracy_without_the_last_mlps_equals_plain_mean_ablation(family: str, attention: str) -> None:
    model = small(family, attention)
    s, accuracy = model.sizes, plain.all_correct(model, "+-", 5)
    ctx = context(model, Settings(max_operand=2, custom_sizes=SIZES), accuracy)
    compute(ctx, means)
    found = answer_layers(ctx)
    slow = plain.means(model, operand_grid("+-*/", 2))
    heads = {(layer, head) for layer in range(s.layers) for head in range(s.heads)}
    curve = found.curve.set_index(["operator", "sample", "layer"])
    assert len(curve) == 2 * 2 * (s.layers + 1)
    for operator, split in split_prompts(accuracy, SIZES, 0).items():
        for sample, prompts in (("selection", split.selection), ("evaluation", split.evaluation)):
            for first in range(s.layers + 1):
                ablated: dict[int, set[int]] = {layer: set() for layer in range(first, s.layers)}
                want = plain.measures(model, prompts, slow, heads, ablated, [model.positions.final])
                row = curve.loc[(operator, sample, first)]
                assert row.value == pytest.approx(want["accuracy"])
                assert row.n == len(prompts)
    left = found.summary()["+"]["accuracy_without"]
    assert left["value"] == curve.loc[("+", "evaluation", found.first_layer["+"])].value


def test_the_hand_built_model_needs_its_adding_layer(adder_results: dict[str, Any]) -> None:
    found = adder_results["answer_layers"]
    assert found.first_layer == {"+": ADDING_LAYER}
    rows = found.curve[found.curve["sample"] == "evaluation"].set_index("layer").value
    assert (rows.loc[ADDING_LAYER + 1 :] == 1).all()  # the MLPs above are distractors
    assert rows[LAYERS] == 1
    assert rows.loc[:ADDING_LAYER].max() < 0.2
    assert adder_results["neurons"].layers_by == "cause"


def test_a_layer_above_the_computation_is_not_an_answer_layer() -> None:
    """The answer survives without the MLPs from layer 4 on, as in a model whose probe named that layer."""
    assert first_answer_layer({6: 1.0, 5: 0.95, 4: 0.82, 3: 0.05, 2: 0.0, 1: 0.3, 0: 0.0}, 0.0) == 3


def test_the_baseline_of_division_is_not_an_answer() -> None:
    """Half of all quotients are 0: an accuracy of .54 says that nothing is computed."""
    accuracy = {2: 1.0, 1: 0.54, 0: 0.5}
    assert first_answer_layer(accuracy, 0.52) == 1
    assert first_answer_layer(accuracy, 0.01) == 0  # .5 is more than a tenth, but there is no earlier layer


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(0, 0.9))
def test_first_answer_layer_against_a_loop(values: list[float], baseline: float) -> None:
    """Ablate one more layer at a time, from the last, until little enough is left."""
    layers = len(values) - 1
    accuracy = dict(enumerate(values))
    want = 0  # also if too much is left without any MLP
    for n in range(1, layers + 1):
        if values[layers - n] <= baseline + (1 - baseline) * 0.1:
            want = layers - n
            break
    assert first_answer_layer(accuracy, baseline) == want

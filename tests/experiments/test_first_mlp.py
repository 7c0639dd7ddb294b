"""How effects of single neurons of the first MLP are found: by exact patching, by attribution, or both."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from arithscope.experiments.common.attribution import attributed_effects
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.mlp0 import ALL_POSITIONS, _effects, _strongest
from arithscope.experiments.neurons import neuron_effects
from arithscope.settings import SampleSizes
from arithscope.stats.effects import EFFECTS
from tests.contexts import context
from tests.experiments import plain
from tests.families import small

SIZES = SampleSizes(discovery=6, evaluation=3, first_mlp=3, probe=50, selection=3)
POSITIONS = ["op1", "operator", "op2"]


def found(method: str) -> pd.DataFrame:
    accuracy = plain.all_correct(small("llama", "sdpa"), "+-", 9)
    ctx = context(small("llama", "sdpa"), None, accuracy, operators=("+", "-"), custom_sizes=SIZES, neurons=method)
    return _effects(ctx, split_prompts(accuracy, SIZES, 0), lambda n: None)


def mean_effects(method: str, operator: str) -> np.ndarray:
    """The oracle: mean effects [positions and their mean, neurons, measures] of all neurons, by the unit functions."""
    model = small("llama", "sdpa")
    split = split_prompts(plain.all_correct(model, "+-", 9), SIZES, 0)[operator]
    some = split.discovery[: SIZES.first_mlp], split.counterfactuals[: SIZES.first_mlp], [0]
    every = np.arange(model.sizes.neurons)[None]
    by_position = []
    for name in POSITIONS:
        at = model.positions.named()[name]
        if method == "exact":
            by_position.append(neuron_effects(model, *some, every, at, advance=lambda n: None)[0].mean(1))
        else:
            by_position.append(attributed_effects(model, *some, method, at, advance=lambda n: None)[0].mean(1))
    return np.stack([*by_position, np.mean(by_position, axis=0)])


@pytest.mark.parametrize("method", ["exact", "atp", "relp", "atp+exact"])
def test_effects_are_exact_or_estimated_as_they_say(method: str) -> None:
    table = found(method)
    attribution = "relp" if method == "relp" else "atp"
    for operator in "+-":
        exact, estimated = mean_effects("exact", operator), mean_effects(attribution, operator)
        own = table[table.operator == operator]
        neurons = exact.shape[1]
        assert len(own) == len(EFFECTS) * (len(POSITIONS) + 1) * neurons
        for i, position in enumerate([*POSITIONS, ALL_POSITIONS]):
            for j, measure in enumerate(EFFECTS):
                rows = own[(own.position == position) & (own.measure == measure)].set_index("neuron").sort_index()
                is_exact = (rows.method == "exact").to_numpy()
                wanted = np.where(is_exact, exact[i, :, j], estimated[i, :, j])
                np.testing.assert_allclose(rows.value, wanted, rtol=1e-3, atol=1e-5)
                assert is_exact.sum() == {"exact": neurons, "atp+exact": round(neurons / 10)}.get(method, 0)
        if method == "atp+exact":  # those with the largest estimates, averaged over positions
            by_estimate = np.argsort(-estimated[-1, :, EFFECTS.index("probability")], kind="stable")
            chosen = own.neuron[own.method == "exact"].unique()
            assert set(chosen) == set(by_estimate[: len(chosen)])
            assert set(_strongest(table, operator, "probability")[: len(chosen)]) == set(chosen)

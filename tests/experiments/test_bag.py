"""The heuristic neurons alone, on a model whose neurons are known; and which pairs of the final bag a checkpoint has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.experiments.bag import FinalClassification, bag, kept_neurons, matched_pairs, share_above_floor
from arithscope.experiments.classify import CRITERIA
from arithscope.experiments.common.samples import split_prompts
from arithscope.settings import PRESETS
from tests.contexts import context
from tests.experiments.bags import Match, made_up
from tests.hand_built import ADDING_LAYER, OPERANDS, copy_and_add

TOP = [(ADDING_LAYER, pair) for pair in range(OPERANDS**2)]


def of_small_first_operands(most: int, calibrated: int) -> list[Match]:
    """The neurons (a, b) with a ≤ most match; those with a ≤ calibrated do so after calibration."""
    return [(layer, p, "op1 in [0, 30]", 0.9, p // OPERANDS <= calibrated) for layer, p in TOP if p // OPERANDS <= most]


def test_accuracy_is_the_share_of_sums_whose_neuron_is_kept(adder_results: dict[str, Any]) -> None:
    classify = made_up("+", TOP, of_small_first_operands(20, 10))
    earlier = (adder_results[name] for name in ("accuracy", "means", "circuit"))
    found = bag(context(copy_and_add(), None, *earlier, classify))
    prompts = split_prompts(adder_results["accuracy"], PRESETS["quick"], 0)["+"].evaluation
    curve = found.curve.set_index(["neurons", "measure"])
    assert curve.loc[("top", "accuracy")].value == 1
    assert curve.loc[("top", "faithfulness")].value == pytest.approx(1, abs=1e-2)
    for name, most in (("raw", 20), ("calibrated", 10)):
        known = float(np.mean(prompts.op1 <= most))
        assert known <= curve.loc[(name, "accuracy")].value <= known + 0.1
        assert curve.loc[(name, "accuracy")].kept == (most + 1) * OPERANDS
        assert curve.loc[(name, "accuracy")].n == len(prompts)
    assert curve.loc[("none", "accuracy")].kept == 0
    assert curve.loc[("none", "accuracy")].value < 0.1
    assert curve.loc[("random", "accuracy")].kept == 11 * OPERANDS
    assert 0.1 < curve.loc[("random", "accuracy")].value < 0.7
    assert found.present.empty
    assert set(found.summary()["+"]) >= {"calibrated_faithfulness", "random_accuracy", "top_accuracy"}
    faithful = curve.xs("faithfulness", level="measure").value
    for name in ("raw", "calibrated", "random"):
        share = found.summary()["+"][f"{name}_above_floor"]
        assert share["value"] == pytest.approx(
            (faithful[name] - faithful["none"]) / (faithful["top"] - faithful["none"])
        )
        assert share["low"] < share["value"] < share["high"]
        assert share["n"] == curve.n[name, "faithfulness"]
    assert set(found.above_floor.neurons) == {"raw", "calibrated", "random"}


@given(st.integers(0, 2**32 - 1), st.floats(0, 0.9), st.floats(0.05, 1))
def test_shares_above_a_floor_do_not_depend_on_the_floor(seed: int, floor: float, share: float) -> None:
    """Neurons that add a share of what all add have that share above any floor; the ratio to the top itself would not."""
    random = np.random.default_rng(seed)
    added = random.uniform(0.05, 0.1, 20)
    found = share_above_floor(floor + share * added, np.full(20, floor), floor + added)
    assert found.value == pytest.approx(share)
    assert found.low <= found.value + 1e-9
    assert found.high >= found.value - 1e-9
    nothing = share_above_floor(np.full(20, floor), np.full(20, floor), floor + added)
    assert nothing.value == pytest.approx(0, abs=1e-9)


def test_without_a_clear_gain_there_is_no_share_above_the_floor() -> None:
    """All top neurons add .1 on half of the prompts and take away as much on the others; or they only take away."""
    floor, top = np.full(20, 0.5), 0.5 + np.tile([0.1, -0.1], 10)
    for most in (top, floor - 0.1, floor):
        found = share_above_floor(floor + 0.1, floor, most)
        assert np.isnan([found.value, found.low, found.high]).all()
        assert found.n == 20


def test_mutual_neurons_and_the_share_of_final_pairs_present(adder_results: dict[str, Any]) -> None:
    """The checkpoint matches a ≤ 20 (10 after calibration), the final model a ≤ 5 and another rule for neurons with a = 30."""
    classify = made_up("+", TOP, of_small_first_operands(20, 10))
    others: list[Match] = [(layer, p, "op2 mod 2 = 0", 0.8, True) for layer, p in TOP[30 * OPERANDS :: 2]]
    final = made_up("+", TOP, [*of_small_first_operands(5, 5), *others])
    earlier = (adder_results[name] for name in ("accuracy", "means", "circuit"))
    found = bag(context(copy_and_add(), None, *earlier, classify, FinalClassification(final)))
    prompts = split_prompts(adder_results["accuracy"], PRESETS["quick"], 0)["+"].evaluation
    curve = found.curve.set_index(["neurons", "measure"])
    for criterion in CRITERIA:
        row = curve.loc[(f"{criterion}_mutual", "accuracy")]
        known = float(np.mean(prompts.op1 <= 5))
        assert row.kept == 6 * OPERANDS
        assert known <= row.value <= known + 0.1
    of_final = 6 * OPERANDS + len(others)
    for row in found.present.to_dict("records"):
        assert row["value"] == pytest.approx(6 * OPERANDS / of_final)
        assert row["n"] == of_final
    assert len(found.present) == 2
    assert found.summary()["+"]["raw_present"]["n"] == of_final
    assert set(found.above_floor.neurons) == {*CRITERIA, "random", *(f"{c}_mutual" for c in CRITERIA)}
    assert (
        0 < found.summary()["+"]["raw_mutual_above_floor"]["value"] < found.summary()["+"]["raw_above_floor"]["value"]
    )


def test_a_mutual_neuron_shares_a_pair() -> None:
    """Another heuristic of the same neuron does not count."""
    here = made_up("+", [(0, 1), (0, 2), (1, 5)], [(0, 1, "op1 = op2", 0.9, True), (0, 2, "op1 mod 2 = 0", 0.9, False)])
    final = made_up("+", [(0, 1), (0, 2)], [(0, 1, "op1 = op2", 0.7, True), (0, 2, "op1 mod 2 = 1", 0.9, True)])
    assert matched_pairs(here, "+", "raw") == {(0, 1, "op1 = op2"), (0, 2, "op1 mod 2 = 0")}
    assert matched_pairs(here, "+", "calibrated") == {(0, 1, "op1 = op2")}
    assert matched_pairs(here, "-", "raw") == set()
    kept = kept_neurons(here, final, "+", np.random.default_rng(0))
    assert kept["raw"].tolist() == [True, True, False]
    assert (
        kept["calibrated"].tolist()
        == kept["raw_mutual"].tolist()
        == kept["calibrated_mutual"].tolist()
        == [True, False, False]
    )
    assert kept["random"].sum() == 1

"""Classification of neurons with known rules, and shares of classified neurons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from arithscope.experiments.classify import ALL_LAYERS, ANY, CALIBRATED, RAW, Classification, classify
from arithscope.experiments.patterns import ActivationMaps
from arithscope.heuristics.kinds import parse
from arithscope.prompts import legal_prompts, operand_grid
from arithscope.settings import SampleSizes
from tests.contexts import context
from tests.families import small

MAX_OPERAND, LIMIT = 60, 200
SIZES = SampleSizes(discovery=1, evaluation=1, first_mlp=1, probe=1, permutations=12)
RULES: dict[str, list[str | None]] = {
    "+": ["op1 in [10, 40]", "op2 mod 3 = 1", "result in [50, 60]", "op1 = op2", None, None],
    "/": ["result in {2, 3}", "op2 ~ .4.", None, None],
}


@pytest.fixture(scope="module")
def known() -> tuple[ActivationMaps, Classification]:
    random = np.random.default_rng(0)
    rows, activations, logits = [], [], []
    for operator, rules in RULES.items():
        for i, text in enumerate(rules):
            rows.append({"operator": operator, "layer": i % 2, "neuron": i})
            field, value = random.standard_normal((MAX_OPERAND + 1) ** 2), random.standard_normal(LIMIT)
            if text is not None:
                rule: Any = parse(text)
                field += 8 * rule.holds(operand_grid(operator, MAX_OPERAND))
                value += 8 * rule.admits(np.arange(LIMIT)) if rule.direct else 0
            activations.append(field.reshape(MAX_OPERAND + 1, -1))
            logits.append(value)
    table = pd.DataFrame(rows)
    patterns = ActivationMaps(table, np.array(activations, dtype=np.float16), np.array(logits, dtype=np.float32))
    return patterns, classify(context(small("llama"), None, patterns, custom_sizes=SIZES))


def test_the_rules_are_found(known: tuple[ActivationMaps, Classification]) -> None:
    _, found = known
    for operator, rules in RULES.items():
        for i, text in enumerate(rules):
            matches = found.of_neuron(operator, i % 2, i)
            calibrated = matches[matches.calibrated].heuristic.tolist()
            assert calibrated == [] if text is None else text in calibrated
            assert (np.diff(matches.neg_log10_p) <= 0).all()
            own = found.neurons[(found.neurons.operator == operator) & (found.neurons.neuron == i)].iloc[0]
            assert own.raw == bool(len(matches))
            assert own.calibrated == (text is not None)


def test_two_operands_or_one(known: tuple[ActivationMaps, Classification]) -> None:
    _, found = known
    for text, two in (("result in [50, 60]", True), ("op1 = op2", True), ("result in {2, 3}", True)):
        row = found.matches[(found.matches.heuristic == text) & found.matches.calibrated].iloc[0]
        assert row.two_operands == two
        assert max(row.op1_only, row.op2_only) < row.score
    assert found.matches[found.matches.heuristic == "op1 in [10, 40]"].two_operands.isna().all()


def test_coverage_is_the_share_of_explained_variance(known: tuple[ActivationMaps, Classification]) -> None:
    """A rule of strength 8 in noise of deviation 1 explains 64·p·(1−p) / (64·p·(1−p) + 1) of the variance."""
    _, found = known
    prompts = legal_prompts("+", MAX_OPERAND, LIMIT)
    for i, text in enumerate(RULES["+"]):
        own = found.neurons[(found.neurons.operator == "+") & (found.neurons.neuron == i)].iloc[0]
        assert own.coverage_raw >= own.coverage_calibrated - 1e-9
        if text is None:
            assert own.coverage_calibrated == 0
        else:
            p = parse(text).holds(prompts).mean()
            signal = 64 * p * (1 - p)
            assert own.coverage_calibrated == pytest.approx(signal / (signal + 1), abs=0.05)


def test_shares(known: tuple[ActivationMaps, Classification]) -> None:
    _, found = known
    shares = found.shares.set_index(["operator", "layer", "kind", "on", "criterion"])
    for operator, rules in RULES.items():
        of_all = shares.loc[(operator, ALL_LAYERS, ANY, ANY, CALIBRATED)]
        assert of_all.value == pytest.approx(np.mean([text is not None for text in rules]))
        assert of_all.n == len(rules)
        for layer in (0, 1):
            mine = rules[layer::2]
            share = shares.loc[(operator, layer, ANY, ANY, CALIBRATED)]
            assert (share.value, share.n) == (np.mean([text is not None for text in mine]), len(mine))
        raw = shares.xs(RAW, level="criterion").value
        assert (raw >= shares.xs(CALIBRATED, level="criterion").value).all()
    assert shares.loc[("+", ALL_LAYERS, "identical", "op1, op2", CALIBRATED)].value == pytest.approx(1 / 6)
    summary = found.summary()
    assert summary["+"]["calibrated_share"]["value"] == pytest.approx(4 / 6)
    assert summary["mean"]["calibrated_share"]["value"] == pytest.approx((4 / 6 + 2 / 4) / 2)


def test_each_kind_has_a_best_heuristic(known: tuple[ActivationMaps, Classification]) -> None:
    _, found = known
    best = found.best[(found.best.operator == "+") & (found.best.neuron == 4)]
    assert len(best) == len(best.drop_duplicates(["kind", "on"])) == 10
    assert not best.calibrated.any()


def test_results_do_not_depend_on_the_size_of_units(
    known: tuple[ActivationMaps, Classification], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One neuron in each unit; false-discovery rates still refer to all neurons of the operator."""
    patterns, whole = known
    monkeypatch.setattr("arithscope.experiments.classify.NEURONS_IN_UNIT", 1)
    alone = classify(context(small("llama"), None, patterns, custom_sizes=SIZES))
    for table in ("matches", "best", "neurons", "shares", "table"):
        pd.testing.assert_frame_equal(getattr(alone, table), getattr(whole, table))

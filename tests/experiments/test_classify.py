"""Classification of neurons with known rules, and shares of classified neurons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from arithscope.experiments.classify import ALL_LAYERS, ANY, CALIBRATED, ONCE, RAW, Classification, classify
from arithscope.experiments.common.association import association
from arithscope.experiments.patterns import ActivationMaps
from arithscope.heuristics.kinds import parse
from arithscope.prompts import legal_prompts, operand_grid, whole_numbers
from arithscope.settings import SampleSizes
from tests.contexts import context
from tests.families import small

MAX_OPERAND, LIMIT = 60, 200
STUDIED = whole_numbers(MAX_OPERAND, LIMIT).as_json()
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
    arrays = np.array(activations, dtype=np.float16), np.array(logits, dtype=np.float32)
    patterns = ActivationMaps(table, *arrays, STUDIED)
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
            assert own.raw == bool((matches.sign == 1).any())
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
    every_way = found.shares.set_index(["operator", "layer", "kind", "on", "criterion", "counting"])
    shares = every_way.xs(ANY, level="counting")
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


def test_each_neuron_is_counted_once(known: tuple[ActivationMaps, Classification]) -> None:
    """In every layer the shares of kinds add up to the share of classified neurons; counting every match gives more."""
    _, found = known
    key, s = ["operator", "layer", "criterion"], found.shares
    classified = s[(s.kind == ANY) & (s.counting == ANY)].set_index(key).value
    by_kind = s[s.kind != ANY].groupby([*key, "counting"]).value.sum().unstack("counting")
    assert by_kind[ONCE].to_numpy() == pytest.approx(classified.loc[by_kind.index].to_numpy())
    assert (by_kind[ANY] >= by_kind[ONCE] - 1e-9).all()
    assert (by_kind[ANY] > by_kind[ONCE] + 0.1).any()
    assert s[(s.kind == ANY) & (s.counting == ONCE)].set_index(key).value.equals(classified)


def test_names(known: tuple[ActivationMaps, Classification]) -> None:
    _, found = known
    names = found.names.set_index(["operator", "neuron"])
    want = {(o, i): text for o, rules in RULES.items() for i, text in enumerate(rules) if text is not None}
    assert names.heuristic.to_dict() == want
    assert (names.fit > 0.3).all()
    assert "op1 in [10, 40]" not in names.loc[("+", 0)].aliases


def test_shares_by_threshold(known: tuple[ActivationMaps, Classification]) -> None:
    _, found = known
    t = found.thresholds.set_index(["operator", "criterion", "threshold"]).value.sort_index()
    for operator, measures in found.summary().items():
        if operator in RULES:
            for criterion in (RAW, CALIBRATED):
                shares = t.loc[(operator, criterion)]
                assert shares.index.tolist() == [0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
                assert shares[0.6] == pytest.approx(measures[f"{criterion}_share"]["value"])
                assert (np.diff(shares) <= 0).all()
    assert (t.xs(RAW, level="criterion") >= t.xs(CALIBRATED, level="criterion")).all()
    assert (found.neurons.raw == (found.neurons.best_score >= 0.6)).all()


def test_matches_that_one_operand_explains(known: tuple[ActivationMaps, Classification]) -> None:
    _, found = known
    for operator in RULES:
        tested = [x for x in found.matches[found.matches.operator == operator].two_operands if not np.isnan(x)]
        mean = found.summary()[operator]["one_operand_share_of_matches"]
        assert (mean["value"], mean["n"]) == (tested.count(0) / len(tested), len(tested))


def parity(gated: bool, on_even: float, on_odd: float) -> Classification:
    """A neuron of + with one mean activation on even op1 and another on odd op1, and noise of deviation 0.1; beside noise."""
    random, size = np.random.default_rng(0), MAX_OPERAND + 1
    even = (np.arange(size) % 2 == 0)[:, None]
    activations = random.standard_normal((6, size, size)) / 10
    activations[0] += np.where(even, on_even, on_odd)
    table = pd.DataFrame({"operator": "+", "layer": 1, "neuron": range(6)})
    logits = random.standard_normal((6, LIMIT))
    maps = ActivationMaps(table, activations.astype(np.float16), logits.astype(np.float32), STUDIED)
    return classify(context(small("llama" if gated else "gpt2"), None, maps, custom_sizes=SIZES))


def rules_of(found: Classification, criterion: str) -> set[tuple[str, int]]:
    rows = found.matched("+", criterion)
    rows = rows[(rows.neuron == 0) & ~rows.direct]
    return set(zip(rows.heuristic, rows.sign, strict=True))


EVEN, ODD = "op1 mod 2 = 0", "op1 mod 2 = 1"


def associated(found: Classification, criterion: str) -> set[int]:
    """Parities of op1 on which the neuron fires, by its matches with parities. (By chance it also matches wide ranges.)"""
    own = found.matches[found.matches.heuristic.isin([EVEN, ODD]) & (found.matches.neuron == 0)]
    bag, prompts = association(replace(found, matches=own), "+", criterion), operand_grid("+", 1)
    return set(prompts.op1[bag.best_scores(prompts)[0] > 0].tolist())


def test_a_neuron_that_detects_even_numbers_does_not_match_odd_ones() -> None:
    """GELU: where it does not fire, it is slightly negative, which is no match."""
    found = parity(gated=False, on_even=2.0, on_odd=-0.1)
    for criterion in (RAW, CALIBRATED):
        assert (EVEN, 1) in rules_of(found, criterion)
        assert ODD not in {rule for rule, _ in rules_of(found, criterion)}
        assert associated(found, criterion) == {0}
    assert (found.matches.sign == 1).all()
    assert (found.best.sign == 1).all()


def test_a_gated_neuron_may_fire_negatively() -> None:
    found = parity(gated=True, on_even=0.5, on_odd=-2.0)
    assert ODD not in {rule for rule, _ in rules_of(found, RAW)}
    assert (ODD, -1) in rules_of(found, CALIBRATED)
    assert (EVEN, 1) in rules_of(found, RAW)
    assert associated(found, RAW) == {0}
    assert associated(found, CALIBRATED) == {0, 1}


def test_a_gated_neuron_that_is_less_active_does_not_fire_negatively() -> None:
    found = parity(gated=True, on_even=2.0, on_odd=0.5)
    for criterion in (RAW, CALIBRATED):
        assert ODD not in {rule for rule, _ in rules_of(found, criterion)}
        assert associated(found, criterion) == {0}


def test_a_neuron_that_only_fires_negatively() -> None:
    """Only its negative matches are calibrated: it has no raw match, and is shown apart."""
    found = parity(gated=True, on_even=-0.5, on_odd=-2.0)
    negative = found.matches[(found.matches.neuron == 0) & found.matches.calibrated]
    assert set(negative.sign) == {-1, 1}  # less negative on even numbers: the largest activations
    odd = found.matches[(found.matches.neuron == 0) & (found.matches.heuristic == ODD)]
    only = replace(found, matches=odd)
    assert only.matched("+", RAW).empty
    assert len(only.matched("+", CALIBRATED)) == len(only.of_neuron("+", 1, 0)) == 1
    uncertain = replace(found, matches=odd.assign(calibrated=False))
    for criterion in (RAW, CALIBRATED, None):
        assert uncertain.matched("+", criterion).empty
    assert found.summary()["+"]["negative_only_share"]["value"] == 0


def test_neurons_with_negative_matches_alone_are_counted() -> None:
    """Noise that fires negatively on a tenth of the prompts."""
    random, size = np.random.default_rng(0), MAX_OPERAND + 1
    activations = random.standard_normal((4, size, size))
    activations[0] -= 8 * (np.arange(size) % 9 == 4)[:, None]
    maps = ActivationMaps(
        pd.DataFrame({"operator": "+", "layer": 1, "neuron": range(4)}),
        activations.astype(np.float16),
        random.standard_normal((4, LIMIT)).astype(np.float32),
        STUDIED,
    )
    found = classify(context(small("llama"), None, maps, custom_sizes=SIZES))
    own, summary = found.matches[found.matches.neuron == 0], found.summary()["+"]
    assert set(own[own.calibrated].heuristic) >= {"op1 mod 9 = 4"}
    assert set(own[own.calibrated].sign) == {-1}
    assert summary["negative_only_share"]["value"] == summary["calibrated_share"]["value"] == 1 / 4
    assert found.names[["heuristic", "sign"]].values.tolist() == [["op1 mod 9 = 4", -1]]


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
    for table in Classification.schema():
        pd.testing.assert_frame_equal(getattr(alone, table), getattr(whole, table))

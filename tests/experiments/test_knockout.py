"""Knockouts by heuristic: against one prompt at a time, and on a model whose answers depend on known neurons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from arithscope.experiments import knockout as module
from arithscope.experiments.accuracy import Accuracy, as_prompts, measure_accuracy
from arithscope.experiments.classify import CRITERIA, RAW, Classification
from arithscope.experiments.common.association import association
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.knockout import ABLATED, GROUPS, Knockout, knockout
from arithscope.heuristics.kinds import parse
from arithscope.models.load import load
from arithscope.models.model import Model
from arithscope.prompts import Place, Prompts, legal_prompts
from arithscope.settings import SampleSizes, Settings
from tests.contexts import context
from tests.experiments import plain
from tests.experiments.bags import Match, made_up
from tests.experiments.bags import together as both
from tests.hand_built import ADDING_LAYER, MAX_OPERAND, OPERANDS, copy_and_add

SIZES = SampleSizes(discovery=20, evaluation=20, first_mlp=1, probe=1, knockout=12)
SETTINGS = Settings(custom_sizes=SIZES)


def knocked_out(known: Accuracy, classification: Classification, model: Model | None = None) -> Knockout:
    return knockout(context(model or copy_and_add(), SETTINGS, known, classification))


def still_right(model: Model, prompt: Prompts, neurons: list[tuple[int, int]]) -> bool:
    """One prompt through the whole model."""
    z = plain.logits(model, prompt, plain.ablated(model, neurons, [model.positions.final]))
    return int(z.argmax()) == int(model.answers(prompt))


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gptj"])
def test_batched_ablation_equals_one_prompt_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many neurons of all but the first layer match rules that hold for some prompts; several heuristics share a pass."""
    model = load(name)
    known = measure_accuracy(model, legal_prompts("+", 25, model.limit))
    top = [(layer, n) for layer in range(1, model.sizes.layers) for n in range(512)]
    texts = ["op1 in [0, 10]", "op2 mod 2 = 1", "result in [20, 30]"]
    matches: list[Match] = [(*n, texts[i % 3], 0.9, i % 7 > 0) for i, n in enumerate(top)]
    classify = made_up("+", top, matches)
    measured: list[tuple[Any, Any]] = []
    original = module._run

    def watched(ctx: Any, planned: Any, advance: Any) -> Any:
        found = original(ctx, planned, advance)
        measured.extend(zip((test for _, tests in planned for test in tests), found, strict=True))
        return found

    monkeypatch.setattr(module, "_run", watched)
    found = knocked_out(known, classify, model)
    assert len(measured) == 6
    changed = 0
    for test, right in measured:
        for variant, ablated in enumerate(test.ablated):
            neurons = [top[i] for i in np.flatnonzero(ablated)]
            want = [still_right(model, test.prompts[[i]], neurons) for i in range(len(test.prompts))]
            assert right[variant].tolist() == want
            changed += want.count(False)
    assert changed > 5  # there was something to compare
    _check_tables(found, measured)


def _check_tables(found: Knockout, measured: list[tuple[Any, Any]]) -> None:
    """The tables hold the means and differences of what was measured."""
    left = found.accuracy.set_index(["criterion", "heuristic", "ablated", "group"]).value
    gaps = found.differences.set_index(["criterion", "heuristic", "difference"]).value
    for criterion, (test, right) in zip([c for c in CRITERIA for _ in range(3)], measured, strict=True):
        text = str(test.heuristic)
        half = int(test.heuristic.holds(test.prompts).sum())
        groups = dict(zip(GROUPS, (right[:, :half], right[:, half:]), strict=True))
        for variant, ablated in enumerate(ABLATED):
            for group, values in groups.items():
                assert left[criterion, text, ablated, group] == pytest.approx(values[variant].mean())
        own, unmatched, random = groups["associated"].mean(1)
        assert gaps[criterion, text, "prompts"] == pytest.approx(groups["not_associated"][0].mean() - own)
        assert gaps[criterion, text, "unmatched"] == pytest.approx(unmatched - own)
        assert gaps[criterion, text, "random"] == pytest.approx(random - own)
    for row in found.signs.to_dict("records"):
        rows = found.differences[
            (found.differences.criterion == row["criterion"]) & (found.differences.difference == row["difference"])
        ]
        assert (row["above"], row["below"]) == ((rows.value > 0).sum(), (rows.value < 0).sum())
        if row["above"] + row["below"]:
            assert row["p"] == pytest.approx(binomtest(row["above"], row["above"] + row["below"]).pvalue)
    table = found.table.set_index(["operator", "measure"]).value
    rows = found.differences[(found.differences.criterion == RAW) & (found.differences.difference == "prompts")]
    assert table["+", "raw_difference"] == pytest.approx(rows.value.mean())


def adder_bag(rules: list[str]) -> Any:
    """The adder's neuron (a, b) matches every rule that holds for a + b."""
    top = [(ADDING_LAYER, pair) for pair in range(OPERANDS**2)]
    prompts = Prompts(
        *(np.array(x) for x in ([p // OPERANDS for _, p in top], [0] * len(top), [p % OPERANDS for _, p in top]))
    )
    matches = [(*top[i], text, 0.9, True) for text in rules for i in np.flatnonzero(parse(text).holds(prompts))]
    return made_up("+", top, matches)


def known_sums() -> Accuracy:
    model = copy_and_add()
    return measure_accuracy(model, legal_prompts("+", MAX_OPERAND, model.limit))


def test_the_adder_loses_exactly_the_prompts_of_a_rule() -> None:
    """Without the neurons of all pairs that satisfy a rule, those sums are lost and all others are not."""
    rules = ["op1 in [0, 10]", "op2 mod 3 = 1", "result in [20, 30]", "op1 = op2"]
    found = knocked_out(known_sums(), adder_bag(rules))
    left = found.accuracy.set_index(["criterion", "heuristic", "ablated", "group"]).sort_index()
    for criterion in CRITERIA:
        for text in rules:
            own = left.loc[(criterion, text, "own")]
            assert own.loc["associated"].value <= 1 / 12  # without the neurons, an answer may be right by chance
            assert own.loc["not_associated"].value == 1
            unmatched = left.loc[(criterion, text, "unmatched")]
            assert unmatched.loc["associated"].value == 1
            assert unmatched.loc["not_associated"].value < 1 or text == "op1 = op2"  # which has few neurons
    assert found.signs.set_index(["criterion", "difference"]).loc[(RAW, "prompts")].above == 4
    assert found.summary()["+"]["raw_heuristics_hurt_more"] == "4 of 4"


def test_prompts_are_held_out_and_satisfy_their_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    known, seen = known_sums(), []
    original = module._run

    def watched(model: Any, planned: Any, *others: Any) -> Any:
        seen.extend(test for _, tests in planned for test in tests)
        return original(model, planned, *others)

    monkeypatch.setattr(module, "_run", watched)
    knocked_out(known, adder_bag(["op1 in [0, 10]", "op2 mod 3 = 1"]))
    split = split_prompts(known, SIZES, 0)["+"]
    used = {(a, b) for p in (split.discovery, split.evaluation) for a, b in zip(p.op1, p.op2, strict=True)}
    assert len(seen) == 4
    for test in seen:
        pairs = list(zip(test.prompts.op1, test.prompts.op2, strict=True))
        assert not set(pairs) & used
        assert len(set(pairs)) == len(pairs) == 24
        assert test.heuristic.holds(test.prompts).tolist() == [True] * 12 + [False] * 12
        own, unmatched, random = test.ablated
        assert not (own & unmatched).any()
        assert own.sum() == unmatched.sum() == random.sum()
    assert seen[0].prompts.op1.tolist() == seen[2].prompts.op1.tolist()  # the same for both criteria


def test_rules_with_few_neurons_or_prompts_are_not_tested() -> None:
    """Nine neurons are too few; and so are nine prompts, or nine others."""
    top = [(ADDING_LAYER, n) for n in range(100)]
    matches: list[Match] = [
        *((*n, "op1 in [0, 10]", 0.9, False) for n in top[:9]),
        *((*n, "op1 in [0, 20]", 0.9, i > 0) for i, n in enumerate(top[:10])),
        *((*n, "result in {0, 1}", 0.9, True) for n in top),
        *((*n, "result in [0, 60]", 0.9, True) for n in top),
    ]
    found = knocked_out(known_sums(), made_up("+", top, matches))
    assert set(zip(found.accuracy.criterion, found.accuracy.heuristic, strict=True)) == {("raw", "op1 in [0, 20]")}
    none = knocked_out(known_sums(), made_up("+", top, []))
    assert none.accuracy.empty
    assert none.summary() == {}


@pytest.mark.parametrize("rule", ["result in [0, 8]", "result in [9, 60]"])
def test_both_groups_have_the_same_number_of_prompts(rule: str) -> None:
    """Few prompts have a small result; as many others are compared with them, though more were wanted."""
    known, sizes = known_sums(), replace(SIZES, knockout=1000)
    pool = split_prompts(known, sizes, 0)["+"].held_out
    small = int((pool.answer <= 8).sum())
    assert 10 <= small < len(pool) - small
    [test] = module.plan_tests(association(adder_bag([rule]), "+", RAW), pool, sizes.knockout, 0)
    assert test.heuristic.holds(test.prompts).tolist() == [True] * small + [False] * small
    found = knockout(context(copy_and_add(), Settings(custom_sizes=sizes), known, adder_bag([rule])))
    own = found.accuracy[found.accuracy.ablated == "own"]
    assert (own.n == small).all()
    assert found.differences[found.differences.difference == "prompts"].n.tolist() == [small, small]


def test_a_control_needs_enough_unmatched_neurons() -> None:
    """All but twenty neurons match, so there are too few unmatched ones; random ones may include matching neurons."""
    top = [(ADDING_LAYER, n) for n in range(100)]
    classify = made_up("+", top, [(*n, "op1 in [0, 10]", 0.9, True) for n in top[20:]])
    found = knocked_out(known_sums(), classify)
    gaps = found.differences[found.differences.criterion == RAW].set_index("difference")
    assert np.isnan(gaps.value["unmatched"])
    assert gaps.n["unmatched"] == 0
    assert gaps.n["random"] == 12
    assert np.isnan(found.summary()["+"]["raw_vs_unmatched"]["value"])
    left = found.accuracy[found.accuracy.criterion == RAW].set_index(["ablated", "group"])
    assert left.loc["unmatched"].value.isna().all()
    assert left.n.to_dict() == {(a, g): 0 if a == "unmatched" else 12 for a in ABLATED for g in GROUPS}


def test_a_control_needs_enough_neurons_in_every_layer() -> None:
    """As many unmatched neurons as matching ones, but in another layer."""
    top = [(layer, n) for layer in (ADDING_LAYER - 1, ADDING_LAYER) for n in range(20)]
    classify = made_up("+", top, [(*n, "op1 in [0, 10]", 0.9, True) for n in top if n[0] == ADDING_LAYER])
    found = knocked_out(known_sums(), classify)
    assert found.accuracy[found.accuracy.ablated == "unmatched"].value.isna().all()
    assert found.accuracy[found.accuracy.ablated == "random"].value.notna().all()


def test_averages_are_over_the_operators_that_have_the_number() -> None:
    """One operator has raw matches only, so its calibrated numbers are missing."""
    model = copy_and_add()
    known = measure_accuracy(model, legal_prompts("+-", MAX_OPERAND, model.limit))  # a − 0 is right
    right = replace(known, prompts=known.prompts.assign(correct=True, whole=True))
    top = [(ADDING_LAYER, n) for n in range(100)]
    bags = [made_up(o, top, [(*n, "op1 in [0, 10]", 0.9, o == "+") for n in top]) for o in "+-"]
    found = knocked_out(right, both(*bags), model).summary()
    assert "calibrated_difference" in found["+"]
    assert "calibrated_difference" not in found["-"]
    assert found["mean"]["calibrated_difference"]["value"] == found["+"]["calibrated_difference"]["value"]


def test_results_do_not_depend_on_the_size_of_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One heuristic in a pass and a few rows in a batch."""
    rules = ["op1 in [0, 10]", "op2 mod 3 = 1", "result in [20, 40]"]
    whole = knocked_out(known_sums(), adder_bag(rules))
    monkeypatch.setattr(module, "MASK_BYTES", 1)
    monkeypatch.setattr("arithscope.experiments.common.samples.rows_that_fit", lambda *args, **options: 5)
    parts = knocked_out(known_sums(), adder_bag(rules))
    pd.testing.assert_frame_equal(whole.accuracy, parts.accuracy)


def test_operators_without_held_out_prompts_are_left_out() -> None:
    known = known_sums()
    right = np.arange(len(known.prompts)) < 3
    few = replace(known, prompts=known.prompts.assign(correct=right, whole=right))
    bag = adder_bag(["op1 in [0, 10]"])
    assert len(as_prompts(few.prompts[few.prompts.correct], Place())) == 3
    assert knocked_out(few, bag).accuracy.empty
    assert association(bag, "+", RAW).classified.any()

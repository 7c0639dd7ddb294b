"""Knockouts by prompt: a set of neurons for each row of a batch, against one prompt at a time and known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.classify import RAW, Classification
from arithscope.experiments.common.association import association
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.prompt_knockout import (
    ABLATED,
    DRAWS,
    OTHER_HEURISTICS,
    OWN,
    RANDOM,
    REPORTED,
    UNASSOCIATED,
    WAYS,
    AblationScores,
    PromptKnockout,
    ablated_by_prompt,
    choose_neurons,
    first_by_rank,
    prompt_knockout,
    sizes_to_try,
)
from arithscope.models.load import load
from arithscope.prompts import legal_prompts, random_source, sample
from arithscope.settings import SampleSizes, Settings
from tests.contexts import context
from tests.experiments import plain
from tests.experiments.bags import Match, made_up
from tests.experiments.test_knockout import adder_bag, known_sums
from tests.hand_built import ADDING_LAYER, OPERANDS, copy_and_add
from tests.heuristics import brute

SIZES = SampleSizes(discovery=20, evaluation=20, first_mlp=1, probe=1, prompt_knockout=30)
SETTINGS = Settings(custom_sizes=SIZES)
RULES = ["op1 in [0, 10]", "op2 mod 2 = 1", "result in [20, 30]", "op1 = op2"]


def knocked_out(known: Accuracy, classification: Classification) -> PromptKnockout:
    return prompt_knockout(context(copy_and_add(), SETTINGS, known, classification))


def random_bag(layers: range, neurons: int) -> tuple[list[tuple[int, int]], list[Match]]:
    """Every neuron matches one to three rules, with random scores."""
    random = np.random.default_rng(1)
    top = [(layer, n) for layer in layers for n in range(neurons)]
    matches: list[Match] = []
    for neuron in top:
        for text in random.choice(RULES, random.integers(1, 4), replace=False).tolist():
            matches.append((*neuron, text, float(random.uniform(0.6, 1)), True))
    return top, matches


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gptj"])
def test_each_row_of_a_batch_equals_its_own_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(name)
    top, matches = random_bag(range(model.sizes.layers - 3, model.sizes.layers), 512)
    bag = association(made_up("+", top, matches), "+", RAW)
    prompts = sample(legal_prompts("+", 40, 1000), 5, random_source(0, "test"))
    seen: list[Any] = []
    original = first_by_rank

    def watched(*arguments: Any) -> Any:
        seen.append(original(*arguments))
        return seen[-1]

    monkeypatch.setattr("arithscope.experiments.prompt_knockout.first_by_rank", watched)
    ways = [AblationScores(*ablated_by_prompt(model, bag, prompts, *way, 0, advance=lambda n: None)) for way in WAYS]
    assert len(seen) == len(ways) == 1 + 3 * DRAWS
    different = set()
    for way, chosen in list(zip(ways, seen, strict=True))[:: DRAWS + 1]:
        for size in (3, 8, 12):
            for i in range(len(prompts)):
                neurons = [top[row] for row in np.flatnonzero(chosen[size, i])]
                z = plain.logits(model, prompts[[i]], plain.ablated(model, neurons, [model.positions.final]))
                answer = int(model.answers(prompts[[i]]))
                assert bool(way.correct[size, i]) == (int(z.argmax()) == answer)
                assert way.p_answer[size, i] == pytest.approx(float(z.softmax(-1)[answer]), abs=2e-5)
                assert way.removed[size, i] == len(neurons)
                different.add(round(float(way.p_answer[size, i]), 3))
    assert len(different) > 10


def test_the_best_scoring_associated_neurons_are_chosen() -> None:
    """By sorting the neurons of each layer, prompt by prompt."""
    top, matches = random_bag(range(2), 40)
    bag = association(made_up("+", top, matches), "+", RAW)
    prompts = sample(legal_prompts("+", 40, 1000), 6, random_source(0, "test"))
    scores = bag.best_scores(prompts)
    ranks = bag.ranks(np.where(scores > 0, scores, np.nan))
    sizes = sizes_to_try(bag)
    assert sizes == [0, 1, 2, 3, 5, 7, 10, 15, 25, 40]
    chosen = first_by_rank(bag, ranks, ranks, sizes)
    for i, (a, b) in enumerate(zip(prompts.op1.tolist(), prompts.op2.tolist(), strict=True)):
        for layer in range(2):
            best: dict[int, float] = {}
            for at, neuron, text, score, _ in matches:
                if at == layer and brute.rule(text)(a, b, a + b):
                    best[neuron] = max(best.get(neuron, 0), score)
            order = sorted(best, key=lambda n: -best[n])
            for s, size in enumerate(sizes):
                mine = {top[row][1] for row in np.flatnonzero(chosen[s, i]) if top[row][0] == layer}
                assert mine == set(order[:size])


def with_silent_neurons(seed: int, neurons: int) -> tuple[list[tuple[int, int]], list[Match]]:
    """Two layers in which every neuron matches none to two rules."""
    random = np.random.default_rng(seed)
    top = [(layer, n) for layer in range(2) for n in range(neurons)]
    matches: list[Match] = []
    for neuron in top:
        for text in random.choice(RULES, random.integers(0, 3), replace=False).tolist():
            matches.append((*neuron, text, float(random.uniform(0.6, 1)), True))
    return top, matches


@given(seed=st.integers(0, 2**32 - 1), neurons=st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_controls_are_drawn_from_their_own_neurons(seed: int, neurons: int) -> None:
    """By sets, prompt by prompt: as many of each layer as are associated, or all candidates if there are fewer."""
    top, matches = with_silent_neurons(seed, neurons)
    bag = association(made_up("+", top, matches), "+", RAW)
    prompts = sample(legal_prompts("+", 40, 1000), 4, random_source(seed, "test"))
    sizes = sizes_to_try(bag)
    chosen = {way: choose_neurons(bag, prompts, *way, seed) for way in WAYS}
    for i, (a, b) in enumerate(zip(prompts.op1.tolist(), prompts.op2.tolist(), strict=True)):
        matched = {(layer, n) for layer, n, *_ in matches}
        own = {(layer, n) for layer, n, text, *_ in matches if brute.rule(text)(a, b, a + b)}
        candidates = {OWN: own, OTHER_HEURISTICS: matched - own, UNASSOCIATED: set(top) - own, RANDOM: set(top)}
        for (way, _), sets in chosen.items():
            before: set[tuple[int, int]] = set()
            for size, which in zip(sizes, sets[:, i], strict=True):
                drawn = {top[row] for row in np.flatnonzero(which)}
                assert before <= drawn <= candidates[way]
                for layer in range(2):
                    wanted = min(size, sum(at == layer for at, _ in own))
                    available = sum(at == layer for at, _ in candidates[way])
                    assert sum(at == layer for at, _ in drawn) == min(wanted, available)
                before = drawn


def test_draws_of_a_control_differ() -> None:
    top, matches = with_silent_neurons(0, 100)
    bag = association(made_up("+", top, matches), "+", RAW)
    prompts = sample(legal_prompts("+", 40, 1000), 4, random_source(0, "test"))
    for control in ABLATED[1:]:
        drawn = [choose_neurons(bag, prompts, control, draw, 0) for draw in range(DRAWS)]
        assert all((a != b).any() for i, a in enumerate(drawn) for b in drawn[:i])


def test_prompts_without_enough_neurons_for_a_control_are_in_no_curve() -> None:
    """Ten neurons match a small op1, three an odd op2 and 80 none. With n > 3, a prompt with a small op1 has too few neurons
    of other heuristics, or none if its op2 is odd too; one with only an odd op2 has enough."""
    top = [(ADDING_LAYER, n) for n in range(93)]
    matches: list[Match] = [
        *((*n, "op1 in [0, 10]", 0.9, True) for n in top[:10]),
        *((*n, "op2 mod 2 = 1", 0.9, True) for n in top[10:13]),
    ]
    known = known_sums()
    found = knocked_out(known, made_up("+", top, matches))
    held_out = split_prompts(known, SIZES, 0)["+"].held_out
    prompts = sample(held_out, SIZES.prompt_knockout, random_source(0, "prompt knockout", "+"))
    small, odd = prompts.op1 <= 10, prompts.op2 % 2 == 1
    kept = {0: np.ones(len(prompts), dtype=np.bool_), 3: ~(small & odd), 5: ~small, 25: ~small}
    neurons_of = {3: np.where(small | odd, 3, 0), 5: np.where(odd, 3, 0), 25: np.where(odd, 3, 0)}
    curve = found.curve[found.curve.criterion == RAW].set_index(["size", "ablated", "measure"])
    gaps = found.differences[found.differences.criterion == RAW].set_index(["size", "control"])
    assert 0 < kept[25].sum() < kept[3].sum() < len(prompts)
    for size, some in kept.items():
        for ablated in ABLATED:
            for measure in ("accuracy", "p_answer"):
                row = curve.loc[(size, ablated, measure)]
                assert row.n == some.sum()
                assert row.removed == pytest.approx(neurons_of[size][some].mean() if size else 0)
        for control in ABLATED[1:]:
            row = gaps.loc[(size, control)]
            assert row.n == some.sum()
            want = curve.value[size, control, "accuracy"] - curve.value[size, OWN, "accuracy"]
            assert row.value == pytest.approx(want)


def test_the_adder_loses_a_sum_with_its_neuron() -> None:
    """Neuron (a, b) alone knows a + b. It matches both operands of its pair, so it is among the first to be ablated."""
    top = [(ADDING_LAYER, pair) for pair in range(OPERANDS**2)]
    matches: list[Match] = []
    for layer, pair in top:
        a, b = divmod(pair, OPERANDS)
        matches += [
            (layer, pair, f"op1 ~ {a:03d}", 0.7 + 0.01 * (b == 5), True),
            (layer, pair, f"op2 ~ {b:03d}", 0.8, True),
        ]
    found = knocked_out(known_sums(), made_up("+", top, matches))
    curve = found.curve[(found.curve.measure == "accuracy") & (found.curve.criterion == RAW)]
    curve = curve.set_index(["ablated", "size"])
    assert curve.loc[(OWN, 0)].value == 1
    # 31 neurons share the second operand, one of which has the pair: with 40 neurons ablated, all of them are gone.
    assert curve.loc[(OWN, 40)].value <= 2 / 30
    assert curve.loc[(OWN, 40)].removed == 40
    assert curve.loc[(UNASSOCIATED, 40)].value == curve.loc[(OTHER_HEURISTICS, 40)].value == 1
    assert curve.loc[(UNASSOCIATED, 200)].removed == pytest.approx(61)  # no more are associated: 31 + 31 − 1
    assert curve.loc[(RANDOM, 40)].value > 0.9
    gaps = found.differences[found.differences.criterion == RAW].set_index(["control", "size"])
    assert gaps.loc[(UNASSOCIATED, 40)].value == pytest.approx(1 - curve.loc[(OWN, 40)].value)
    assert gaps.loc[(UNASSOCIATED, 40)].low > 0.8
    assert found.summary()["+"]["raw_associated_25"]["value"] == curve.loc[(OWN, 25)].value


def test_without_neurons_for_a_control_nothing_is_compared() -> None:
    """Every neuron matches a rule that holds for all prompts, so that no other is left for two of the controls."""
    found = knocked_out(known_sums(), adder_bag(["result in [0, 60]"]))
    for table in (found.curve, found.differences):
        assert (table[table["size"] == 0].n == SIZES.prompt_knockout).all()
        rows = table[table["size"] > 0]
        assert rows[["value", "low", "high"]].isna().all(axis=None)
        assert (rows.n == 0).all()
    assert np.isnan(found.summary()["+"][f"raw_vs_other_heuristics_{REPORTED[-1]}"]["value"])
    assert np.isnan(found.summary()["+"][f"raw_associated_{REPORTED[-1]}"]["value"])


def test_prompts_are_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    known, seen = known_sums(), []
    original = ablated_by_prompt

    def watched(model: Any, bag: Any, prompts: Any, *others: Any, **options: Any) -> Any:
        seen.append(prompts)
        return original(model, bag, prompts, *others, **options)

    monkeypatch.setattr("arithscope.experiments.prompt_knockout.ablated_by_prompt", watched)
    knocked_out(known, adder_bag(["op1 in [0, 10]"]))
    split = split_prompts(known, SIZES, 0)["+"]
    used = {(a, b) for p in (split.discovery, split.evaluation) for a, b in zip(p.op1, p.op2, strict=True)}
    assert len(seen) == 2 * (1 + 3 * DRAWS)  # both criteria
    for prompts in seen:
        assert len(prompts) == 30
        assert not set(zip(prompts.op1, prompts.op2, strict=True)) & used


def test_results_do_not_depend_on_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    known, bag = known_sums(), adder_bag(["op1 in [0, 10]", "op2 mod 3 = 1"])
    whole = knocked_out(known, bag)
    monkeypatch.setattr("arithscope.experiments.common.samples.rows_that_fit", lambda *args, **options: 7)
    parts = knocked_out(known, bag)
    assert whole.curve.value.tolist() == pytest.approx(parts.curve.value.tolist(), abs=1e-5)

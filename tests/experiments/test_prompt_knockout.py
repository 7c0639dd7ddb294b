"""Knockouts by prompt: a set of neurons for each row of a batch, against one prompt at a time and known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.classify import RAW, Classification
from arithscope.experiments.common.association import association
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.prompt_knockout import (
    DRAWS,
    OWN,
    RANDOM,
    REPORTED,
    UNASSOCIATED,
    WAYS,
    AblationScores,
    PromptKnockout,
    ablated_by_prompt,
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
    top, matches = random_bag(range(3, 6), 512)
    bag = association(made_up("+", top, matches), "+", RAW)
    prompts = sample(legal_prompts("+", 40, 1000), 5, random_source(0, "test"))
    seen: list[Any] = []
    original = first_by_rank

    def watched(*arguments: Any) -> Any:
        seen.append(original(*arguments))
        return seen[-1]

    monkeypatch.setattr("arithscope.experiments.prompt_knockout.first_by_rank", watched)
    ways = [AblationScores(*ablated_by_prompt(model, bag, prompts, *way, 0, advance=lambda n: None)) for way in WAYS]
    assert len(seen) == len(ways) == 1 + 2 * DRAWS
    different = set()
    for way, chosen in list(zip(ways, seen, strict=True))[:: DRAWS + 1]:
        for size in (3, 8, 12):
            for i in range(len(prompts)):
                neurons = [top[row] for row in np.flatnonzero(chosen[size, i])]
                z = plain.logits(model, prompts[[i]], plain.ablated(model, neurons, [model.positions.last]))
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
    # A control takes as many neurons of each layer, as far as there are enough, in the order of its own ranks.
    preference = np.random.default_rng(0).random(scores.shape)
    control = first_by_rank(bag, bag.ranks(np.where(scores == 0, preference, np.nan)), ranks, sizes)
    assert not (control & (scores > 0).T[None]).any()
    for layer in range(2):
        here = bag.layers == layer
        available = (scores == 0)[here].sum(0)
        assert (control[..., here].sum(-1) == np.minimum(chosen[..., here].sum(-1), available)).all()


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
    assert curve.loc[(UNASSOCIATED, 40)].value == 1
    assert curve.loc[(UNASSOCIATED, 200)].removed == pytest.approx(61)  # no more are associated: 31 + 31 − 1
    assert curve.loc[(RANDOM, 40)].value > 0.9
    gaps = found.differences[found.differences.criterion == RAW].set_index(["control", "size"])
    assert gaps.loc[(UNASSOCIATED, 40)].value == pytest.approx(1 - curve.loc[(OWN, 40)].value)
    assert gaps.loc[(UNASSOCIATED, 40)].low > 0.8
    assert found.summary()["+"]["raw_associated_25"]["value"] == curve.loc[(OWN, 25)].value


def test_without_unassociated_neurons_there_is_no_difference() -> None:
    """Every neuron matches a rule that holds for all prompts, so that no other is left for the control."""
    found = knocked_out(known_sums(), adder_bag(["result in [0, 60]"]))
    curve = found.curve[found.curve.measure == "accuracy"].set_index(["criterion", "ablated", "size"])
    assert (curve.xs(UNASSOCIATED, level="ablated").removed == 0).all()
    assert (curve.xs(UNASSOCIATED, level="ablated").value == 1).all()
    p = found.curve[found.curve.measure == "p_answer"].set_index(["criterion", "ablated", "size"]).value
    assert p["raw", UNASSOCIATED, 25] == pytest.approx(p["raw", OWN, 0], abs=1e-5)  # that of the unedited model
    assert p["raw", OWN, 0] < 0.95
    gaps = found.differences[(found.differences.control == UNASSOCIATED) & (found.differences["size"] > 0)]
    assert gaps.value.isna().all()
    assert (gaps.n == 0).all()
    assert np.isnan(found.summary()["+"][f"raw_vs_unassociated_{REPORTED[-1]}"]["value"])


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
    assert len(seen) == 2 * (1 + 2 * DRAWS)  # both criteria
    for prompts in seen:
        assert len(prompts) == 30
        assert not set(zip(prompts.op1, prompts.op2, strict=True)) & used


def test_results_do_not_depend_on_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    known, bag = known_sums(), adder_bag(["op1 in [0, 10]", "op2 mod 3 = 1"])
    whole = knocked_out(known, bag)
    monkeypatch.setattr("arithscope.experiments.common.samples.rows_that_fit", lambda *args, **options: 7)
    parts = knocked_out(known, bag)
    assert whole.curve.value.tolist() == pytest.approx(parts.curve.value.tolist(), abs=1e-5)

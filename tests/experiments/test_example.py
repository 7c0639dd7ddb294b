"""One prompt: which one is chosen, and what is stored about it, against plain passes and value vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from arithscope.experiments.accuracy import Accuracy, as_prompts
from arithscope.experiments.classify import CALIBRATED, RAW, Classification
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.example import (
    CANDIDATES,
    CONTROL,
    NONE,
    OWN,
    SHOWN,
    Example,
    choose_prompt,
    example,
    promoted,
)
from arithscope.experiments.patterns import ActivationMaps, number_logits
from arithscope.figures.example import one_prompt as drawn_prompt
from arithscope.models.model import Model
from arithscope.pipeline.schema import schema_problem
from arithscope.prompts import Place, legal_prompts, random_source, whole_numbers
from arithscope.report.findings.example import one_prompt as finding
from arithscope.settings import SampleSizes, Settings
from tests.contexts import context
from tests.experiments import plain
from tests.experiments.bags import Match, made_up, together
from tests.families import small
from tests.figures.test_figures import drawn, texts
from tests.hand_built import ADDING_LAYER, OPERANDS, copy_and_add
from tests.heuristics import brute
from tests.strata import OF_WHOLE_NUMBERS

SIZES = SampleSizes(discovery=5, evaluation=5, first_mlp=1, probe=1)
SETTINGS = Settings(custom_sizes=SIZES)


def answers(operator: str, max_operand: int, limit: int, wrong: tuple[int, int] | None = None) -> Accuracy:
    """A model that answers all prompts of an operator correctly, except perhaps one."""
    prompts = legal_prompts(operator, max_operand, limit)
    right = np.ones(len(prompts), dtype=bool)
    if wrong is not None:
        right[(prompts.op1 == wrong[0]) & (prompts.op2 == wrong[1])] = False
    columns = {"op1": prompts.op1, "op2": prompts.op2, "answer": prompts.answer, "predicted": prompts.answer}
    table = pd.DataFrame({"operator": operator, **columns, "correct": right, "whole": right, "p_answer": 0.9})
    return Accuracy(table, pd.DataFrame(), whole_numbers(max_operand, limit).as_json())


def maps_of(model: Model, classify: Classification) -> ActivationMaps:
    """The value-vector logits of the top neurons; their activation maps are not read."""
    rows = classify.neurons
    logits = np.concatenate(
        [
            number_logits(model, layer, np.array([n]), advance=print)
            for layer, n in zip(rows.layer, rows.neuron, strict=True)
        ]
    )
    return ActivationMaps(rows, np.zeros((len(rows), 1, 1), dtype=np.float16), logits, {})


def computed(model: Model, accuracy: Accuracy, classify: Classification) -> Example:
    found = example(context(model, SETTINGS, accuracy, maps_of(model, classify), classify))
    stored = {name: getattr(found, name) for name in Example.schema()}
    assert schema_problem(Example, stored) is None
    return found


def test_the_papers_prompt_is_chosen_if_it_is_correct() -> None:
    bags = together(*(made_up(o, [(1, 0)], [(1, 0, "op1 in [0, 10]", 0.9, True)]) for o in "+-"))
    model = small("llama")

    def chosen(*parts: Accuracy) -> tuple[int, int, int]:
        prompts = pd.concat([part.prompts for part in parts], ignore_index=True)
        found = choose_prompt(context(model, SETTINGS, replace(parts[0], prompts=prompts), bags))
        assert len(found) == 1
        return int(found.op1[0]), int(found.operator[0]), int(found.op2[0])

    sums, differences = answers("+", 30, 1000), answers("-", 230, 1000)
    assert chosen(sums, differences) == (226, 1, 68)
    other = chosen(sums, answers("-", 230, 1000, wrong=(226, 68)))
    assert other[1] == 1  # − comes before +
    assert other != (226, 1, 68)
    assert chosen(sums)[1] == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_otherwise_the_typical_held_out_prompt_is_chosen(seed: int) -> None:
    """By enumeration: the median number of associated neurons among the drawn prompts."""
    rules = ["op1 in [0, 10]", "op2 mod 3 = 1", "result in [5, 30]", "op1 in [8, 25]", "op2 in [0, 4]"]
    top = [(1, n) for n in range(12)]
    matches: list[Match] = [(*n, rules[i % 5], 0.7, i != 4) for i, n in enumerate(top)]
    matches += [(1, 0, rules[2], 0.8, True)]  # a neuron with two heuristics counts once
    accuracy, classify = answers("+", 20, 60), made_up("+", top, matches)
    settings = replace(SETTINGS, seed=seed)
    found = choose_prompt(context(small("llama"), settings, accuracy, classify))
    held_out = split_prompts(accuracy, SIZES, seed)["+"].held_out
    order = random_source(seed, "example", "+").permutation(len(held_out))[:CANDIDATES]
    counts = {}
    for a, b in zip(held_out.op1[order].tolist(), held_out.op2[order].tolist(), strict=True):
        counts[a, b] = len({m[:2] for m in matches if m[4] and brute.rule(m[2])(a, b, a + b)})
    [own] = zip(found.op1.tolist(), found.op2.tolist(), strict=True)
    assert len(set(counts.values())) > 3
    assert counts[own] == sorted(counts.values())[(len(counts) - 1) // 2]


def test_a_model_with_few_correct_prompts_has_a_prompt_too() -> None:
    """With three of them, none is held out."""
    known = answers("+", 2, 60)
    right = known.prompts.op1 == 1
    accuracy = replace(known, prompts=known.prompts.assign(correct=right, whole=right))
    assert not len(split_prompts(accuracy, SIZES, 0)["+"].held_out)
    found = choose_prompt(context(small("llama"), SETTINGS, accuracy, made_up("+", [(1, 0)], [])))
    assert found.op1.tolist() == [1]


@pytest.fixture(scope="module")
def adder() -> Example:
    """The adder, if the neurons of all sums from 10 to 50 match one heuristic."""
    top = [(ADDING_LAYER, pair) for pair in range(OPERANDS**2)]
    sums = {n: sum(divmod(n[1], OPERANDS)) for n in top}
    matches: list[Match] = [(*n, "result in [10, 50]", 0.9, True) for n in top if 10 <= sums[n] <= 50]
    return computed(copy_and_add(), answers("+", OPERANDS - 1, 61), made_up("+", top, matches))


def test_the_adders_own_neuron_promotes_the_sum(adder: Example) -> None:
    right = adder.op1 + adder.op2
    assert 10 <= right <= 50
    assert (adder.operator, adder.answer, adder.criterion, adder.top_neurons) == ("+", right, CALIBRATED, OPERANDS**2)
    first = adder.neurons.iloc[0]
    assert (first.layer, first.neuron) == (ADDING_LAYER, adder.op1 * OPERANDS + adder.op2)
    assert adder.logits.shape == (SHOWN, 61)
    assert adder.logits[0].argmax() == adder.total.argmax() == adder.probabilities.argmax() == right
    assert adder.heuristics.heuristic.tolist() == ["result in [10, 50]"]
    table = adder.answers.set_index("ablated")
    assert table.predicted[NONE] == right
    assert table.p_answer[OWN] < 0.1 < table.p_answer[NONE]
    assert table.predicted[OWN] != right
    assert CONTROL not in table.index  # most pairs are associated, so there are too few others


@pytest.mark.parametrize(("family", "operator"), [("llama", "-"), ("gpt2", "+"), ("gptj", "-")])
@torch.no_grad()
def test_what_is_stored_equals_plain_passes(family: str, operator: str) -> None:
    model = small(family)
    top = [(layer, n) for layer in (1, 2) for n in range(20)]
    rules = ["op1 in [0, 39]", "result in [0, 39]", "op2 in [0, 30]"]
    matches: list[Match] = [(*n, rules[i % 3], 0.6 + 0.01 * i, True) for i, n in enumerate(top) if i % 2 == 0]
    e = computed(model, answers(operator, 30, model.limit), made_up(operator, top, matches))
    prompt = as_prompts(pd.DataFrame({"operator": [operator], "op1": [e.op1], "op2": [e.op2]}), Place())
    neurons = list(zip(e.neurons.layer, e.neurons.neuron, strict=True))
    assert sorted(neurons) == sorted(top[::2])

    seen: dict[int, torch.Tensor] = {}
    stream: list[torch.Tensor] = []
    hooks = [model.final_norm.register_forward_pre_hook(lambda module, args: stream.append(args[0][0, -1]))]
    for layer in (1, 2):
        down = model.module("neurons", layer)  # type: ignore[arg-type]
        hooks.append(
            down.register_forward_pre_hook(lambda module, args, layer=layer: seen.update({layer: args[0][0, -1]}))
        )
    logits = model.hf_model(model.encode(prompt)).logits[0, -1].double()
    for hook in hooks:
        hook.remove()
    assert e.parts.contribution.sum() == pytest.approx(float(logits[model.answers(prompt)[0]]), abs=1e-4)

    # The final norm divides by the root mean square, for a LayerNorm after centring.
    x = stream[0].double()
    norm: Any = model.final_norm
    centred = x - x.mean() if isinstance(norm, torch.nn.LayerNorm) else x
    epsilon = norm.eps if isinstance(norm, torch.nn.LayerNorm) else norm.variance_epsilon
    scale = (centred.square().mean() + epsilon).sqrt()
    numbers = model.encoder.answer_tokens
    every = {}
    for layer, n in neurons:
        lens = model.logit_lens(model.value_vectors(layer)[n])[numbers].double()
        every[layer, n] = (seen[layer][n].double() * lens / scale).numpy()
    for i, neuron in enumerate(neurons[:SHOWN]):
        assert e.logits[i] == pytest.approx(every[neuron], abs=1e-5)
        assert e.neurons.contribution[i] == pytest.approx(every[neuron][e.answer], abs=1e-5)
    assert e.total == pytest.approx(sum(every.values()), abs=1e-4)
    assert e.total[e.answer] == pytest.approx(e.parts.contribution[0], abs=1e-4)
    assert e.probabilities == pytest.approx(logits.softmax(-1)[numbers].numpy(), abs=1e-5)
    for name, gone in ((NONE, []), (OWN, neurons)):
        z = plain.logits(model, prompt, plain.ablated(model, gone, [model.positions.final]))
        row = e.answers.set_index("ablated").loc[name]
        assert row.p_answer == pytest.approx(float(z.softmax(-1)[model.answers(prompt)[0]]), abs=1e-5)
        assert row.probability == pytest.approx(float(z.softmax(-1).max()), abs=1e-5)
        assert row.predicted == model.token_numbers[int(z.argmax())]
        assert row.neurons == len(gone)


def test_the_sum_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    neurons = pd.DataFrame({"operator": ["+"] * 3 + ["-"] * 10, "layer": 1, "neuron": [*range(3), *range(10)]})
    values = random.normal(size=(13, 7)).astype(np.float32)
    maps = ActivationMaps(neurons, np.zeros((13, 1, 1), dtype=np.float16), values, {})
    some = pd.DataFrame({"layer": 1, "neuron": random.permutation(10), "factor": random.normal(size=10)})
    want = sum(factor * values[3 + n].astype(float) for n, factor in zip(some.neuron, some.factor, strict=True))
    for size in (1, 3, 4096):
        monkeypatch.setattr("arithscope.experiments.example.NEURONS_AT_ONCE", size)
        shown, total = promoted(maps, "-", some)
        assert total == pytest.approx(want, abs=1e-6)
        assert shown == pytest.approx(some.factor.to_numpy()[:SHOWN, None] * values[3 + some.neuron[:SHOWN]], abs=1e-6)


@pytest.mark.parametrize(("rule", "criterion", "found"), [("op1 in [0, 30]", RAW, 3), ("op1 in [35, 39]", RAW, 0)])
def test_without_a_calibrated_match(rule: str, criterion: str, found: int) -> None:
    """Raw matches are used instead; there may be none either."""
    model, top = small("llama"), [(1, n) for n in range(9)]
    matches: list[Match] = [(*n, rule, 0.7, False) for n in top[:3]]
    e = computed(model, answers("+", 19, model.limit), made_up("+", top, matches))
    assert (e.criterion, len(e.neurons), len(e.heuristics)) == (criterion, found, found > 0)
    assert e.logits.shape == (found, model.limit)
    assert np.any(e.total) == (found > 0)
    figure = drawn(drawn_prompt(e, OF_WHOLE_NUMBERS))
    assert len([axes for axes in figure.axes if axes.get_xlabel() == "number"]) == 2
    text = finding(e, OF_WHOLE_NUMBERS).text
    assert ("3 of 9 top neurons are associated with it by raw heuristics" in text) == (found == 3)
    assert ("No top neuron is associated with it" in text) == (found == 0)


def test_the_figure_shows_the_logits(adder: Example) -> None:
    figure = drawn(drawn_prompt(adder, OF_WHOLE_NUMBERS))
    whole = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("result in")]
    assert [axes.get_title(loc="left") for axes in whole] == [
        f"result in [10, 50]   (L{ADDING_LAYER}N{n})" for n in adder.neurons.neuron[:SHOWN]
    ]
    for axes, logits in zip(whole, adder.logits, strict=True):
        assert axes.lines[0].get_ydata() == pytest.approx(logits)
    [total] = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("sum of all")]
    assert total.get_title(loc="left") == f"sum of all {len(adder.neurons)} associated neurons"
    assert total.lines[0].get_ydata() == pytest.approx(adder.total)
    assert total.lines[1].get_xdata()[0] == adder.answer
    assert f"{adder.op1}+{adder.op2}={adder.answer}" in texts(figure)


def test_the_finding_says_what_is_stored() -> None:
    """Also if the answer is no number, and if there is no control."""
    answers = pd.DataFrame(
        {
            "ablated": [NONE, OWN, CONTROL],
            "neurons": [0, 37, 37],
            "predicted": [158, -1, 158],
            "probability": [0.98, 0.5, 0.9],
            "p_answer": [0.98, 0.04, 0.9],
        }
    )
    parts = pd.DataFrame({"part": ["associated neurons", "attention"], "contribution": [12.3, 7.8]})
    neurons = pd.DataFrame({"layer": np.zeros(37, dtype=int)})
    nothing = np.zeros(3, dtype=np.float32)
    total = np.where(np.arange(1000) < 4, 12.4, 0.0).astype(np.float32)
    total[158] = 12.3
    e = Example("-", 226, 68, 158, CALIBRATED, 512, answers, parts, pd.DataFrame(), neurons, nothing, total, nothing)
    assert finding(e, OF_WHOLE_NUMBERS).text == (
        "226−68=: the model answers 158 (P = .980). 37 of 512 top neurons are associated with it by calibrated heuristics and "
        "add 12.3 to the logit of 158, which is 20.1. They add more to 4 of the 999 other numbers. Without them the answer is "
        "no number (P(158) = .040), without as many other top neurons of each layer 158 (.900)."
    )
    fewer = finding(replace(e, answers=answers[:2]), OF_WHOLE_NUMBERS).text
    assert fewer.endswith("(P(158) = .040); some layers have too few other top neurons for a control.")

"""Explanations of a prompt, on a model whose neurons are known and against full passes of trained ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arithscope.experiments.classify import CALIBRATED, RAW
from arithscope.experiments.common.explanation import HEURISTIC_NEURONS
from arithscope.heuristics.kinds import parse
from arithscope.models.load import load
from arithscope.models.model import Model
from arithscope.prompts import Prompts, parse_prompt
from arithscope.results.explanation import Explanation, explain_prompt
from tests.experiments import plain
from tests.experiments.bags import Match, made_up
from tests.experiments.test_prompt_knockout import random_bag
from tests.hand_built import ADDING_LAYER, OPERANDS, copy_and_add


def written(text: str, model: Model) -> Prompts:
    return parse_prompt(text, "+-*/", model.limit - 1, model.limit)


def check_sums(e: Explanation) -> None:
    """The parts add up to the logit, neurons to their part, and kinds to neurons; the heuristics hold."""
    assert sum(e.parts.values()) == pytest.approx(e.logit, abs=1e-6)
    assert abs(e.parts["remainder"]) < 1e-4
    assert e.neurons.contribution.sum() == pytest.approx(e.parts[HEURISTIC_NEURONS], abs=1e-9)
    assert e.kinds.contribution.sum() == pytest.approx(e.neurons.contribution.sum())
    assert e.kinds.neurons.sum() == len(e.neurons)
    if len(e.kinds):
        assert e.kinds.running.iloc[-1] == pytest.approx(e.parts[HEURISTIC_NEURONS])
    products = e.neurons.activation * e.neurons.value_logit / e.scale
    assert products.tolist() == pytest.approx(e.neurons.contribution.tolist(), abs=1e-5)
    prompt = Prompts(np.array([e.op1]), np.array(["+-*/".index(e.operator)]), np.array([e.op2]))
    for text in [*e.heuristics.heuristic, *e.neurons.heuristic]:
        assert parse(text).holds(prompt)[0]
    assert e.neurons.contribution.abs().is_monotonic_decreasing


def test_the_adders_own_neuron_explains_the_sum() -> None:
    top = [(ADDING_LAYER, pair) for pair in range(OPERANDS**2)]
    matches: list[Match] = [
        (*n, "result in [10, 20]", 0.9, True) for n in top if 10 <= sum(divmod(n[1], OPERANDS)) <= 20
    ]
    model = copy_and_add()
    e = explain_prompt(model, made_up("+", top, matches), written("7+6=", model), CALIBRATED, 0)
    check_sums(e)
    assert (e.answer.number, e.right, e.prompt) == (13, 13, "7+6=")
    assert (e.neurons.layer[0], e.neurons.neuron[0]) == (ADDING_LAYER, 7 * OPERANDS + 6)
    assert e.neurons.contribution[0] > 0.9 * e.logit  # nearly all of the logit comes from one neuron
    assert e.heuristics.heuristic.tolist() == ["result in [10, 20]"]
    assert e.heuristics.neurons[0] == len(matches) == len(e.neurons) == e.ablated.neurons
    assert e.ablated.answer.number != 13
    assert e.ablated.answer.p_answer < 0.1
    assert e.ablated.control is not None
    assert e.ablated.control.number == 13
    other = explain_prompt(model, made_up("+", top, matches), written("1+2=", model), CALIBRATED, 0)
    check_sums(other)
    assert len(other.neurons) == len(other.heuristics) == other.ablated.neurons == 0
    assert other.ablated.answer == other.answer


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-pythia"])
@torch.no_grad()
def test_answers_equal_full_passes(name: str) -> None:
    """The answer with and without the neurons, one pass each with plain hooks."""
    model = load(name)
    top, matches = random_bag(range(3, 6), 512)
    classify = made_up("+", top, [(*m[:4], i % 2 == 0) for i, m in enumerate(matches)])
    prompt = written("14+9=", model)
    for criterion in (RAW, CALIBRATED):
        e = explain_prompt(model, classify, prompt, criterion, 0)
        check_sums(e)
        neurons = list(zip(e.neurons.layer.tolist(), e.neurons.neuron.tolist(), strict=True))
        for answer, gone in ((e.answer, []), (e.ablated.answer, neurons)):
            z = plain.logits(model, prompt, plain.ablated(model, gone, [model.positions.final]))
            p = z.softmax(-1)
            assert answer.number == int(z.argmax())  # tokens of numbers are the numbers here
            assert answer.probability == pytest.approx(float(p.max()), abs=1e-5)
            assert answer.p_answer == pytest.approx(float(p[23]), abs=1e-5)
        best = {
            n: max(
                m[3]
                for i, m in enumerate(matches)
                if m[:2] == n and m[2] in set(e.heuristics.heuristic) and (criterion == RAW or i % 2 == 0)
            )
            for n in neurons[:40]
        }
        assert e.neurons.score[:40].tolist() == list(best.values())


def test_a_control_needs_enough_other_neurons() -> None:
    model = copy_and_add()
    top = [(ADDING_LAYER, n) for n in range(30)]
    e = explain_prompt(
        model, made_up("+", top, [(*n, "op1 in [0, 30]", 0.8, True) for n in top]), written("3+4=", model), RAW, 0
    )
    assert e.ablated.control is None
    assert e.answer.number == e.ablated.answer.number == 7  # only neurons of 0 + b are ablated

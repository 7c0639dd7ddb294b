"""Linear probes against nn.Linear, and the states they are trained on against the library's hidden states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from arithscope.experiments import probe as module
from arithscope.experiments.common.samples import probe_split
from arithscope.experiments.probe import (
    BATCH,
    EPOCHS,
    LEARNING_RATE,
    Examples,
    initial_probes,
    probe,
    read_states,
    train,
    training_steps,
)
from arithscope.prompts import operand_grid, random_source, sample
from arithscope.settings import SampleSizes
from tests.contexts import context
from tests.experiments.plain import all_correct
from tests.families import small

WIDTH, ANSWERS, PROMPTS, TRAINING = 6, 5, 150, 100
ALL = SampleSizes(1, 1, 1, 100_000)  # more prompts for probes than there are


def some_examples() -> Examples:
    """States from which the answer can be read, better in later layers."""
    generator = torch.Generator().manual_seed(0)
    of_prompt = torch.randint(0, 60, (PROMPTS,), generator=generator)
    answer_of_state = torch.randint(0, ANSWERS, (60,), generator=generator)
    states = torch.randn(3, 60, WIDTH, generator=generator)
    for layer in range(3):
        states[layer, torch.arange(60), answer_of_state] += 4.0 * layer
    return Examples(states, of_prompt, answer_of_state[of_prompt])


def test_probes_trained_together_equal_single_nn_linears() -> None:
    """Each layer's probe as an nn.Linear with cross-entropy and Adam, on the same batches."""
    examples = some_examples()
    start = initial_probes([0, 1, 2], WIDTH, ANSWERS, 7, "last")
    calls: list[int] = []
    found = train(start, examples, TRAINING, 7, "last", calls.append)
    assert sum(calls) == 3 * training_steps(TRAINING)
    for layer in range(3):
        linear = nn.Linear(WIDTH, ANSWERS)
        with torch.no_grad():
            linear.weight.copy_(initial_probes([layer], WIDTH, ANSWERS, 7, "last").matrix[0].T)
            linear.bias.copy_(initial_probes([layer], WIDTH, ANSWERS, 7, "last").bias[0, 0])
        optimizer = torch.optim.Adam(linear.parameters(), lr=LEARNING_RATE)
        for epoch in range(EPOCHS):
            order = random_source(7, "probe order", "last", epoch).permutation(TRAINING)
            for i in range(0, TRAINING, BATCH):
                rows = order[i : i + BATCH]
                x = torch.stack([examples.states[layer, examples.of_prompt[r]] for r in rows])
                y = torch.tensor([int(examples.answer[r]) for r in rows])
                optimizer.zero_grad()
                nn.functional.cross_entropy(linear(x), y).backward()
                optimizer.step()
        assert torch.allclose(found.matrix[layer], linear.weight.detach().T, atol=1e-5)
        assert torch.allclose(found.bias[layer, 0], linear.bias.detach(), atol=1e-5)
        right = found.correct(examples, torch.arange(TRAINING, PROMPTS))[layer]
        states, answers = examples[torch.arange(TRAINING, PROMPTS)]
        assert torch.equal(right, linear(states[layer]).argmax(-1) == answers)


def test_training_does_not_change_the_initial_probes() -> None:
    start = initial_probes([0], WIDTH, ANSWERS, 0, "op1")
    before = start.matrix.clone()
    train(start, Examples(torch.randn(1, 4, WIDTH), torch.arange(4), torch.arange(4)), 4, 0, "op1", lambda n: None)
    assert torch.equal(start.matrix, before)


def test_a_probe_learns_what_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEARNING_RATE", 0.05)
    examples = some_examples()
    found = train(initial_probes([0, 1, 2], WIDTH, ANSWERS, 0, "last"), examples, TRAINING, 0, "last", lambda n: None)
    accuracy = found.correct(examples, torch.arange(TRAINING, PROMPTS)).float().mean(1)
    assert accuracy[2] > 0.95
    assert accuracy[0] < accuracy[1] <= accuracy[2]


@pytest.mark.parametrize("position", ["op1", "operator", "op2", "last"])
@pytest.mark.parametrize("prefix", ["", "1+2=3=4+5=9="])
def test_states_belong_to_their_prompts(position: str, prefix: str) -> None:
    """The state of each example equals that of a pass of its prompt alone."""
    model = small("gptj", prefix=prefix)
    prompts = sample(operand_grid("+-*", 12), 60, random_source(0, "p"))
    prompts = prompts[prompts.legal(model.limit)]
    layers = [0, 2]
    [examples] = read_states(model, prompts, [position], layers)
    assert len(examples.answer) == len(prompts)
    assert examples.states.shape[1] <= {"op1": 13, "operator": 39}.get(position, len(prompts))
    for i in range(0, len(prompts), 7):
        states, answer = examples[torch.tensor([i])]
        output = model.hf_model(input_ids=model.encode(prompts[[i]]), output_hidden_states=True)
        at = model.positions.named()[position]
        # hidden_states[l + 1] is the output of layer l; after the last layer the library applies the final norm.
        want = [output.hidden_states[1][0, at], output.hidden_states[3][0, at]]
        found = [states[0, 0], model.final_norm(states[1, 0])]
        assert torch.allclose(found[0], want[0], atol=1e-5)
        assert torch.allclose(found[1], want[1], atol=1e-5)
        assert int(answer[0]) == prompts.answer[i]


def test_states_at_several_positions_are_those_at_each() -> None:
    model = small("llama", "sdpa")
    prompts = sample(operand_grid("+-", 12), 60, random_source(0, "p"))
    together = read_states(model, prompts, ["op2", "last"], [0, 2])
    for position, examples in zip(("op2", "last"), together, strict=True):
        [alone] = read_states(model, prompts, [position], [0, 2])
        assert torch.equal(examples.states, alone.states)
        assert torch.equal(examples.of_prompt, alone.of_prompt)


def test_the_split_is_80_to_20_without_overlap() -> None:
    accuracy = all_correct(small("llama", "sdpa"), "+-", 9)
    prompts, training = probe_split(context(small("llama", "sdpa"), None, accuracy, custom_sizes=ALL))
    assert len(prompts) == len(accuracy.correct())
    assert training == int(0.8 * len(prompts))
    rows = set(zip(prompts.op1.tolist(), prompts.operator.tolist(), prompts.op2.tolist(), strict=True))
    assert len(rows) == len(prompts)
    fewer, _ = probe_split(context(small("llama", "sdpa"), None, accuracy, custom_sizes=SampleSizes(1, 1, 1, 30)))
    assert len(fewer) == 30


def test_derived_layers_and_chance() -> None:
    model = small("llama", "sdpa")
    found = probe(context(model, None, all_correct(model, "+-", 9), custom_sizes=ALL))
    last = found.table[(found.table.operator == "all") & (found.table.position == "last")].value.to_numpy()
    assert last[found.best_layer] == last.max()
    assert last[found.first_answer_layer] >= last.max() / 2
    assert all(last[: found.first_answer_layer] < last.max() / 2)
    assert set(found.chance) == {"all", "+", "-"}
    rows = found.table[(found.table.position == "op1") & (found.table.layer == 0)].set_index("operator")
    assert rows.n["all"] == rows.n["+"] + rows.n["-"]
    pooled = (rows.value["+"] * rows.n["+"] + rows.value["-"] * rows.n["-"]) / rows.n["all"]
    assert rows.value["all"] == pytest.approx(pooled)
    assert not np.isnan(found.table.low).any()

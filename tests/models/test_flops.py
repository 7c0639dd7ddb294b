"""FLOPs counted from shapes against those that torch counts while a model runs."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from arithscope.models.engine.replay import record, replay_neurons
from arithscope.models.families import FAMILIES
from arithscope.models.memory import first_replayed_layer, flops_per_position
from arithscope.prompts import legal_prompts
from tests.families import NUMBERS, small


def matrix_flops(counter: FlopCounterMode) -> int:
    """FLOPs of products with weights; those of attention, between activations, do not count."""
    return sum(n for kind, n in counter.get_flop_counts()["Global"].items() if str(kind) in ("aten.mm", "aten.addmm"))


@pytest.mark.parametrize("family", FAMILIES)
def test_flops_of_a_pass(family: str) -> None:
    model = small(family)
    ids = model.encode(legal_prompts("+", 5, NUMBERS)[:3])
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.hf_model(input_ids=ids[:, :1], use_cache=False)
    assert matrix_flops(counter) == 3 * flops_per_position(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_flops_of_a_replay(family: str) -> None:
    """Two prompts × (four neurons and the unedited variant) from the first replayed layer on."""
    model = small(family)
    tape = record(model, model.encode(legal_prompts("+", 5, NUMBERS)[:2]), model.positions.final, neurons=[1])
    neurons = torch.arange(4)
    with FlopCounterMode(display=False) as counter:
        replay_neurons(tape, 1, neurons, torch.ones(4, 2), lambda before, after: after, chunk=4)
    assert matrix_flops(counter) == 2 * 5 * flops_per_position(model, first_replayed_layer(model, 1))

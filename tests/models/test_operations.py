"""Operations counted from shapes, against what torch counts while a model runs."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from arithscope.models.engine.replay import record, replay_neurons
from arithscope.models.families import FAMILIES
from arithscope.models.flops import first_layer_run, row_operations
from arithscope.prompts import legal_prompts
from tests.families import NUMBERS, small


def matrix_operations(counter: FlopCounterMode) -> int:
    """Products with weights; those of activations with each other, in attention, are another kind."""
    return sum(n for kind, n in counter.get_flop_counts()["Global"].items() if str(kind) in ("aten.mm", "aten.addmm"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_takes_what_is_counted(family: str) -> None:
    model = small(family)
    ids = model.encode(legal_prompts("+", 5, NUMBERS)[:3])
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.hf_model(input_ids=ids[:, :1], use_cache=False)
    assert matrix_operations(counter) == 3 * row_operations(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_replay_of_neurons_takes_what_is_counted(family: str) -> None:
    """Two prompts × (four neurons and the unedited variant) from the first layer that is run."""
    model = small(family)
    tape = record(model, model.encode(legal_prompts("+", 5, NUMBERS)[:2]), model.positions.last, neurons=[1])
    neurons = torch.arange(4)
    with FlopCounterMode(display=False) as counter:
        replay_neurons(tape, 1, neurons, torch.ones(4, 2), lambda before, after: after, chunk=4)
    assert matrix_operations(counter) == 2 * 5 * row_operations(model, first_layer_run(model, 1))

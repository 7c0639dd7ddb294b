"""States of several positions against the library's hidden states, one prompt at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arithscope.experiments.common.states import distinct_rows, read_positions
from arithscope.models.engine.full_pass import FullPass
from arithscope.models.model import Model
from arithscope.prompts import random_source, sample
from tests.families import STRATA, small, small_at
from tests.hand_built_digits import LONG_SUMS


def test_rows_are_numbered() -> None:
    table = np.array([[3, 1], [2, 5], [3, 1], [3, 2], [2, 5]])
    assert distinct_rows(table).tolist() == [1, 0, 1, 2, 0]
    assert distinct_rows(table[:, :0]).tolist() == [0] * 5


@pytest.mark.parametrize("numbers", list(STRATA))
@pytest.mark.parametrize("full", [False, True])
def test_states_belong_to_their_prompts(numbers: str, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every position, whatever the batches are."""
    for module in ("experiments.common.samples", "models.engine.sweep", "models.engine.full_pass"):
        monkeypatch.setattr(f"arithscope.{module}.rows_that_fit", lambda *args, **options: 7)
    model = small_at("gptj", "eager", numbers, STRATA[numbers].steps)
    model = model.with_engine(FullPass()) if full else model
    prompts = sample(STRATA[numbers].prompts("+"), 60, random_source(0, "p"))
    named, layers = model.positions.named(), [0, 2]
    positions = [*named][::-1]  # in any order
    for position, read in zip(positions, read_positions(model, prompts, positions, layers), strict=True):
        assert_states(model, named[position], read.states[:, read.of_prompt])
        seen = {tuple(row) for row in model.encode(prompts)[:, : named[position] + 1].tolist()}
        assert read.states.shape[:2] == (2, len(seen))


def assert_states(model: Model, at: int, states: torch.Tensor) -> None:
    assert model.encoder.stratum is not None
    prompts = sample(model.encoder.stratum.prompts("+"), 60, random_source(0, "p"))
    for i in range(0, len(prompts), 13):
        output = model.hf_model(input_ids=model.encode(prompts[[i]]), output_hidden_states=True)
        # hidden_states[l + 1] is the output of layer l; after the last layer the library applies the final norm.
        assert torch.allclose(states[0, i], output.hidden_states[1][0, at], atol=1e-5)
        assert torch.allclose(model.final_norm(states[1, i]), output.hidden_states[3][0, at], atol=1e-5)


def test_only_what_is_needed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass for each op1 before op2, and no sweep."""
    model = small("llama", "sdpa", numbers="digits").at(LONG_SUMS.at_step(3))
    monkeypatch.setattr("arithscope.models.engine.interface.Engine.sweep", None)
    runs: list[int] = []
    logits = model.logits
    monkeypatch.setattr(model, "logits", lambda ids: runs.append(len(ids)) or logits(ids))
    [first, second] = read_positions(model, LONG_SUMS.prompts("+"), ["op1.1", "op1.2"], [1])
    assert (first.states.shape[1], second.states.shape[1], sum(runs)) == (9, 90, 90)

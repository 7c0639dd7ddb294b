"""The slow engine against hand-written hooks, and what it counts and refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from arithscope.models.engine.full_pass import FullPass
from arithscope.models.engine.interface import REPLAY
from arithscope.models.hooks import edit
from arithscope.models.model import Model, Site
from tests.families import small, some_ids

LAYER = 1


def edited_logits(unedited: Tensor, edited: Tensor) -> Tensor:
    return edited


@torch.no_grad()
def by_hand(model: Model, ids: Tensor, change: Callable[[Tensor], Any], module: str) -> Tensor:
    """Logits of the library's own model, with the input of a projection of one layer changed in place."""

    def hook(module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = args[0].clone()
        change(x)
        return (x, *args[1:])

    handle = model.hf_model.get_submodule(f"model.layers.{LAYER}.{module}").register_forward_pre_hook(hook)
    try:
        return model.hf_model(input_ids=ids, use_cache=False).logits[:, -1]
    finally:
        handle.remove()


def test_edits_equal_hand_written_hooks() -> None:
    model, engine = small("llama", "sdpa"), FullPass()
    ids = some_ids(model, 3)
    s, last, op2 = model.sizes, model.positions.final, model.positions.op2
    tape = engine.record(model, ids, op2)
    assert torch.allclose(tape.logits, by_hand(model, ids, lambda x: None, "mlp.down_proj"), atol=1e-5)

    values = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 4.0]])
    got = engine.replay_neurons(tape, LAYER, torch.tensor([4, 9]), values, edited_logits)
    for i, neuron in enumerate((4, 9)):
        want = by_hand(model, ids, lambda x, i=i, n=neuron: x[:, last, n].copy_(values[i]), "mlp.down_proj")
        assert torch.allclose(got[i], want, atol=1e-5)
    got = engine.replay_neurons(tape, LAYER, torch.tensor([4]), torch.full((1, 1), 2.0), edited_logits, op2)
    want = by_hand(model, ids, lambda x: x[:, op2, 4].fill_(2.0), "mlp.down_proj")
    assert torch.allclose(got[0], want, atol=1e-5)

    # One head in the first variant, another in the second; the second edits the first prompt only.
    masks = torch.zeros(2, 3, s.heads, dtype=torch.bool)
    masks[0, :, 1], masks[1, 0, 2] = True, True
    got = engine.replay(tape, [edit(model, Site.HEADS, LAYER, masks, positions=(op2, last))], edited_logits)
    for i, (rows, head) in enumerate(((slice(None), 1), (slice(1), 2))):
        entries = slice(head * s.head_dim, (head + 1) * s.head_dim)
        want = by_hand(model, ids, lambda x, r=rows, e=entries: x[r, op2:, e].zero_(), "self_attn.o_proj")
        assert torch.allclose(got[i], want, atol=1e-5)


def test_batch_size_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model, engine = small("llama", "sdpa"), FullPass()
    ids = some_ids(model, 5)
    change = [
        edit(model, Site.NEURONS, LAYER, torch.rand(2, 5, model.sizes.neurons) < 0.5, positions=model.positions.final)
    ]
    common = [edit(model, Site.HEADS, LAYER, torch.rand(1, 5, model.sizes.heads) < 0.5, positions=model.positions.op1)]
    whole = engine.replay(engine.record(model, ids, 0, edits=common), change, edited_logits)
    monkeypatch.setattr("arithscope.models.engine.full_pass.rows_that_fit", lambda *_: 2)
    parts = engine.replay(engine.record(model, ids, 0, edits=common), change, edited_logits)
    assert torch.allclose(whole, parts, atol=1e-5)


def test_every_variant_is_reduced_with_the_unedited_logits() -> None:
    model, engine = small("llama", "sdpa"), FullPass()
    tape = engine.record(model, some_ids(model, 3), model.positions.final)
    calls = []

    def reduce(unedited: Tensor, edited: Tensor) -> Tensor:
        calls.append((torch.equal(unedited, tape.logits), len(edited)))
        return edited[..., 0]

    assert engine.replay_neurons(tape, 0, torch.arange(4), torch.zeros(4, 1), reduce, chunk=3).shape == (4, 3)
    assert calls == [(True, 1)] * 4


def test_close_calls_are_the_largest_share_of_any_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Margins of 0.1 and 0.5 between two largest logits that are about 10 above the mean."""
    model = small("llama", "sdpa")
    logits = torch.zeros(4, 1000)
    logits[:, 0] = 10.0
    logits[:, 1] = torch.tensor([9.9, 9.9, 9.5, 9.5])
    one = edit(model, Site.NEURONS, 0, [3], positions=model.positions.final)
    ids = some_ids(model, 4)
    monkeypatch.setattr("arithscope.models.engine.full_pass.edited_logits", lambda *_: logits)
    for tie, share in ((0.0, 0.0), (0.005, 0.0), (0.02, 0.5), (0.1, 1.0)):
        engine = FullPass(tie)
        engine.replay(engine.record(model, ids, 0), [one], edited_logits)
        assert engine.close_calls == share
    logits = logits.clone()
    logits[:, 1] = 0.0
    engine.replay(engine.record(model, ids, 0), [one], edited_logits)
    assert engine.close_calls == 1.0  # the maximum over earlier variants stays
    engine.close_calls = 0.0
    engine.replay(engine.record(model, ids, 0), [one], edited_logits)
    assert engine.close_calls == 0.0


def test_both_engines_refuse_the_same_inputs() -> None:
    model = small("llama", "sdpa")
    ids, op1, last = some_ids(model, 2), model.positions.op1, model.positions.final
    for engine in (REPLAY, FullPass()):
        for first in (-1, ids.shape[1]):
            with pytest.raises(ValueError, match="outside the prompt"):
                engine.record(model, ids, first)
        tape = engine.record(model, ids, last, neurons=[0])
        with pytest.raises(ValueError, match="before position"):
            engine.replay(tape, [edit(model, Site.NEURONS, 0, positions=op1)], edited_logits)
        with pytest.raises(ValueError, match="number of variants"):
            engine.replay(tape, [], edited_logits)
        with pytest.raises(ValueError, match="nothing to replay"):
            engine.replay_neurons(tape, 0, torch.tensor([], dtype=torch.long), torch.zeros(0, 1), edited_logits)


def test_a_model_with_another_engine_shares_everything_else() -> None:
    model, slow = small("llama", "sdpa"), FullPass()
    other = model.with_engine(slow)
    assert other.engine is slow
    assert model.engine is REPLAY
    assert (other.hf_model, other.tokenizer, other.layers) == (model.hf_model, model.tokenizer, model.layers)

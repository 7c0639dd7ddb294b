"""Both engines where numbers take several tokens: at every named position and every answer step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from arithscope.models.engine.full_pass import FullPass
from arithscope.models.engine.interface import REPLAY
from arithscope.models.hooks import EMBEDDINGS, capturing, edit
from arithscope.models.model import Model, Site
from tests.families import FAMILY_AND_ATTENTION, STRATA, small_at, some_of_stratum

TOLERANCE = 1e-5
SLOW = FullPass()
EVERY_CUT = [("llama", "sdpa"), ("gemma2", "eager"), ("gpt2", "sdpa")]
STEPS = [(numbers, step + 1) for numbers, stratum in STRATA.items() for step in range(stratum.steps)]
# Every family with every way to cut numbers. That of most with anything but digits is slow, as there are so many.
QUICK = [("digits", family) for family in FAMILY_AND_ATTENTION] + [(n, f) for n in STRATA for f in EVERY_CUT]
EVERYWHERE = [
    pytest.param(*family, numbers, step, marks=[] if (numbers, family) in QUICK else pytest.mark.slow)
    for family in FAMILY_AND_ATTENTION
    for numbers, step in STEPS
]
everywhere = pytest.mark.parametrize(("family", "attention", "numbers", "step"), EVERYWHERE)


def edited_logits(unedited: Tensor, edited: Tensor) -> Tensor:
    return edited


def both(unedited: Tensor, edited: Tensor) -> Tensor:
    return torch.stack([unedited[None], edited], dim=2)


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


@torch.no_grad()
def other_activations(model: Model, n: int):  # type: ignore[no-untyped-def]
    """Activations of other prompts, to patch in."""
    layers = range(model.sizes.layers)
    with capturing(model, heads=layers, neurons=layers, residual=[EMBEDDINGS, *layers]) as seen:
        model.logits(model.encode(some_of_stratum(model, n, seed=1)))
    return seen


@pytest.mark.parametrize(("numbers", "step"), STEPS)
def test_the_positions_of_a_stratum(numbers: str, step: int) -> None:
    model, stratum = small_at("llama", "sdpa", numbers, step), STRATA[numbers]
    first, _, third = stratum.tokens.counts
    names = [f"op1.{i + 1}" for i in range(first)] + ["operator"]
    names += [f"op2.{i + 1}" for i in range(stratum.tokens.counts[1])] + ["last"]
    assert list(model.positions.named()) == [*names, *(f"answer.{i}" for i in range(1, step))]
    assert list(model.positions.named().values()) == list(range(1, model.encoder.length))
    assert third == stratum.steps
    prompts = some_of_stratum(model)
    texts = ["".join(model.encoder.tokens(row)[1:]) for row in model.encode(prompts)]
    ends = (*stratum.tokens.answer, 0)
    given = [str(n)[: len(str(n)) - ends[step - 2]] if step > 1 else "" for n in prompts.answer.tolist()]
    assert texts == [q + x for q, x in zip(prompts.text(model.encoder.template), given, strict=True)]


@everywhere
def test_the_residual_stream_at_every_position_and_layer(family: str, attention: str, numbers: str, step: int) -> None:
    model = small_at(family, attention, numbers, step)
    ids, seen = model.encode(some_of_stratum(model)), other_activations(model, 3).residual
    slow_tape = SLOW.record(model, ids, 0)
    for position in model.positions.named().values():
        tape = REPLAY.record(model, ids, position)
        for layer in (EMBEDDINGS, *range(model.sizes.layers)):
            values = seen[layer][:, position]
            got = REPLAY.replay_residual(tape, layer, position, values, both)
            want = SLOW.replay_residual(slow_tape, layer, position, values, both)
            assert got.shape == (1, 3, 2, model.sizes.vocabulary)
            assert worst(got, want) < TOLERANCE
            effect = worst(got[:, :, 0], got[:, :, 1])
            own = tape.inputs[layer + 1][:, 0]
            if layer == model.sizes.layers - 1 and position != model.positions.final:
                assert effect < TOLERANCE  # nothing reads it any more
            elif worst(values, own) > 0.1:  # the tokens so far differ
                assert effect > 100 * TOLERANCE
            assert worst(REPLAY.replay_residual(tape, layer, position, own, edited_logits)[0], tape.logits) < TOLERANCE


@everywhere
def test_edits_at_every_position(family: str, attention: str, numbers: str, step: int) -> None:
    """Single heads, the whole MLP and single neurons of two layers."""
    model = small_at(family, attention, numbers, step)
    ids, seen, s = model.encode(some_of_stratum(model)), other_activations(model, 3), model.sizes
    slow_tape, neurons = SLOW.record(model, ids, 0), torch.tensor([5, 30])
    for position in model.positions.named().values():
        tape = REPLAY.record(model, ids, position, neurons=[1])
        which = torch.eye(s.heads + 1, s.heads, dtype=torch.bool)[-2:]
        heads = edit(model, Site.HEADS, 0, which, positions=position, values=seen.heads[0][:, [position]])
        mlp = edit(
            model,
            Site.NEURONS,
            1,
            torch.tensor([[False], [True]]).expand(2, s.neurons),
            positions=position,
            values=seen.neurons[1][:, [position]],
        )
        got, want = (e.replay(t, [heads, mlp], edited_logits) for e, t in ((REPLAY, tape), (SLOW, slow_tape)))
        assert worst(got, want) < TOLERANCE
        values = seen.neurons[1][:, position, neurons].T
        got, want = (
            e.replay_neurons(t, 1, neurons, values, edited_logits, position)
            for e, t in ((REPLAY, tape), (SLOW, slow_tape))
        )
        assert worst(got, want) < TOLERANCE
        if position == model.positions.final:
            assert worst(got[0], tape.logits) > 100 * TOLERANCE


@everywhere
def test_sweeps_and_means(family: str, attention: str, numbers: str, step: int) -> None:
    model, layers = small_at(family, attention, numbers, step), range(3)
    prompts = some_of_stratum(model, 12)
    with torch.no_grad(), capturing(model, heads=layers, neurons=layers, residual=layers) as seen:
        logits = model.logits(model.encode(prompts))
    rows = []
    for block in REPLAY.sweep(model, prompts, heads=[0], neurons=[1], residual=[2], keep=torch.clone, rows=5):
        rows += block.rows.tolist()
        assert worst(block.logits, logits[block.rows]) < TOLERANCE
        kept, tail = block.activations, slice(model.positions.op2, None)
        pairs = (kept.heads[0], seen.heads[0]), (kept.neurons[1], seen.neurons[1]), (kept.residual[2], seen.residual[2])
        for got, want in pairs:
            assert worst(got, want[block.rows, tail]) < TOLERANCE
    assert sorted(rows) == list(range(len(prompts)))
    for at, found in REPLAY.sweep_neurons(model, prompts, {1: torch.tensor([4, 2])}, rows=5):
        assert worst(found[1], seen.neurons[1][at, -1][:, [4, 2]]) < TOLERANCE
    means, slow = (engine.mean_activations(model, prompts, rows=5) for engine in (REPLAY, SLOW))
    assert worst(means.heads, slow.heads) < TOLERANCE
    assert worst(means.neurons, slow.neurons) < TOLERANCE
    assert means.neurons.shape[1] == model.encoder.length


def test_the_residual_stream_of_a_tape_with_edits() -> None:
    model = small_at("llama", "sdpa", "digits", 2)
    ids, seen = model.encode(some_of_stratum(model)), other_activations(model, 3).residual
    where = tuple(model.positions.named().values())
    common = [edit(model, Site.HEADS, layer, [1, 2], positions=where) for layer in range(3)]
    op2 = model.positions.op2
    got, want = (
        engine.replay_residual(engine.record(model, ids, op2, edits=common), 0, op2, seen[0][:, op2], both)
        for engine in (REPLAY, SLOW)
    )
    assert worst(got, want) < TOLERANCE
    assert worst(got[:, :, 0], got[:, :, 1]) > 100 * TOLERANCE


def test_batch_size_does_not_matter_to_the_slow_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_at("llama", "sdpa", "digits", 1)
    ids, last = model.encode(some_of_stratum(model)), model.positions.final
    values, tape = other_activations(model, 3).residual[1][:, last], SLOW.record(model, ids, 0)
    whole = SLOW.replay_residual(tape, 1, last, values, edited_logits)
    monkeypatch.setattr("arithscope.models.engine.full_pass.rows_that_fit", lambda *_: 2)
    assert worst(SLOW.replay_residual(tape, 1, last, values, edited_logits), whole) < TOLERANCE


def test_both_engines_refuse_a_position_before_the_tape() -> None:
    model = small_at("llama", "sdpa", "digits", 1)
    ids, last = model.encode(some_of_stratum(model)), model.positions.final
    for engine in (REPLAY, SLOW):
        tape = engine.record(model, ids, last)
        with pytest.raises(ValueError, match="before position"):
            engine.replay_residual(tape, 0, last - 1, torch.zeros(3, model.sizes.width), edited_logits)


def test_no_hooks_are_left_behind() -> None:
    model = small_at("llama", "sdpa", "digits", 1)
    ids, last = model.encode(some_of_stratum(model)), model.positions.final
    for layer in (EMBEDDINGS, 1):
        tape = SLOW.record(model, ids, last)
        SLOW.replay_residual(tape, layer, last, torch.zeros(3, model.sizes.width), edited_logits)
    for module in model.hf_model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_input_of_the_first_layer_is_captured(family: str) -> None:
    """Where position embeddings are added to the token embeddings, it holds both."""
    model = small_at(family, "sdpa", "digits", 1)
    ids = model.encode(some_of_stratum(model))
    with torch.no_grad(), capturing(model, residual=[EMBEDDINGS, 0]) as seen:
        model.logits(ids)
    tape = REPLAY.record(model, ids, 0)
    assert worst(seen.residual[EMBEDDINGS], tape.inputs[0]) == 0
    assert worst(seen.residual[0], tape.inputs[1]) == 0
    positions = model.hf_model.transformer.wpe.weight[: ids.shape[1]] if family == "gpt2" else 0
    assert worst(seen.residual[EMBEDDINGS], model.embed(ids) + positions) < TOLERANCE

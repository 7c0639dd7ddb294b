"""Replay against the full edited forward pass, for every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from arithscope.errors import UserError
from arithscope.models.engine.full_pass import FullPass
from arithscope.models.engine.replay import PrefixCache, Tape, check_replay, record, replay, replay_neurons
from arithscope.models.hooks import Edit, capturing, edit
from arithscope.models.memory import logit_bytes
from arithscope.models.model import Model, Site
from tests.families import FAMILY_AND_ATTENTION, small, some_ids

TOLERANCE = 1e-5
families = pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION)


def edited_logits(base: Tensor, edited: Tensor) -> Tensor:
    return edited


def full(model: Model, ids: Tensor, edits: list[Edit]) -> Tensor:
    """The oracle: a full forward pass for every variant."""
    slow = FullPass()
    return slow.replay(slow.record(model, ids, 0), edits, edited_logits)


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


@torch.no_grad()
def foreign(model: Model, ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Heads and neurons of other prompts, to patch in: [batch, positions, …]."""
    with capturing(model, heads=[layer], neurons=[layer]) as seen:
        model.logits(ids.roll(1, 0) if len(ids) > 1 else some_ids(model, 4)[3:])
    return seen.heads[layer], seen.neurons[layer]


@families
@pytest.mark.parametrize("batch", [1, 3])
def test_single_neurons_at_every_position(family: str, attention: str, batch: int) -> None:
    model = small(family, attention)
    ids = some_ids(model, batch)
    neurons = torch.tensor([0, 5, 17, 30, 47])
    for layer in range(model.sizes.layers):
        _, other = foreign(model, ids, layer)
        for position in model.positions.named().values():
            tape = record(model, ids, position, neurons=[layer])
            values = other[:, position, neurons].T
            # Five variants in chunks of two: the last chunk is left over.
            got = replay_neurons(tape, layer, neurons, values, edited_logits, position, chunk=2)
            entries = torch.nn.functional.one_hot(neurons, model.sizes.neurons).bool()[:, None, :]
            change = Edit(Site.NEURONS, layer, (position,), entries, values[:, :, None, None, None])
            assert worst(got, full(model, ids, [change])) < TOLERANCE
            if position == model.positions.final:
                wrong_neuron = replay_neurons(tape, layer, neurons.roll(1), values, edited_logits, position)
                assert worst(got, wrong_neuron) > 100 * TOLERANCE


@families
@pytest.mark.parametrize("batch", [1, 3])
def test_heads_and_whole_mlps_at_every_position(family: str, attention: str, batch: int) -> None:
    model = small(family, attention)
    ids = some_ids(model, batch)
    each_head = torch.eye(model.sizes.heads, dtype=torch.bool)
    unedited = model.logits(ids)
    for layer in range(model.sizes.layers):
        heads, neurons = foreign(model, ids, layer)
        for position in model.positions.named().values():
            tape = record(model, ids, position)
            patch_heads = edit(
                model, Site.HEADS, layer, each_head, positions=position, values=heads[:, [position]][None]
            )
            got = replay(tape, [patch_heads], edited_logits, chunk=3)
            assert worst(got, full(model, ids, [patch_heads])) < TOLERANCE
            patch_mlp = edit(model, Site.NEURONS, layer, positions=position, values=neurons[:, [position]])
            got = replay(tape, [patch_mlp], edited_logits)
            assert worst(got, full(model, ids, [patch_mlp])) < TOLERANCE
            # The first layer may read the same in both prompts; from the second on all earlier tokens mix in.
            if layer >= 1 and position == model.positions.final:
                assert worst(got[0], unedited) > 100 * TOLERANCE


@families
def test_many_edits_in_several_layers_and_positions_at_once(family: str, attention: str) -> None:
    model = small(family, attention)
    ids = some_ids(model)
    where = tuple(model.positions.named().values())
    random = torch.Generator().manual_seed(3)
    variants, batch = 5, len(ids)

    def some(*shape: int) -> Tensor:
        return torch.rand(shape, generator=random)

    s = model.sizes
    edits = [
        edit(model, Site.HEADS, 0, some(variants, s.heads) < 0.4, positions=where, values=some(4, s.heads, s.head_dim)),
        edit(model, Site.NEURONS, 1, some(variants, batch, s.neurons) < 0.3, positions=where),
        edit(model, Site.NEURONS, 2, [1, 2, 3], positions=where[2:], values=some(variants, batch, 2, s.neurons)),
        edit(model, Site.HEADS, 2, [0], positions=where[3], values=some(batch, 1, s.heads, s.head_dim)),
    ]
    got = replay(record(model, ids, where[0]), edits, edited_logits, chunk=2)
    assert worst(got, full(model, ids, edits)) < TOLERANCE


@families
def test_edits_of_the_tape_apply_to_every_replay(family: str, attention: str) -> None:
    """Edits before and inside the tail, below and above the replayed layers, against a full pass with all edits."""
    model = small(family, attention)
    ids, s, last = some_ids(model), model.sizes, model.positions.final
    where = tuple(model.positions.named().values())
    random = torch.Generator().manual_seed(4)

    def some(*shape: int) -> Tensor:
        return torch.rand(shape, generator=random)

    common = [
        edit(model, Site.HEADS, layer, [1, 2], positions=where, values=some(1, 4, s.heads, s.head_dim))
        for layer in range(s.layers)
    ]
    one = edit(model, Site.NEURONS, 1, some(5, s.neurons) < 0.4, positions=last)
    tape = record(model, ids, last, neurons=[1], edits=common)
    assert worst(replay(tape, [one], edited_logits, chunk=2), full(model, ids, [*common, one])) < TOLERANCE
    neurons, values = torch.tensor([3, 7, 30]), some(3, len(ids))
    want = [
        full(model, ids, [*common, edit(model, Site.NEURONS, 1, [n], positions=last, values=v[:, None, None])])
        for n, v in zip(neurons.tolist(), values, strict=True)
    ]
    got = replay_neurons(tape, 1, neurons, values, edited_logits)
    assert worst(got, torch.cat(want)) < TOLERANCE
    assert worst(tape.logits[None], full(model, ids, common)) < TOLERANCE
    slow = FullPass()
    slow_tape = slow.record(model, ids, last, edits=common)
    assert worst(slow_tape.logits, tape.logits) < TOLERANCE
    assert worst(slow.replay_neurons(slow_tape, 1, neurons, values, edited_logits), got) < TOLERANCE
    assert worst(tape.logits[None], record(model, ids, last).logits[None]) > 100 * TOLERANCE


def test_edits_of_the_tape_before_or_after_its_first_position() -> None:
    model = small("llama", "sdpa")
    ids, op2, last = some_ids(model), model.positions.op2, model.positions.final
    for position in (model.positions.op1, last):
        common = [edit(model, Site.HEADS, 1, [0, 3], positions=position)]
        tape = record(model, ids, op2, edits=common)
        one = edit(model, Site.NEURONS, 0, positions=op2)
        assert worst(replay(tape, [one], edited_logits), full(model, ids, [*common, one])) < TOLERANCE


def test_single_neurons_are_edited_at_the_last_position_by_default() -> None:
    model = small("llama", "sdpa")
    ids = some_ids(model)
    tape = record(model, ids, model.positions.op1, neurons=[1])
    got = replay_neurons(tape, 1, torch.tensor([3]), torch.full((1, 1), 2.0), edited_logits)
    change = edit(model, Site.NEURONS, 1, [3], positions=model.positions.final, values=2.0)
    assert worst(got, full(model, ids, [change])) < TOLERANCE


def test_values_are_rounded_like_the_models_own() -> None:
    model = small("llama", "sdpa", torch.bfloat16)
    tape = record(model, some_ids(model), model.positions.final, neurons=[1])
    value = torch.full((1, 1), 2.0)
    exact, close = (
        replay_neurons(tape, 1, torch.tensor([3]), x, edited_logits) for x in (value.bfloat16(), value + 2**-9)
    )
    assert torch.equal(exact, close)


def test_layers_that_are_called_with_keywords_only() -> None:
    model = small("llama", "sdpa")
    ids, last = some_ids(model), model.positions.final

    def named(module: object, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
        return (), {"hidden_states": args[0], **kwargs} if args else kwargs

    handles = [layer.register_forward_pre_hook(named, with_kwargs=True) for layer in model.layers]
    try:
        one = edit(model, Site.NEURONS, 1, positions=last)
        got = replay(record(model, ids, last), [one], edited_logits)
        assert worst(got, full(model, ids, [one])) < TOLERANCE
    finally:
        for handle in handles:
            handle.remove()


@families
def test_another_position_gives_another_result(family: str, attention: str) -> None:
    """A negative control: the same edit at a neighbouring position."""
    model = small(family, attention)
    ids = some_ids(model)
    tape = record(model, ids, model.positions.op1)
    at = [edit(model, Site.NEURONS, 1, positions=p, values=2.0) for p in (model.positions.op2, model.positions.final)]
    a, b = (replay(tape, [e], edited_logits) for e in at)
    assert worst(a, b) > 100 * TOLERANCE


@families
def test_unedited_variant_in_every_chunk_equals_the_model(family: str, attention: str) -> None:
    model = small(family, attention)
    ids = some_ids(model)
    tape = record(model, ids, model.positions.final, neurons=[0])
    bases: list[Tensor] = []

    def reduce(base: Tensor, edited: Tensor) -> Tensor:
        bases.append(base)
        return edited[..., 0]

    got = replay_neurons(tape, 0, torch.arange(7), torch.zeros(7, 1), reduce, chunk=3)
    assert got.shape == (7, len(ids))
    assert len(bases) == 3
    for base in bases:
        assert worst(base, model.logits(ids)) < TOLERANCE


@families
def test_check_replay_accepts_the_family(family: str, attention: str) -> None:
    model = small(family, attention)
    assert check_replay(model, some_ids(model)) < TOLERANCE


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_with_a_few_shot_prefix(family: str) -> None:
    model = small(family, prefix="1+2=3=4+5=9=")
    ids = some_ids(model)
    assert (ids.shape[1], model.positions.op1) == (17, 13)
    for position in (0, 5, *model.positions.named().values()):
        change = edit(model, Site.HEADS, 1, [0, 2], positions=position)
        got = replay(record(model, ids, position), [change], edited_logits)
        assert worst(got, full(model, ids, [change])) < TOLERANCE


def test_chunk_size_does_not_change_the_result() -> None:
    model = small("llama", "sdpa")
    ids = some_ids(model)
    tape = record(model, ids, model.positions.final, neurons=[1])
    neurons = torch.arange(model.sizes.neurons)
    results = [
        replay_neurons(tape, 1, neurons, torch.zeros(len(neurons), 1), edited_logits, chunk=chunk)
        for chunk in (None, 1, 7, 1000)
    ]
    for other in results[1:]:
        assert worst(results[0], other) < TOLERANCE


def test_edits_outside_the_tape_or_of_unequal_variants_are_refused() -> None:
    model = small("llama", "sdpa")
    tape: Tape = record(model, some_ids(model), model.positions.op2)
    early = edit(model, Site.NEURONS, 0, positions=model.positions.op1)
    with pytest.raises(ValueError, match="before position"):
        replay(tape, [early], edited_logits)
    late = edit(model, Site.NEURONS, 0, positions=model.positions.final)
    with pytest.raises(ValueError, match="before position"):
        replay(tape, [late, early], edited_logits)
    partly = edit(model, Site.NEURONS, 0, positions=(model.positions.op1, model.positions.final))
    with pytest.raises(ValueError, match="before position"):
        replay(tape, [partly], edited_logits)
    two = edit(model, Site.HEADS, 0, torch.eye(4, dtype=torch.bool)[:2], positions=model.positions.final)
    three = edit(model, Site.HEADS, 0, torch.eye(4, dtype=torch.bool)[:3], positions=model.positions.final)
    with pytest.raises(ValueError, match="number of variants"):
        replay(tape, [two, three], edited_logits)


def test_a_position_outside_the_prompt_is_refused() -> None:
    model = small("llama", "sdpa")
    ids = some_ids(model)
    length = ids.shape[1]
    for first in (-1, length):
        with pytest.raises(ValueError, match="outside the prompt"):
            record(model, ids, first)
    for first in (0, length - 1):
        tape = record(model, ids, first)
        assert (tape.first, tape.length, tape.batch) == (first, length, len(ids))
        assert worst(tape.logits, model.logits(ids)) < TOLERANCE


def test_there_must_be_something_to_replay() -> None:
    model = small("llama", "sdpa")
    tape = record(model, some_ids(model), model.positions.final, neurons=[0])
    with pytest.raises(ValueError, match="number of variants"):
        replay(tape, [], edited_logits)
    with pytest.raises(ValueError, match="nothing to replay"):
        replay_neurons(tape, 0, torch.tensor([], dtype=torch.long), torch.zeros(0, 1), edited_logits)


def test_there_must_be_a_value_for_each_neuron() -> None:
    model = small("llama", "sdpa")
    tape = record(model, some_ids(model), model.positions.final, neurons=[0])
    with pytest.raises(RuntimeError, match="must match"):
        replay_neurons(tape, 0, torch.arange(3), torch.zeros(5, 1), edited_logits)


def test_chunks_are_even_and_as_large_as_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama", "sdpa")
    ids = some_ids(model, 3)
    at_last, at_last_two = (record(model, ids, model.positions.op2, neurons=[0], last=last) for last in (1, 2))
    sizes: list[int] = []

    def reduce(base: Tensor, edited: Tensor) -> Tensor:
        sizes.append(len(edited))
        return edited[..., 0]

    def sizes_of(variants: int, chunk: int | None, tape: Tape = at_last) -> list[int]:
        sizes.clear()
        replay_neurons(tape, 0, torch.arange(variants), torch.zeros(variants, 1), reduce, tape.first, chunk)
        return list(sizes)

    assert sizes_of(10, 6) == [5, 5]
    assert sizes_of(7, 3) == [3, 3, 1]
    assert sizes_of(4, 4) == [4]
    # By default: 3 prompts for each variant, and for the unedited one that leads every chunk.
    for tape, more in ((at_last, 0), (at_last_two, logit_bytes(model))):  # bytes of a row's further logits
        for rows, want in ((2, [1, 1, 1]), (8, [1, 1, 1]), (9, [2, 1]), (12, [3])):

            def fitting_rows(*arguments: object, rows: int = rows, more: int = more) -> int:
                assert arguments == (model, ids.shape[1] - at_last.first, ids.shape[1], more)
                return rows

            monkeypatch.setattr("arithscope.models.engine.replay.rows_that_fit", fitting_rows)
            assert sizes_of(3, None, tape) == want


def test_the_prefix_cache_prepends_its_prefix() -> None:
    """Row v·B + b has prefix b before its own keys and values; nothing is stored."""
    generator = torch.Generator().manual_seed(0)
    prefix = [tuple(torch.randn(2, 3, 4, 5, generator=generator) for _ in range(2)) for _ in range(2)]
    for rows in (2, 6):
        new = [torch.randn(rows, 3, 1, 5, generator=generator) for _ in range(2)]
        for layer in (0, 1):
            cache = PrefixCache(prefix, False)
            for _ in range(2):
                for old, own, both in zip(prefix[layer], new, cache.update(*new, layer), strict=True):
                    assert both.shape == (rows, 3, 5, 5)
                    for row in range(rows):
                        assert torch.equal(both[row], torch.cat([old[row % 2], own[row]], dim=1))
            assert cache.get_seq_length(layer) == PrefixCache(prefix[:1], False).get_seq_length() == 4
        for cache in (PrefixCache(prefix, True), PrefixCache([], False)):
            assert all(a is b for a, b in zip(cache.update(*new, 0), new, strict=True))
        assert cache.get_seq_length() == 0
        assert len(cache) == 0  # it has no layers of the library's cache


def test_recording_and_replaying_leave_no_hooks_behind() -> None:
    model = small("llama", "sdpa")
    ids = some_ids(model)
    tape = record(model, ids, model.positions.final)
    with pytest.raises(RuntimeError):
        record(model, torch.full_like(ids, -1).float(), model.positions.final)
    replay(tape, [edit(model, Site.HEADS, 0, [0], positions=model.positions.final)], edited_logits)
    for module in model.hf_model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks


@pytest.mark.parametrize(
    ("dtype", "quantization", "allowed"),
    [(torch.float32, "", 1e-3), (torch.bfloat16, "", 0.15), (torch.float32, "4bit", 0.15)],
)
def test_what_check_replay_measures_and_refuses(
    dtype: torch.dtype, quantization: str, allowed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replays whose logits are wrong by a known amount, for one prompt and at one position."""
    model = small("llama", "sdpa", dtype)
    ids = some_ids(model)
    own = model.logits(ids)
    wrong = torch.zeros_like(own)
    wrong[1, :] = 0.5 * own.std(-1).mean()
    wrong[1, ::4] = own.std(-1).mean()  # root mean square: √(¾·¼ + ¼·1) of the spread
    where = sorted({0, *model.positions.named().values()})
    monkeypatch.setattr(Model, "quantization", quantization)

    def check(share: float, which: int) -> float:
        calls = iter(range(len(where)))
        monkeypatch.setattr(Model, "unembed", lambda *_: own + wrong * (share if next(calls) == which else share / 9))
        return check_replay(model, ids)

    root = float((wrong[1] / own.std(-1).mean()).square().mean().sqrt())
    for which in range(len(where)):
        share = 0.95 * allowed / root
        assert check(share, which) == pytest.approx(share * root, rel=1e-3)
        with pytest.raises(UserError, match=r"small llama differs .* by .* of their spread"):
            check(1.05 * allowed / root, which)
    with pytest.raises(UserError, match="by nan"):
        check(float("nan"), 0)
    # Where all logits are equal there is no spread to compare with.
    own = torch.zeros_like(own)
    monkeypatch.setattr(Model, "logits", lambda *_: own)
    wrong = torch.ones_like(own)
    assert check(5e-4, 0) == pytest.approx(5e-4)

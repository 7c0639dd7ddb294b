"""Replay against the full edited forward pass, for every family."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from arithscope.prompts import random_source, sample, square
from arithscope.subject.edits import Edit, capturing, edit, editing
from arithscope.subject.replay import Tape, check_replay, record, replay, replay_neurons
from arithscope.subject.subject import Site, Subject
from tests.families import FAMILY_AND_ATTENTION, small

TOLERANCE = 1e-5
families = pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION)


def some_ids(subject: Subject, n: int = 3) -> Tensor:
    return subject.encode(sample(square("+-*/", 30), n, random_source(0, "ids")))


def edited_logits(base: Tensor, edited: Tensor) -> Tensor:
    return edited


@torch.no_grad()
def full(subject: Subject, ids: Tensor, edits: list[Edit]) -> Tensor:
    """The oracle: every variant by its own full forward pass."""
    variants = max(e.variants for e in edits)
    rows = []
    for v in range(variants):
        one = [e.select(torch.tensor([v if e.variants > 1 else 0])) for e in edits]
        with editing(subject, one, len(ids)):
            rows.append(subject.logits(ids))
    return torch.stack(rows)


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


@torch.no_grad()
def foreign(subject: Subject, ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Heads and neurons of other prompts, to patch in: [batch, positions, …]."""
    with capturing(subject, heads=[layer], neurons=[layer]) as seen:
        subject.logits(ids.roll(1, 0) if len(ids) > 1 else some_ids(subject, 4)[3:])
    return seen.heads[layer], seen.neurons[layer]


@families
@pytest.mark.parametrize("batch", [1, 3])
def test_single_neurons_at_every_position(family: str, attention: str, batch: int) -> None:
    subject = small(family, attention)
    ids = some_ids(subject, batch)
    neurons = torch.tensor([0, 5, 17, 30, 47])
    for layer in range(subject.sizes.layers):
        _, other = foreign(subject, ids, layer)
        for position in subject.positions.named().values():
            tape = record(subject, ids, position, neurons=[layer])
            values = other[:, position, neurons].T
            # Five variants in chunks of two: the last chunk is left over.
            got = replay_neurons(tape, layer, neurons, values, edited_logits, position, chunk=2)
            entries = torch.nn.functional.one_hot(neurons, subject.sizes.neurons).bool()[:, None, :]
            change = Edit(Site.NEURONS, layer, (position,), entries, values[:, :, None, None, None])
            assert worst(got, full(subject, ids, [change])) < TOLERANCE
            if position == subject.positions.last:
                wrong_neuron = replay_neurons(tape, layer, neurons.roll(1), values, edited_logits, position)
                assert worst(got, wrong_neuron) > 100 * TOLERANCE


@families
@pytest.mark.parametrize("batch", [1, 3])
def test_heads_and_whole_mlps_at_every_position(family: str, attention: str, batch: int) -> None:
    subject = small(family, attention)
    ids = some_ids(subject, batch)
    each_head = torch.eye(subject.sizes.heads, dtype=torch.bool)
    unedited = subject.logits(ids)
    for layer in range(subject.sizes.layers):
        heads, neurons = foreign(subject, ids, layer)
        for position in subject.positions.named().values():
            tape = record(subject, ids, position)
            patch_heads = edit(
                subject, Site.HEADS, layer, each_head, positions=position, values=heads[:, [position]][None]
            )
            got = replay(tape, [patch_heads], edited_logits, chunk=3)
            assert worst(got, full(subject, ids, [patch_heads])) < TOLERANCE
            patch_mlp = edit(subject, Site.NEURONS, layer, positions=position, values=neurons[:, [position]])
            got = replay(tape, [patch_mlp], edited_logits)
            assert worst(got, full(subject, ids, [patch_mlp])) < TOLERANCE
            # What the first layer sees may be equal in both prompts; from the second on all earlier tokens mix in.
            if layer >= 1 and position == subject.positions.last:
                assert worst(got[0], unedited) > 100 * TOLERANCE


@families
def test_many_edits_in_several_layers_and_positions_at_once(family: str, attention: str) -> None:
    subject = small(family, attention)
    ids = some_ids(subject)
    where = tuple(subject.positions.named().values())
    random = torch.Generator().manual_seed(3)
    variants, batch = 5, len(ids)

    def some(*shape: int) -> Tensor:
        return torch.rand(shape, generator=random)

    s = subject.sizes
    edits = [
        edit(
            subject, Site.HEADS, 0, some(variants, s.heads) < 0.4, positions=where, values=some(4, s.heads, s.head_dim)
        ),
        edit(subject, Site.NEURONS, 1, some(variants, batch, s.neurons) < 0.3, positions=where),
        edit(subject, Site.NEURONS, 2, [1, 2, 3], positions=where[2:], values=some(variants, batch, 2, s.neurons)),
        edit(subject, Site.HEADS, 2, [0], positions=where[3], values=some(batch, 1, s.heads, s.head_dim)),
    ]
    got = replay(record(subject, ids, where[0]), edits, edited_logits, chunk=2)
    assert worst(got, full(subject, ids, edits)) < TOLERANCE


@families
def test_edits_of_the_tape_hold_in_every_replay(family: str, attention: str) -> None:
    """Recorded once, before and inside the tail, below and above the replayed layers; against a full pass with all edits."""
    subject = small(family, attention)
    ids, s, last = some_ids(subject), subject.sizes, subject.positions.last
    where = tuple(subject.positions.named().values())
    random = torch.Generator().manual_seed(4)

    def some(*shape: int) -> Tensor:
        return torch.rand(shape, generator=random)

    common = [
        edit(subject, Site.HEADS, layer, [1, 2], positions=where, values=some(1, 4, s.heads, s.head_dim))
        for layer in range(s.layers)
    ]
    one = edit(subject, Site.NEURONS, 1, some(5, s.neurons) < 0.4, positions=last)
    tape = record(subject, ids, last, neurons=[1], edits=common)
    assert worst(replay(tape, [one], edited_logits, chunk=2), full(subject, ids, [*common, one])) < TOLERANCE
    neurons, values = torch.tensor([3, 7, 30]), some(3, len(ids))
    want = [
        full(subject, ids, [*common, edit(subject, Site.NEURONS, 1, [n], positions=last, values=v[:, None, None])])
        for n, v in zip(neurons.tolist(), values, strict=True)
    ]
    got = replay_neurons(tape, 1, neurons, values, edited_logits)
    assert worst(got, torch.cat(want)) < TOLERANCE
    assert worst(tape.logits[None], full(subject, ids, common)) < TOLERANCE
    assert worst(tape.logits[None], record(subject, ids, last).logits[None]) > 100 * TOLERANCE


@families
def test_wrong_position_differs(family: str, attention: str) -> None:
    """A negative control: the same edit at a neighbouring position does something else."""
    subject = small(family, attention)
    ids = some_ids(subject)
    tape = record(subject, ids, subject.positions.op1)
    at = [
        edit(subject, Site.NEURONS, 1, positions=p, values=2.0) for p in (subject.positions.op2, subject.positions.last)
    ]
    a, b = (replay(tape, [e], edited_logits) for e in at)
    assert worst(a, b) > 100 * TOLERANCE


@families
def test_unedited_variant_in_every_chunk_equals_the_model(family: str, attention: str) -> None:
    subject = small(family, attention)
    ids = some_ids(subject)
    tape = record(subject, ids, subject.positions.last, neurons=[0])
    bases: list[Tensor] = []

    def reduce(base: Tensor, edited: Tensor) -> Tensor:
        bases.append(base)
        return edited[..., 0]

    got = replay_neurons(tape, 0, torch.arange(7), torch.zeros(7, 1), reduce, chunk=3)
    assert got.shape == (7, len(ids))
    assert len(bases) == 3
    for base in bases:
        assert worst(base, subject.logits(ids)) < TOLERANCE


@families
def test_check_replay_accepts_the_family(family: str, attention: str) -> None:
    subject = small(family, attention)
    assert check_replay(subject, some_ids(subject)) < TOLERANCE


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_behind_a_few_shot_prefix(family: str) -> None:
    subject = small(family, prefix="1+2=3=4+5=9=")
    ids = some_ids(subject)
    assert (ids.shape[1], subject.positions.op1) == (17, 13)
    for position in (0, 5, *subject.positions.named().values()):
        change = edit(subject, Site.HEADS, 1, [0, 2], positions=position)
        got = replay(record(subject, ids, position), [change], edited_logits)
        assert worst(got, full(subject, ids, [change])) < TOLERANCE


def test_chunk_size_does_not_change_the_result() -> None:
    subject = small("llama", "sdpa")
    ids = some_ids(subject)
    tape = record(subject, ids, subject.positions.last, neurons=[1])
    neurons = torch.arange(subject.sizes.neurons)
    results = [
        replay_neurons(tape, 1, neurons, torch.zeros(len(neurons), 1), edited_logits, chunk=chunk)
        for chunk in (None, 1, 7, 1000)
    ]
    for other in results[1:]:
        assert worst(results[0], other) < TOLERANCE


def test_edits_outside_the_tape_or_of_unequal_variants_are_refused() -> None:
    subject = small("llama", "sdpa")
    tape: Tape = record(subject, some_ids(subject), subject.positions.op2)
    early = edit(subject, Site.NEURONS, 0, positions=subject.positions.op1)
    with pytest.raises(ValueError, match="before position"):
        replay(tape, [early], edited_logits)
    two = edit(subject, Site.HEADS, 0, torch.eye(4, dtype=torch.bool)[:2], positions=subject.positions.last)
    three = edit(subject, Site.HEADS, 0, torch.eye(4, dtype=torch.bool)[:3], positions=subject.positions.last)
    with pytest.raises(ValueError, match="number of variants"):
        replay(tape, [two, three], edited_logits)

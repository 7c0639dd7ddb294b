"""Edits, capture and gradients against weights changed by hand, loops, and finite differences."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from arithscope.models.families import FAMILIES
from arithscope.models.hooks import Edit, blocking_attention, capturing, edit, editing, gradients, layer_output
from arithscope.models.model import Site
from arithscope.prompts import Prompts
from tests.families import CONFIGS, FAMILY_AND_ATTENTION, small, some_ids

families = pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION)


@families
@pytest.mark.parametrize("site", list(Site))
@torch.no_grad()
def test_zeroing_a_component_everywhere_equals_zeroing_its_weights(family: str, attention: str, site: Site) -> None:
    model = small(family, attention)
    ids = some_ids(model)
    layer, which = 1, [0, 2]
    width = model.component_shape(site)[1]
    inputs = [i * width + j for i in which for j in range(width)]
    changed = copy.deepcopy(model.module(site, layer))
    weight = changed.weight if isinstance(changed, Conv1D) else changed.weight.T  # [in, out], a view
    weight[inputs] = 0
    original = model.module(site, layer).weight.clone()
    with editing(model, [edit(model, site, layer, which, positions=range(ids.shape[1]))], len(ids)):
        got = model.logits(ids)
    model.module(site, layer).weight.copy_(changed.weight)
    try:
        want = model.logits(ids)
    finally:
        model.module(site, layer).weight.copy_(original)
    assert float((got - want).abs().max()) < 1e-5
    assert float((got - model.logits(ids)).abs().max()) > 1e-3


@given(st.data())
@settings(max_examples=60)
def test_apply_sets_exactly_the_masked_entries(data: st.DataObject) -> None:
    """Against a loop over every entry, for all ways of broadcasting."""
    variants, batch, positions, components, width = (data.draw(st.integers(1, 3)) for _ in range(5))
    first = data.draw(st.integers(0, 2))
    at = data.draw(st.lists(st.integers(0, positions - 1), min_size=1, max_size=positions, unique=True))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))

    def size(full: int) -> int:
        return data.draw(st.sampled_from([1, full]))

    entries = torch.rand(size(variants), size(batch), components, generator=random) < 0.5
    values = torch.rand(size(variants), size(batch), size(len(at)), components, size(width), generator=random)
    x = torch.rand(variants * batch, positions, components * width, generator=random)
    change = Edit(Site.HEADS, 0, tuple(p + first for p in at), entries, values)
    got = change.apply(x, batch, first).view(variants, batch, positions, components, width)
    before = x.view(variants, batch, positions, components, width)
    full_entries = entries.expand(variants, batch, components)
    full_values = values.expand(variants, batch, len(at), components, width)
    for v in range(variants):
        for b in range(batch):
            for p in range(positions):
                for c in range(components):
                    edited = p in at and bool(full_entries[v, b, c])
                    want = full_values[v, b, at.index(p), c] if edited else before[v, b, p, c]
                    assert torch.equal(got[v, b, p, c], want)


@torch.no_grad()
def test_capture_inside_an_edit_sees_the_edited_values() -> None:
    model = small("llama", "sdpa")
    ids = some_ids(model)
    values = torch.arange(float(model.sizes.neurons))[None]
    with (
        editing(model, [edit(model, Site.NEURONS, 1, [3, 4], positions=2, values=values)], len(ids)),
        capturing(model, neurons=[1]) as seen,
    ):
        model.logits(ids)
    assert (seen.neurons[1][:, 2, 3] == 3).all()
    assert (seen.neurons[1][:, 2, 4] == 4).all()
    assert not (seen.neurons[1][:, 1, 3] == 3).any()


@families
@torch.no_grad()
def test_captured_activations_are_consistent(family: str, attention: str) -> None:
    """The last residual stream gives the logits; attention patterns are causal and sum to one."""
    model = small(family, attention)
    ids = some_ids(model)
    layers = range(model.sizes.layers)
    with capturing(model, heads=layers, neurons=layers, residual=layers, attention=layers) as seen:
        logits = model.logits(ids)
    s, (rows, length) = model.sizes, ids.shape
    for layer in layers:
        assert seen.heads[layer].shape == (rows, length, s.heads, s.head_dim)
        assert seen.neurons[layer].shape == (rows, length, s.neurons)
        weights = seen.attention[layer]
        assert weights.shape == (rows, s.heads, length, length)
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
        assert float(weights.triu(1).abs().max()) == 0
    assert float((model.unembed(seen.residual[s.layers - 1])[:, -1] - logits).abs().max()) < 1e-5
    assert model.attention_implementation == attention


@families
@torch.no_grad()
def test_blocked_attention_reads_nothing_from_the_sources(family: str, attention: str) -> None:
    """Two prompts that differ in op1 only: with attention to it blocked in all layers, op2's states are equal."""
    model = small(family, attention)
    p, layers = model.positions, range(model.sizes.layers)
    ids = model.encode(Prompts([3, 17], [0, 0], [8, 8]))
    with capturing(model, residual=layers, keep=lambda x: x[:, p.op2].clone()) as plain:
        before = model.logits(ids)
    sources = [p.op1, p.operator]  # the operator has read op1
    with blocking_attention(model, layers, p.op2, sources):
        with capturing(model, residual=layers, keep=lambda x: x[:, p.op2].clone()) as cut:
            after = model.logits(ids)
        with capturing(model, attention=layers) as weights:
            model.logits(ids)
    with blocking_attention(model, [], p.op2, sources):
        assert torch.equal(model.logits(ids), before)
    assert torch.equal(model.logits(ids), before)  # no hook is left
    for layer in layers:
        assert not torch.allclose(plain.residual[layer][0], plain.residual[layer][1], atol=1e-4)
        assert torch.allclose(cut.residual[layer][0], cut.residual[layer][1], atol=1e-6)
        shares = weights.attention[layer]
        assert float(shares[:, :, p.op2, sources].abs().max()) == 0
        assert torch.allclose(shares.sum(-1), torch.ones_like(shares.sum(-1)), atol=1e-5)
        assert float(shares[:, :, p.final, sources].min()) > 0  # other positions still attend to them
    assert not torch.allclose(before, after, atol=1e-4)


def test_hooks_are_removed_even_after_an_error() -> None:
    model = small("llama", "sdpa")
    ids = some_ids(model)
    before = model.logits(ids)
    with (
        pytest.raises(RuntimeError, match="on purpose"),
        editing(model, [edit(model, Site.NEURONS, 0, positions=1)], len(ids)),
        capturing(model, heads=[0], attention=[0]),
    ):
        raise RuntimeError("on purpose")
    assert torch.equal(model.logits(ids), before)
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in model.hf_model.modules())


def slope_of(f: Callable[[float], Tensor], step: float = 0.02) -> Tensor:
    """A derivative by central differences, extrapolated to step 0. The step is large because most families normalise in
    single precision; the extrapolation removes the error of large steps."""
    coarse = (f(step) - f(-step)) / (2 * step)
    fine = (f(step / 2) - f(-step / 2)) / step
    return (4 * fine - coarse) / 3


@families
@torch.no_grad()
def test_gradients_equal_finite_differences(family: str, attention: str) -> None:
    """At heads, neurons and residual stream, in double precision; a neighbouring entry is not close."""
    model = small(family, attention, torch.float64)
    ids = some_ids(model)
    at = model.positions.op2

    def measure(logits: Tensor) -> Tensor:
        return logits.log_softmax(-1)[:, 7]

    def close(numeric: Tensor, analytic: Tensor) -> bool:
        return bool(torch.allclose(numeric, analytic, rtol=1e-3, atol=3e-5))

    seen, slopes = gradients(model, ids, measure, heads=[1], neurons=[1], residual=[1])
    for site, activations, slope, entry, neighbour in (
        (Site.HEADS, seen.heads[1], slopes.heads[1], (2, 1), (3, 0)),
        (Site.NEURONS, seen.neurons[1], slopes.neurons[1], (5,), (6,)),
    ):

        def shifted(by: float, site: Site = site, activations: Tensor = activations, entry=entry) -> Tensor:  # type: ignore[no-untyped-def]
            values = activations[:, [at]].clone()
            values[(slice(None), 0, *entry)] += by
            with editing(model, [edit(model, site, 1, positions=at, values=values)], len(ids)):
                return measure(model.logits(ids))

        numeric = slope_of(shifted)
        assert close(numeric, slope[(slice(None), at, *entry)])
        assert not close(numeric, slope[(slice(None), at, *neighbour)])

    direction = torch.randn(model.sizes.width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def moved(by: float) -> Tensor:
        def shift(module: object, args: object, output: Tensor | tuple[Tensor, ...]) -> object:
            hidden = layer_output(output).clone()
            hidden[:, at] += by * direction
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        handle = model.layers[1].register_forward_hook(shift)
        try:
            return measure(model.logits(ids))
        finally:
            handle.remove()

    numeric = slope_of(moved)
    assert close(numeric, slopes.residual[1][:, at] @ direction)
    assert not close(numeric, slopes.residual[1][:, at + 1] @ direction)


def test_gradients_do_not_depend_on_the_batch() -> None:
    model = small("gpt_neox", "sdpa", torch.float64)
    ids = some_ids(model, 4)

    def measure(logits: Tensor) -> Tensor:
        return logits[:, 3]

    _, together = gradients(model, ids, measure, neurons=[0])
    for i in range(4):
        _, alone = gradients(model, ids[i : i + 1], measure, neurons=[0])
        assert torch.allclose(together.neurons[0][i], alone.neurons[0][0], atol=1e-12)


@families
@torch.no_grad()
def test_gradients_of_several_measures_at_replaced_embeddings(family: str, attention: str) -> None:
    """All measures at once equal one at a time; and other prompts' embeddings equal those prompts."""
    model = small(family, attention, torch.float64)
    ids, others = some_ids(model, 5)[:2], some_ids(model, 5)[3:]

    def measures(logits: Tensor) -> Tensor:
        return torch.stack([logits[:, 3], logits.logsumexp(-1)])

    seen, slopes = gradients(model, ids, measures, neurons=[0, 2], residual=[1])
    for i in range(2):
        _, alone = gradients(model, ids, lambda logits, i=i: measures(logits)[i], neurons=[0, 2], residual=[1])  # type: ignore[misc]
        for together, one in ((slopes.neurons, alone.neurons), (slopes.residual, alone.residual)):
            for layer in one:
                assert together[layer].shape == (2, *one[layer].shape)
                assert torch.allclose(together[layer][i], one[layer], rtol=1e-5, atol=1e-9)
    there, slopes = gradients(model, others, measures, neurons=[2])
    moved, again = gradients(model, ids, measures, neurons=[2], embeddings=model.embed(others))
    assert torch.allclose(there.neurons[2], moved.neurons[2], rtol=1e-5, atol=1e-7)
    assert torch.allclose(slopes.neurons[2], again.neurons[2], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(seen.neurons[2], moved.neurons[2], atol=1e-3)
    assert not model.hf_model.get_input_embeddings()._forward_hooks


def test_an_edit_can_be_restricted_to_some_positions() -> None:
    model = small("llama", "sdpa")
    values = torch.arange(3.0)[None, :, None]
    whole = edit(model, Site.NEURONS, 0, [4], positions=[1, 2, 4], values=values.expand(1, 3, model.sizes.neurons))
    part = whole.within(range(2, 5))
    assert part is not None
    assert part.positions == (2, 4)
    assert part.values[0, 0, :, 4, 0].tolist() == [1.0, 2.0]
    same = edit(model, Site.NEURONS, 0, [4], positions=[1, 2, 4], values=7.0).within(range(3))
    assert same is not None
    assert (same.positions, float(same.values)) == ((1, 2), 7.0)
    assert whole.within(range(5, 9)) is None


def test_values_of_the_wrong_shape_are_refused() -> None:
    model = small("llama", "sdpa")
    with pytest.raises(ValueError, match="do not fit"):
        edit(model, Site.HEADS, 0, positions=1, values=torch.zeros(1, 3, 8))


def test_every_family_has_a_small_model() -> None:
    assert CONFIGS.keys() == FAMILIES.keys()
    assert len(CONFIGS) == 11

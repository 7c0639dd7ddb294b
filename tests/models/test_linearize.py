"""The linearised model against a hand-written one, closed forms, and the model itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arithscope.models.families import FAMILIES
from arithscope.models.hooks import capturing, gradients, linearized
from arithscope.models.model import Model
from tests.families import FAMILY_AND_ATTENTION, small, some_ids

families = pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION)


def number_of_hooks(model: Model) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.hf_model.modules())


def measures(logits: Tensor) -> Tensor:
    return torch.stack([logits[:, 3], logits[:, 8], logits.logsumexp(-1)])


@families
def test_forward_passes_stay_the_same_and_hooks_are_removed(family: str, attention: str) -> None:
    model = small(family, attention)
    ids, hooks = some_ids(model), number_of_hooks(model)
    layers = range(model.sizes.layers)
    with torch.no_grad(), capturing(model, neurons=layers) as before:
        want = model.logits(ids)
    with pytest.raises(RuntimeError, match="on purpose"), linearized(model):
        with torch.no_grad(), capturing(model, neurons=layers) as inside:
            assert torch.equal(model.logits(ids), want)
        assert all(torch.equal(before.neurons[i], inside.neurons[i]) for i in layers)
        _, slopes = gradients(model, ids, measures, neurons=layers)
        raise RuntimeError("on purpose")
    assert number_of_hooks(model) == hooks
    _, usual = gradients(model, ids, measures, neurons=layers)
    for layer in layers:
        assert slopes.neurons[layer].isfinite().all()
        assert not torch.allclose(slopes.neurons[layer], usual.neurons[layer], atol=1e-3)


@pytest.mark.parametrize("family", [f for f, architecture in FAMILIES.items() if not architecture.post_norms])
def test_slopes_of_the_last_layer_are_the_logit_lens(family: str) -> None:
    """A neuron of the last layer writes its value vector, and the final norm with its scale held constant maps that as the
    logit lens does. The slope is not halved, not even in gated MLPs."""
    model = small(family, "eager")
    ids, last = some_ids(model), model.sizes.layers - 1
    with linearized(model):
        _, slopes = gradients(model, ids, lambda logits: logits.T, neurons=[last])
    with torch.no_grad(), capturing(model, residual=[last]) as seen:
        model.logits(ids)
    x = seen.residual[last][:, -1]
    centred = x - x.mean(-1, keepdim=True) if isinstance(model.final_norm, nn.LayerNorm) else x
    norm: Any = model.final_norm
    epsilon = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
    scale = (centred.pow(2).mean(-1) + epsilon).rsqrt()
    want = model.logit_lens(model.value_vectors(last)).T[:, None] * scale[:, None]  # [vocabulary, batch, neurons]
    assert torch.allclose(slopes.neurons[last][:, :, -1], want, rtol=1e-3, atol=1e-4)


def test_slopes_do_not_depend_on_the_order_of_hooks() -> None:
    model = small("llama", "sdpa")
    ids, last = some_ids(model), model.sizes.layers - 1
    with linearized(model):
        _, slopes = gradients(model, ids, lambda logits: logits[:, 3], neurons=[last])
    model.hf_model.enable_input_require_grads()
    try:
        with capturing(model, neurons=[last], keep=lambda x: x) as seen, linearized(model):
            logits = model.logits(ids)
    finally:
        model.hf_model.disable_input_require_grads()
    [again] = torch.autograd.grad(logits[:, 3].sum(), seen.neurons[last])
    assert torch.equal(again, slopes.neurons[last])


def test_against_a_hand_written_llama() -> None:
    """Slopes in all layers and at all positions, with grouped keys and values, in double precision."""
    model = small("llama", "eager", torch.float64)
    ids, layers = some_ids(model), range(model.sizes.layers)
    with linearized(model):
        _, slopes = gradients(model, ids, measures, neurons=layers)
    neurons, logits = linear_llama(model, ids)
    assert torch.allclose(logits, model.logits(ids), atol=1e-5)
    for i, total in enumerate(measures(logits).sum(-1)):
        for layer, grad in enumerate(torch.autograd.grad(total, neurons, retain_graph=True)):
            assert torch.allclose(slopes.neurons[layer][i], grad, rtol=1e-3, atol=1e-5)
            assert float(grad.abs().max()) > 1e-2


def linear_llama(model: Model, ids: Tensor) -> tuple[list[Tensor], Tensor]:
    """The neurons of each layer, and logits that depend on them as in the linearised model."""
    hf_model, s = model.hf_model.model, model.sizes
    length, half = ids.shape[1], s.head_dim // 2
    angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1) for f in (torch.cos, torch.sin))
    hidden_future = torch.ones(length, length, dtype=torch.bool).triu(1)

    def norm(module: Any, x: Tensor) -> Tensor:
        scale = (x.detach().pow(2).mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()
        return x * scale * module.weight

    def rotated(x: Tensor) -> Tensor:
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, s.head_dim)).transpose(1, 2)

    x, seen = hf_model.embed_tokens(ids).requires_grad_(), []
    for layer in hf_model.layers:
        normed, attention = norm(layer.input_layernorm, x), layer.self_attn
        query, key = (rotated(heads(project(normed))) for project in (attention.q_proj, attention.k_proj))
        value = heads(attention.v_proj(normed))
        key, value = (t.repeat_interleave(s.heads // s.key_value_heads, dim=1) for t in (key, value))
        scores = (query @ key.mT / s.head_dim**0.5).masked_fill(hidden_future, -torch.inf)
        x = x + attention.o_proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(-2))
        normed = norm(layer.post_attention_layernorm, x)
        gate, up = layer.mlp.gate_proj(normed), layer.mlp.up_proj(normed)
        opened = gate * torch.sigmoid(gate).detach()  # SiLU: x · sigmoid(x)
        neurons = (opened * up.detach() + opened.detach() * up) / 2
        seen.append(neurons)
        x = x + layer.mlp.down_proj(neurons)
    return seen, model.hf_model.lm_head(norm(hf_model.norm, x))[:, -1]


@families
def test_single_norms_and_activation_functions(family: str, attention: str) -> None:
    """A linearised norm is a linear map with the same output (a norm's true slope along its input is next to 0); the slope
    of an activation function is output ÷ input."""
    model = small(family, attention, torch.float64)
    x = torch.randn(4, model.sizes.width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x.requires_grad_()
    activation = model.layers[0].get_submodule(model.architecture.mlp_activation)
    with linearized(model):
        norm = torch.autograd.functional.jacobian(model.final_norm, x[0])
        [slope] = torch.autograd.grad(activation(x).sum(), x)
    assert torch.allclose(slope, activation(x) / x)
    offset = model.final_norm(torch.zeros_like(x[0]))  # a LayerNorm's bias
    assert torch.allclose(norm @ x[0] + offset, model.final_norm(x[0]), atol=1e-5)

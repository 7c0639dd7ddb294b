"""What a Model reads from the modules and weights of its family."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from arithscope.errors import UserError
from arithscope.models.model import Identity, Model, Site
from arithscope.models.untrained import number_tokenizer, untrained_model
from tests.families import FAMILY_AND_ATTENTION, small

families = pytest.mark.parametrize("family", sorted({family for family, _ in FAMILY_AND_ATTENTION}))


@families
def test_sizes(family: str) -> None:
    model = small(family)
    s = model.sizes
    assert (s.heads, s.neurons, s.width, s.layers) == (4, 48, 32, len(model.layers))
    assert s.head_dim == (12 if family in ("gemma", "gemma2", "gemma3_text", "qwen3") else 8)
    assert s.vocabulary == len(model.tokenizer)
    assert family in repr(model)


@families
@torch.no_grad()
def test_value_vectors_are_what_a_neuron_adds(family: str) -> None:
    model = small(family)
    vectors = model.value_vectors(1)
    down = model.module(Site.NEURONS, 1)
    x = torch.randn(5, model.sizes.neurons, generator=torch.Generator().manual_seed(0))
    with_bias = x @ vectors + down(torch.zeros(1, model.sizes.neurons))
    assert torch.allclose(down(x), with_bias, atol=1e-5)
    probed = copy.copy(model)
    probed._sites = {Site.NEURONS: [torch.nn.Sequential(down)] * 2}  # a module whose weights are not read directly
    assert torch.allclose(probed.value_vectors(1), vectors, atol=1e-5)


@families
@torch.no_grad()
def test_logit_lens_is_the_final_norm_up_to_its_scale(family: str) -> None:
    """unembed(x) = lens(x) / scale(x) + constant, with the scale worked out here from the definition of the norm."""
    model = small(family)
    if model._soft_cap is not None:
        model._soft_cap, cap = None, model._soft_cap
    else:
        cap = None
    x = torch.randn(6, model.sizes.width, generator=torch.Generator().manual_seed(1))
    norm = model.final_norm
    epsilon = next(getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name))
    if isinstance(norm, nn.LayerNorm):
        scale = (x.var(-1, unbiased=False) + epsilon).sqrt()
        constant = model.unembedding(norm.bias)
    else:
        scale = (x.pow(2).mean(-1) + epsilon).sqrt()
        constant = torch.zeros(())
        if model.unembedding.bias is not None:
            constant = model.unembedding.bias
    want = model.unembed(x)
    model._soft_cap = cap
    got = model.logit_lens(x) / scale[:, None] + constant
    assert torch.allclose(got, want, atol=1e-4)


def test_unknown_families_are_refused() -> None:
    tokenizer = number_tokenizer(20)
    hf_model = untrained_model("bloom", dict(hidden_size=16, n_layer=1, n_head=2), tokenizer)
    with pytest.raises(UserError, match="family 'bloom' are not supported"):
        Model(hf_model, tokenizer, Identity("x", "", "", ""))


def test_weights_are_frozen() -> None:
    assert not any(p.requires_grad for p in small("llama").hf_model.parameters())
    assert not small("llama").hf_model.training

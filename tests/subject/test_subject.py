from __future__ import annotations

import pytest
import torch
from torch import nn

from arithscope.errors import UserError
from arithscope.subject.fresh import fresh_model, number_tokenizer
from arithscope.subject.subject import Identity, Site, Subject
from tests.families import FAMILY_AND_ATTENTION, small

families = pytest.mark.parametrize("family", sorted({family for family, _ in FAMILY_AND_ATTENTION}))


@families
def test_sizes(family: str) -> None:
    subject = small(family)
    s = subject.sizes
    assert (s.heads, s.neurons, s.width, s.layers) == (4, 48, 32, len(subject.layers))
    assert s.head_dim == (12 if family in ("gemma", "gemma2", "gemma3_text", "qwen3") else 8)
    assert s.vocabulary == len(subject.tokenizer)
    assert family in repr(subject)


@families
@torch.no_grad()
def test_value_vectors_are_what_a_neuron_adds(family: str) -> None:
    subject = small(family)
    vectors = subject.value_vectors(1)
    down = subject.module(Site.NEURONS, 1)
    x = torch.randn(5, subject.sizes.neurons, generator=torch.Generator().manual_seed(0))
    with_bias = x @ vectors + down(torch.zeros(1, subject.sizes.neurons))
    assert torch.allclose(down(x), with_bias, atol=1e-5)
    assert torch.allclose(subject._value_vectors_by_probing(down), vectors, atol=1e-5)


@families
@torch.no_grad()
def test_logit_lens_is_the_final_norm_up_to_its_scale(family: str) -> None:
    """unembed(x) = lens(x) / scale(x) + constant, with the scale worked out here from the definition of the norm."""
    subject = small(family)
    if subject._soft_cap is not None:
        subject._soft_cap, cap = None, subject._soft_cap
    else:
        cap = None
    x = torch.randn(6, subject.sizes.width, generator=torch.Generator().manual_seed(1))
    norm = subject.final_norm
    epsilon = next(getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name))
    if isinstance(norm, nn.LayerNorm):
        scale = (x.var(-1, unbiased=False) + epsilon).sqrt()
        constant = subject.unembedding(norm.bias)
    else:
        scale = (x.pow(2).mean(-1) + epsilon).sqrt()
        constant = torch.zeros(())
        if subject.unembedding.bias is not None:
            constant = subject.unembedding.bias
    want = subject.unembed(x)
    subject._soft_cap = cap
    got = subject.logit_lens(x) / scale[:, None] + constant
    assert torch.allclose(got, want, atol=1e-4)


def test_unknown_families_are_refused() -> None:
    tokenizer = number_tokenizer(20)
    model = fresh_model("bloom", dict(hidden_size=16, n_layer=1, n_head=2), tokenizer)
    with pytest.raises(UserError, match="family 'bloom' are not supported"):
        Subject(model, tokenizer, Identity("x", "", "", ""))


def test_weights_are_frozen() -> None:
    assert not any(p.requires_grad for p in small("llama").model.parameters())
    assert not small("llama").model.training

"""Attention to shared prefixes against PyTorch's own attention with a copy of the prefix for each row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from arithscope.models.engine.prefix_attention import attend

SHAPES = [(4, 4, 1, 3), (4, 2, 1, 4), (6, 2, 4, 1), (4, 1, 3, 2)]  # heads, key-value heads, tail, prefix


def random_inputs(
    heads: int, kv_heads: int, tail: int, length: int, prefixes: int, variants: int
) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(0)
    rows, dim = prefixes * variants, 8

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    query = some(rows, tail, heads, dim).transpose(1, 2)  # as projections give it
    key, value = (some(rows, tail, kv_heads, dim).transpose(1, 2) for _ in range(2))
    return query, key, value, some(prefixes, kv_heads, length, dim), some(prefixes, kv_heads, length, dim)


def plain(
    query: Tensor, key: Tensor, value: Tensor, prefix_keys: Tensor, prefix_values: Tensor, allowed: Tensor
) -> Tensor:
    variants, group = len(query) // len(prefix_keys), query.shape[1] // key.shape[1]
    keys, values = (
        torch.cat([old.repeat(variants, 1, 1, 1), new], dim=2).repeat_interleave(group, 1)
        for old, new in ((prefix_keys, key), (prefix_values, value))
    )
    return torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=allowed).transpose(1, 2)


@pytest.mark.parametrize(("heads", "kv_heads", "tail", "length"), SHAPES)
def test_plain_causal_attention(heads: int, kv_heads: int, tail: int, length: int) -> None:
    some = random_inputs(heads, kv_heads, tail, length, prefixes=3, variants=5)
    causal = torch.ones(tail, length + tail, dtype=torch.bool).tril(length)
    torch.testing.assert_close(attend(*some, None, None), plain(*some, causal))


@pytest.mark.parametrize("as_numbers", [False, True])
def test_a_mask(as_numbers: bool) -> None:
    """A window of three tokens, as a boolean mask or as an added one."""
    some = random_inputs(4, 2, tail=3, length=4, prefixes=2, variants=3)
    window = torch.ones(3, 7, dtype=torch.bool).tril(4).triu(2)
    mask = torch.zeros(3, 7).masked_fill(~window, -torch.inf) if as_numbers else window
    found = attend(*some, mask[None, None], None)
    torch.testing.assert_close(found, plain(*some, window))
    assert not torch.allclose(found, attend(*some, None, None))


def test_a_given_scale() -> None:
    query, *others = random_inputs(4, 4, 2, 3, prefixes=2, variants=2)
    scaled = attend(query, *others, None, 0.5)
    torch.testing.assert_close(scaled, attend(query * 0.5 * 8**0.5, *others, None, None))


def test_half_precision_is_rounded_once() -> None:
    some = [x.bfloat16() for x in random_inputs(4, 2, 1, 3, prefixes=2, variants=3)]
    exact = attend(*(x.float() for x in some), None, None)
    assert torch.equal(attend(*some, None, None), exact.bfloat16())

"""Attention of very many rows behind few prefixes, without a copy of the prefix for each row.

In a replay each prompt's prefix serves thousands of variants. The library's attention would want its keys and values spread
over all of them, and its fused kernels are made for long sequences, not for millions of short ones: at the size of an 8B
model they took a third of the time. Here each prefix is multiplied with all its variants' queries at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AttentionInterface

from arithscope.models.engine.fast_ops import fused, quick_rotary
from arithscope.models.model import Model

KeysValues = list[tuple[Tensor, Tensor]]  # per layer, [prefixes, key-value heads, positions, head dim] each
NAME = "arithscope_shared_prefix"  # under which the library knows it


@dataclass(frozen=True)
class _Shared:
    prefix: KeysValues
    owner: Int[Tensor, " rows"] | None
    plain: bool  # attention is causal and nothing else


_in_use: list[_Shared] = []  # the innermost is the last


@contextmanager
def shared_prefix(model: Model, prefix: KeysValues, owner: Int[Tensor, " rows"] | None = None) -> Iterator[bool]:
    """Inside, layers attend to this prefix and to the keys and values they are called with, which are those of the rows' own
    tokens. `owner` says which prefix is whose; by default row v·B + b has prefix b of B. Says whether it is so: families with
    an attention of their own do not ask for ours, and prefixes with any number of rows need a GPU's kernel."""
    config = model.hf_model.config.get_text_config()
    before = config._attn_implementation
    window, length = getattr(config, "sliding_window", None), model.encoder.length
    shared = _Shared(prefix, owner, window is None or window >= length)
    if before != "sdpa" or not prefix or (owner is not None and not _has_kernel(shared, model.device, length)):
        yield False
        return
    _in_use.append(shared)
    config._attn_implementation = NAME
    try:
        with quick_rotary(model.attention(0), model.device):
            yield True
    finally:
        config._attn_implementation = before
        _in_use.pop()


def _has_kernel(shared: _Shared, device: torch.device, length: int) -> bool:
    kernels = fused(device)
    return kernels is not None and shared.plain and length <= kernels.MOST_KEYS


def _called(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """As the library calls it."""
    shared = _in_use[-1]
    keys, values = shared.prefix[module.layer_idx]
    kernels = fused(query.device)
    if kernels is None or not _has_kernel(shared, query.device, keys.shape[2] + key.shape[2]):
        return attend(query, key, value, keys, values, attention_mask, scaling), None
    owner = torch.arange(len(query), device=query.device) % len(keys) if shared.owner is None else shared.owner
    return kernels.attend(query, key, value, keys, values, owner, scaling), None


AttentionInterface.register(NAME, _called)


def attend(
    query: Float[Tensor, "rows heads tail dim"],
    key: Float[Tensor, "rows kv_heads tail dim"],
    value: Float[Tensor, "rows kv_heads tail dim"],
    prefix_keys: Float[Tensor, "prefixes kv_heads prefix dim"],
    prefix_values: Float[Tensor, "prefixes kv_heads prefix dim"],
    mask: Tensor | None,
    scaling: float | None,
) -> Float[Tensor, "rows tail heads dim"]:
    """Scaled dot-product attention to prefix and own tokens, in float32 or better, given back in the query's precision.

    `mask` [1, 1, tail, prefix + tail] is boolean (True: may look) or is added; None is plain causal attention.
    """
    rows, heads, tail, dim = query.shape
    prefixes, kv_heads, length, _ = prefix_keys.shape
    exact = torch.promote_types(query.dtype, torch.float32)
    variants, group = rows // prefixes, heads // kv_heads
    # [prefixes, kv_heads, variants, …]: what has the same prefix lies together.
    q = query.view(variants, prefixes, kv_heads, group, tail, dim).permute(1, 2, 0, 3, 4, 5).to(exact)
    k, v = (x.view(variants, prefixes, kv_heads, tail, dim).permute(1, 2, 0, 3, 4).to(exact) for x in (key, value))
    q = q.reshape(prefixes, kv_heads, variants, group * tail, dim)
    before = q.flatten(2, 3) @ prefix_keys.to(exact).mT
    own = (q * k).sum(-1, keepdim=True) if tail == 1 else q @ k.mT
    scores = torch.cat([before.view(*own.shape[:-1], length), own], dim=-1)
    scores = scores.unflatten(3, (group, tail)) * (dim**-0.5 if scaling is None else scaling)
    if mask is None and tail > 1:
        mask = torch.ones(tail, length + tail, dtype=torch.bool, device=query.device).tril(length)
    if mask is not None:
        mask = mask.reshape(tail, -1)
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).flatten(3, 4)
    own = weights[..., length:]
    found = own * v if tail == 1 else own @ v
    found += (weights[..., :length].flatten(2, 3) @ prefix_values.to(exact)).view_as(found)
    found = found.unflatten(3, (group, tail)).to(query.dtype)
    return found.permute(2, 0, 4, 1, 3, 5).reshape(rows, tail, heads, dim)

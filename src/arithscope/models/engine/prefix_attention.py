"""Attention of many rows to few prefixes, without a copy of the prefix for each row.

In a replay thousands of variants share each prompt's prefix. The library's attention would need a copy of the prefix's keys
and values for each of them, and its fused kernels are made for long sequences, not for millions of short ones: at the size of
an 8B model they took a third of the time. Here each prefix is multiplied with the queries of all its variants at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AttentionInterface

from arithscope.models.engine.fast_ops import fast_rotary, triton_kernels
from arithscope.models.model import Model

KeysValues = list[tuple[Tensor, Tensor]]  # per layer, [prefixes, key-value heads, positions, head dim] each
NAME = "arithscope_prefix_attention"  # as registered with transformers


@dataclass(frozen=True)
class _Prefix:
    keys_values: KeysValues
    owner: Int[Tensor, " rows"] | None
    causal_only: bool  # no sliding window


_active: list[_Prefix] = []  # a stack: the last one is in use


@contextmanager
def prefix_attention(model: Model, prefix: KeysValues, owner: Int[Tensor, " rows"] | None = None) -> Iterator[bool]:
    """Let layers attend to a shared prefix and to the rows' own tokens. `owner` is the prefix of each row; by default row
    v·B + b has prefix b of B. Yields whether it is in use: only for SDPA, and with `owner` only where the GPU kernel runs."""
    config = model.hf_model.config.get_text_config()
    before = config._attn_implementation
    window, length = getattr(config, "sliding_window", None), model.encoder.length
    shared = _Prefix(prefix, owner, window is None or window >= length)
    if before != "sdpa" or not prefix or (owner is not None and not _has_kernel(shared, model.device, length)):
        yield False
        return
    _active.append(shared)
    config._attn_implementation = NAME
    try:
        with fast_rotary(model.attention(0), model.device):
            yield True
    finally:
        config._attn_implementation = before
        _active.pop()


def _has_kernel(prefix: _Prefix, device: torch.device, length: int) -> bool:
    kernels = triton_kernels(device)
    return kernels is not None and prefix.causal_only and length <= kernels.MAX_KEYS


def _attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls."""
    prefix = _active[-1]
    keys, values = prefix.keys_values[module.layer_idx]
    kernels = triton_kernels(query.device)
    if kernels is None or not _has_kernel(prefix, query.device, keys.shape[2] + key.shape[2]):
        return attend(query, key, value, keys, values, attention_mask, scaling), None
    owner = torch.arange(len(query), device=query.device) % len(keys) if prefix.owner is None else prefix.owner
    return kernels.attend(query, key, value, keys, values, owner, scaling), None


AttentionInterface.register(NAME, _attention_forward)


def attend(
    query: Float[Tensor, "rows heads tail dim"],
    key: Float[Tensor, "rows kv_heads tail dim"],
    value: Float[Tensor, "rows kv_heads tail dim"],
    prefix_keys: Float[Tensor, "prefixes kv_heads prefix dim"],
    prefix_values: Float[Tensor, "prefixes kv_heads prefix dim"],
    mask: Tensor | None,
    scaling: float | None,
) -> Float[Tensor, "rows tail heads dim"]:
    """Scaled dot-product attention to prefix and own tokens, in float32 or better; the result has the query's dtype.

    `mask` [1, 1, tail, prefix + tail] is boolean (True: attend) or is added to the scores; None is causal attention.
    """
    rows, heads, tail, dim = query.shape
    prefixes, kv_heads, length, _ = prefix_keys.shape
    exact = torch.promote_types(query.dtype, torch.float32)
    variants, group = rows // prefixes, heads // kv_heads
    # [prefixes, kv_heads, variants, …]: rows with the same prefix are adjacent.
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
    output = own * v if tail == 1 else own @ v
    output += (weights[..., :length].flatten(2, 3) @ prefix_values.to(exact)).view_as(output)
    output = output.unflatten(3, (group, tail)).to(query.dtype)
    return output.permute(2, 0, 4, 1, 3, 5).reshape(rows, tail, heads, dim)

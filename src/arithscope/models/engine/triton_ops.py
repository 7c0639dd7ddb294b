"""Three Triton kernels, each one pass over memory where PyTorch needs many: rotary embeddings, attention of a few tokens to a
shared prefix, and the product in a gated MLP. Imported only where `effects.runs_kernels` is true."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_KEYS = 64  # longest prompt: the attention kernel's loop over keys is unrolled


@triton.jit
def _rotary(
    x, out, cos, sin, tail, heads, x_row, x_position, x_head, out_row, out_position, out_head,
    DIM: tl.constexpr, ROTATED: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    row, position = tl.program_id(0) // tail, tl.program_id(0) % tail
    head, at = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (at < ROTATED // 2)
    source = x + row.to(tl.int64) * x_row + position * x_position + head * x_head
    target = out + row.to(tl.int64) * out_row + position * out_position + head * out_head
    first = tl.load(source + at, inside).to(tl.float32)
    second = tl.load(source + at + ROTATED // 2, inside).to(tl.float32)
    angle = position * ROTATED + at
    c1, s1 = tl.load(cos + angle, at < ROTATED // 2), tl.load(sin + angle, at < ROTATED // 2)
    c2 = tl.load(cos + angle + ROTATED // 2, at < ROTATED // 2)
    s2 = tl.load(sin + angle + ROTATED // 2, at < ROTATED // 2)
    tl.store(target + at, first * c1 - second * s1, inside)
    tl.store(target + at + ROTATED // 2, second * c2 + first * s2, inside)
    if ROTATED < DIM:
        rest = tl.arange(0, REST)[None, :] + ROTATED
        tl.store(target + rest, tl.load(source + rest, (head < heads) & (rest < DIM)), (head < heads) & (rest < DIM))


def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Rotary position embeddings of [rows, heads, tail, dim], as in transformers, for rows that all have the same positions:
    cos and sin are [1, tail, rotated dim]."""
    cos, sin = (x.reshape(-1, x.shape[-1]).float().contiguous() for x in (cos, sin))

    def rotated(x: Tensor) -> Tensor:
        rows, heads, tail, dim = x.shape
        out = torch.empty(rows, tail, heads, dim, dtype=x.dtype, device=x.device).transpose(1, 2)
        width = cos.shape[-1]
        sizes = dict(HEADS=triton.next_power_of_2(heads), HALF=triton.next_power_of_2(width // 2))
        with torch.cuda.device(x.device):  # Triton launches on the current device
            _rotary[(rows * tail,)](
                x, out, cos, sin, tail, heads, *(y.stride(i) for y in (x, out) for i in (0, 2, 1)),
                DIM=dim, ROTATED=width, REST=triton.next_power_of_2(max(1, dim - width)), **sizes,
            )  # fmt: skip
        return out

    return rotated(query), rotated(key)


@triton.jit
def _attend(
    query, key, value, prefix_keys, prefix_values, owner, out, scaling, kv_heads,
    q_row, q_head, q_position, k_row, k_head, k_position, v_row, v_head, v_position, o_row, o_position, o_head,
    PREFIX: tl.constexpr, TAIL: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    QUERIES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, kv = (tl.program_id(0) // kv_heads).to(tl.int64), tl.program_id(0) % kv_heads
    number, at = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    group, position = number // TAIL, number % TAIL
    head = kv * GROUP + group
    inside = (number < GROUP * TAIL)[:, None] & (at < DIM)[None, :]
    q = tl.load(query + row * q_row + (head * q_head + position * q_position)[:, None] + at[None, :], inside, 0.0)
    q = q.to(tl.float32) * scaling
    largest = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    summed = tl.zeros((QUERIES, WIDTH), tl.float32)
    prefix = (tl.load(owner + row) * kv_heads + kv) * PREFIX * DIM
    for i in tl.static_range(PREFIX + TAIL):
        if i < PREFIX:
            k = tl.load(prefix_keys + prefix + i * DIM + at, at < DIM, 0.0).to(tl.float32)
            v = tl.load(prefix_values + prefix + i * DIM + at, at < DIM, 0.0).to(tl.float32)
        else:
            own = i - PREFIX
            k = tl.load(key + row * k_row + kv * k_head + own * k_position + at, at < DIM, 0.0).to(tl.float32)
            v = tl.load(value + row * v_row + kv * v_head + own * v_position + at, at < DIM, 0.0).to(tl.float32)
        score = tl.sum(q * k[None, :], 1)
        if i > PREFIX:
            score = tl.where(position >= i - PREFIX, score, -float("inf"))
        new = tl.maximum(largest, score)
        shrink, weight = tl.exp(largest - new), tl.exp(score - new)
        total = total * shrink + weight
        summed = summed * shrink[:, None] + weight[:, None] * v[None, :]
        largest = new
    target = out + row * o_row + (position * o_position + head * o_head)[:, None] + at[None, :]
    tl.store(target, summed / total[:, None], inside)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
    owner: Tensor,
    scaling: float | None,
) -> Tensor:
    """`prefix_attention.attend` with causal attention; `owner` [rows] is the prefix of each row."""
    rows, heads, tail, dim = query.shape
    _, kv_heads, length, _ = prefix_keys.shape
    out = torch.empty(rows, tail, heads, dim, dtype=query.dtype, device=query.device)
    group = heads // kv_heads
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    strides = [x.stride(i) for x in (query, key, value) for i in (0, 1, 2)]
    with torch.cuda.device(query.device):
        _attend[(rows * kv_heads,)](
            query, key, value, prefix_keys.contiguous(), prefix_values.contiguous(), owner.to(query.device), out,
            dim**-0.5 if scaling is None else scaling, kv_heads, *strides, *out.stride()[:3],
            PREFIX=length, TAIL=tail, GROUP=group, DIM=dim,
            QUERIES=triton.next_power_of_2(group * tail), WIDTH=triton.next_power_of_2(dim), num_warps=1 if tail == 1 else 4,
        )  # fmt: skip
    return out


@triton.jit
def _gate(gate, up, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, at < size).to(tl.float32)
    activated = (g / (1 + tl.exp(-g))).to(gate.dtype.element_ty).to(tl.float32)  # rounded where transformers rounds
    tl.store(gate + at, activated * tl.load(up + at, at < size).to(tl.float32), at < size)


def gated_silu(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU(gate) · up, in place of gate."""
    with torch.cuda.device(gate.device):
        _gate[(triton.cdiv(gate.numel(), 4096),)](gate, up, gate.numel(), BLOCK=4096)
    return gate

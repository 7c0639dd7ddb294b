"""Triton kernel: logsumexp and mean of logits in one pass. Import only where `effects.runs_kernels` is true."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

BLOCK = 4096


@triton.jit
def _sums(logits, out, rows, vocabulary, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    powers, total = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * vocabulary + at, at < vocabulary, -float("inf"))
        new = tl.maximum(largest, x)
        # Lanes without a value so far hold −∞ twice, and −∞ − (−∞) is NaN.
        powers = tl.where(new == -float("inf"), 0.0, powers * tl.exp(largest - new) + tl.exp(x - new))
        largest = new
        total += tl.where(at < vocabulary, x, 0.0)
    most = tl.max(largest, 0)
    tl.store(out + row, most + tl.log(tl.sum(powers * tl.exp(largest - most), 0)))
    tl.store(out + rows + row, tl.sum(total, 0) / vocabulary)


def sums(logits: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, "2 *rows"]:
    """logsumexp and mean over the vocabulary of float32 logits."""
    flat = logits.reshape(-1, logits.shape[-1])
    out = torch.empty(2, len(flat), device=logits.device)
    with torch.cuda.device(logits.device):  # Triton would launch on the first GPU otherwise
        _sums[(len(flat),)](flat, out, len(flat), flat.shape[1], BLOCK=BLOCK)
    return out.view(2, *logits.shape[:-1])

"""The same arithmetic as the library's modules in fewer passes over memory, or with fewer roundings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arithscope.stats.gpu import runs_kernels

EXACT_PRODUCTS = (2, 8)  # the version of PyTorch from which on a product of half-precision matrices can be float32
SILU = ("SiLU", "SiLUActivation")  # PyTorch's, and the library's in some versions
ROTARY = "apply_rotary_pos_emb"  # the library's name for it, in every family that has it


def fused(device: torch.device) -> ModuleType | None:
    """Our own GPU kernels, where they run."""
    if not runs_kernels(device):
        return None
    from arithscope.models.engine import triton_ops as kernels

    return kernels


def quicken(hf_model: nn.Module) -> None:
    """Let RMS norms do in one pass over memory what the library does in six, and on GPUs gated MLPs their product in one
    instead of two. Modules whose weights come and go (offloaded ones) are left as they are."""
    for module in hf_model.modules():
        if hasattr(module, "_hf_hook"):
            continue
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = partial(_rms_norm, module)
        elif type(getattr(module, "act_fn", None)).__name__ in SILU and hasattr(module, "gate_proj"):
            module.forward = partial(_gated_mlp, module, module.forward)


def library_modules(hf_model: nn.Module) -> None:
    """Undo `quicken`: to compare with."""
    for module in hf_model.modules():
        quick = module.__dict__.get("forward")
        if isinstance(quick, partial) and quick.func in (_rms_norm, _gated_mlp):
            del module.__dict__["forward"]


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


def _gated_mlp(mlp: Any, plain: Any, x: Tensor) -> Tensor:
    kernels = fused(x.device)
    if kernels is None or torch.is_grad_enabled():
        return plain(x)
    return mlp.down_proj(kernels.gated_silu(mlp.gate_proj(x), mlp.up_proj(x)))


@contextmanager
def quick_rotary(attention: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, this attention's family applies rotary embeddings in one pass over memory; for rows of the same positions."""
    family, kernels = sys.modules[type(attention).__module__], fused(device)
    before = getattr(family, ROTARY, None)
    if kernels is None or before is None:
        yield
        return
    setattr(family, ROTARY, kernels.rotary)
    try:
        yield
    finally:
        setattr(family, ROTARY, before)


def exact_product(linear: nn.Module, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows out"]:
    """What a linear map gives, in float32 where a GPU multiplies in half precision: it adds up in float32 anyway."""
    half = x.is_cuda and x.dtype in (torch.float16, torch.bfloat16)
    if not half or type(linear) is not nn.Linear or hasattr(linear, "_hf_hook") or _version() < EXACT_PRODUCTS:
        return linear(x)
    product = torch.mm(x.flatten(0, -2), linear.weight.T, out_dtype=torch.float32)
    return (product if linear.bias is None else product + linear.bias).view(*x.shape[:-1], -1)


def _version() -> tuple[int, ...]:
    return tuple(map(int, torch.__version__.split(".")[:2]))

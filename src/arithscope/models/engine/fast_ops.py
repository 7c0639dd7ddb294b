"""Replacements for the library's modules that need fewer passes over memory, or round less often."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arithscope.stats.effects import runs_kernels

MM_OUT_DTYPE = (2, 8)  # first PyTorch version whose half-precision products can have a float32 result
SILU = ("SiLU", "SiLUActivation")  # PyTorch's class, and the library's in some versions
ROTARY = "apply_rotary_pos_emb"  # the library's function, in every family that has it


def triton_kernels(device: torch.device) -> ModuleType | None:
    """The module of our GPU kernels; None where they cannot run."""
    if not runs_kernels(device):
        return None
    from arithscope.models.engine import triton_ops

    return triton_ops


def use_fast_modules(hf_model: nn.Module) -> None:
    """Compute RMS norms in one pass over memory instead of six, and on GPUs the product in gated MLPs in one instead of two.
    Modules with offloaded weights stay as they are."""
    for module in hf_model.modules():
        if hasattr(module, "_hf_hook"):
            continue
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = partial(_rms_norm, module)
        elif type(getattr(module, "act_fn", None)).__name__ in SILU and hasattr(module, "gate_proj"):
            module.forward = partial(_gated_mlp, module, module.forward)


def use_library_modules(hf_model: nn.Module) -> None:
    """Undo `use_fast_modules`."""
    for module in hf_model.modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, partial) and forward.func in (_rms_norm, _gated_mlp):
            del module.__dict__["forward"]


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


def _gated_mlp(mlp: Any, library_forward: Any, x: Tensor) -> Tensor:
    kernels = triton_kernels(x.device)
    if kernels is None or torch.is_grad_enabled():
        return library_forward(x)
    return mlp.down_proj(kernels.gated_silu(mlp.gate_proj(x), mlp.up_proj(x)))


@contextmanager
def fast_rotary(attention: nn.Module, device: torch.device) -> Iterator[None]:
    """Apply this family's rotary embeddings in one pass over memory; all rows must have the same positions."""
    family, kernels = sys.modules[type(attention).__module__], triton_kernels(device)
    before = getattr(family, ROTARY, None)
    if kernels is None or before is None:
        yield
        return
    setattr(family, ROTARY, kernels.rotary)
    try:
        yield
    finally:
        setattr(family, ROTARY, before)


def unrounded_linear(linear: nn.Module, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows out"]:
    """Apply a linear map. On a GPU, half-precision products are summed in float32, and here the sums are not rounded back."""
    half = x.is_cuda and x.dtype in (torch.float16, torch.bfloat16)
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if not half or type(linear) is not nn.Linear or hasattr(linear, "_hf_hook") or version < MM_OUT_DTYPE:
        return linear(x)
    product = torch.mm(x.flatten(0, -2), linear.weight.T, out_dtype=torch.float32)
    return (product if linear.bias is None else product + linear.bias).view(*x.shape[:-1], -1)

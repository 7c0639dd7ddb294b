"""The same arithmetic as the library's modules in fewer passes over memory, or with fewer roundings."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

EXACT_PRODUCTS = (2, 8)  # the version of PyTorch from which on a product of half-precision matrices can be float32


def quicken_norms(model: nn.Module) -> None:
    """Let RMS norms do in two passes over memory what the library does in six, with the same roundings. Those whose weights
    come and go (offloaded ones) are left as they are."""
    for module in model.modules():
        rms = type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")
        if rms and not hasattr(module, "_hf_hook"):
            module.forward = partial(_rms_norm, module)  # type: ignore[method-assign]


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    return norm.weight * nn.functional.rms_norm(x, x.shape[-1:], None, norm.variance_epsilon)


def exact_product(linear: nn.Module, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows out"]:
    """What a linear map gives, in float32 where a GPU multiplies in half precision: it adds up in float32 anyway."""
    half = x.is_cuda and x.dtype in (torch.float16, torch.bfloat16)
    if not half or type(linear) is not nn.Linear or hasattr(linear, "_hf_hook") or _version() < EXACT_PRODUCTS:
        return linear(x)
    product = torch.mm(x.flatten(0, -2), linear.weight.T, out_dtype=torch.float32)
    return (product if linear.bias is None else product + linear.bias).view(*x.shape[:-1], -1)


def _version() -> tuple[int, ...]:
    return tuple(map(int, torch.__version__.split(".")[:2]))

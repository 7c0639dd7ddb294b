"""Whether kernels of our own can run on a device."""

from __future__ import annotations

from functools import cache

import torch


@cache
def runs_kernels(device: torch.device) -> bool:
    """Triton comes with PyTorch for NVIDIA and AMD GPUs, and needs a C compiler. Where something is missing, the same is
    computed without it, more slowly."""
    if device.type != "cuda":
        return False
    try:
        from arithscope.stats.triton_sums import sums

        sums(torch.zeros(1, 2, device=device))
        torch.cuda.synchronize(device)
    except Exception:  # whatever it is
        return False
    return True

"""Whether the package's own Triton kernels can run on a device."""

from functools import cache

import torch


@cache
def runs_kernels(device: torch.device) -> bool:
    """Whether Triton kernels, which need a C compiler, run on `device`; if not, callers fall back to slower PyTorch code."""
    if device.type != "cuda":
        return False
    try:
        from arithscope.stats.triton_sums import sums

        sums(torch.zeros(1, 2, device=device))
        torch.cuda.synchronize(device)
    except Exception:
        return False
    return True

"""Adam steps of a probe on a GPU whose chip has room for its weights and moments: see probe_steps.cu, which is compiled here.

Compiling takes NVIDIA's cuda-bindings, which come with recent CUDA builds of PyTorch. Where they are missing, or the probe has
no room, `linear_probes` trains with PyTorch alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

THREADS, COLUMNS, BATCH = 256, 16, 32  # as in probe_steps.cu
PART_BYTES = 16 * 4 * THREADS  # of one moment
OTHER_BYTES = 17 * 1024  # of shared memory: sums, slopes, offsets
MOST_PARTS, MOST_PARTS_IN_REGISTERS = 8, 3  # of weights, and of second moments beside them
STEPS_AT_A_TIME = 1024  # after which a kernel says that it is so far


@dataclass(frozen=True)
class Kernel:
    function: Any
    split_evenly: int
    shared_bytes: int


def kernel_for(states: Float[Tensor, "layers distinct width"], answers: int) -> Kernel | None:
    """What can train probes of these states, if anything can."""
    _, distinct, width = states.shape
    if states.device.type != "cuda" or states.dtype != torch.bfloat16 or torch.version.hip or width % 128:
        return None
    has: Any = torch.cuda.get_device_properties(states.device)
    parts, split_evenly = 2 * -(-width // 1024), 2 * -(-answers // COLUMNS)
    shared = min(parts, (getattr(has, "shared_memory_per_block_optin", 0) - OTHER_BYTES) // PART_BYTES - parts)
    on_chip = (
        parts <= MOST_PARTS and parts - shared <= MOST_PARTS_IN_REGISTERS and split_evenly <= has.multi_processor_count
    )
    # Clusters of blocks exist from 9.0 on; offsets in the states have 32 bits.
    if not on_chip or has.major < 9 or distinct * width * states.dtype.itemsize >= 2**32:
        return None
    shared_bytes = (parts + shared) * PART_BYTES + OTHER_BYTES
    try:
        function = _compiled(states.device, f"sm_{has.major}{has.minor}", width, shared, shared_bytes)
    except Exception:  # whatever is missing
        return None
    return Kernel(function, split_evenly, shared_bytes)


@cache
def _compiled(device: torch.device, architecture: str, width: int, shared_parts: int, shared_bytes: int) -> Any:
    from cuda.bindings import driver, nvrtc

    source = files(__package__).joinpath("probe_steps.cu").read_bytes()
    given = {"WIDTH": width, "SHARED_PARTS": shared_parts}
    options = [f"--gpu-architecture={architecture}", "--use_fast_math", *(f"-D{k}={v}" for k, v in given.items())]
    program = _checked(nvrtc.nvrtcCreateProgram(source, b"probe_steps.cu", 0, [], []))
    _checked(nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options]))
    binary = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
    _checked(nvrtc.nvrtcGetCUBIN(program, binary))
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # so that the device is in use
        function = _checked(driver.cuModuleGetFunction(_checked(driver.cuModuleLoadData(binary)), b"probe_steps"))
        largest = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(function, largest, shared_bytes))
    return function


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a call gave, if it succeeded."""
    error, *values = answer
    if int(error):
        raise RuntimeError(f"{error}")
    return values[0] if values else None


def train_one(
    kernel: Kernel,
    states: Float[Tensor, "distinct width"],
    rows: Int[Tensor, "steps 32"],
    answers: Int[Tensor, "steps 32"],
    rates: Float[Tensor, "steps 2"],
    weights: Float[Tensor, "width_and_bias answers"],
    advance: Callable[[int], None],
) -> Float[Tensor, "width_and_bias answers"]:
    """Take all steps. rows: which states. answers: −1 for a row that does not count. rates: learning rate ÷ (1 − 0.9ᵗ), and
    1 ÷ √(1 − 0.999ᵗ)."""
    from cuda.bindings import driver

    if rows.shape[1] != BATCH:
        raise ValueError(f"a step has {BATCH} rows, not {rows.shape[1]}")
    memory = torch.stack([weights, torch.zeros_like(weights), torch.zeros_like(weights)])  # with Adam's moments
    seen = torch.empty(2, kernel.split_evenly // 2, BATCH, dtype=torch.int64, device=states.device)
    tensors = [states, rows, answers, rates, memory, seen]
    types = (*(ctypes.c_void_p for _ in tensors), ctypes.c_int, ctypes.c_int, ctypes.c_int)
    with torch.cuda.device(states.device):
        stream = torch.cuda.current_stream().cuda_stream
        for start in range(0, len(rows), STEPS_AT_A_TIME):
            stop = min(start + STEPS_AT_A_TIME, len(rows))
            seen.zero_()
            given = (*(x.data_ptr() for x in tensors), weights.shape[1], start, stop)
            size = (kernel.split_evenly, 1, 1, THREADS, 1, 1, kernel.shared_bytes)
            _checked(driver.cuLaunchCooperativeKernel(kernel.function, *size, stream, (given, types)))
            torch.cuda.synchronize()
            advance(stop - start)
    return memory[0]

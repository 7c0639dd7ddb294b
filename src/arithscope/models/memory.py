"""How many rows fit into one pass: an estimate per row, and a budget read off the device."""

from __future__ import annotations

import psutil
import torch

from arithscope.models.model import Model, Site
from arithscope.utils.out_of_memory import rows_within

CPU_BUDGET = 64 * 2**20  # more is no faster on a CPU, whose caches are long full …
CPU_ROWS = 256  # … unless it were for fewer rows than this
GPU_BUDGET = 16 * 2**30  # by then a GPU is busy
GRAPH = 2  # times what a layer has at its peak: as much at most is kept of it for a backward pass
GPU_STORAGE = (
    36 * 2**30
)  # what results may take at the most: beside an 8B model that leaves half of a large GPU to others
GPU_SHARE = 0.5  # of what is free, at the most; the rest is for the allocator and the library's temporaries


def row_bytes(model: Model, tail: int, length: int) -> int:
    """Peak bytes one row needs while `tail` of its `length` positions pass through a layer and the unembedding."""
    vocabulary = model.sizes.vocabulary * (model.hf_model.dtype.itemsize + 12)  # as computed, and twice in float32
    return _layer_bytes(model, tail, length) + vocabulary


def graph_bytes(model: Model, measures: int) -> int:
    """Bytes that one row needs, beside its pass, for gradients of some measures with respect to all layers' neurons."""
    s, length = model.sizes, model.encoder.length
    slopes = (1 + 2 * measures) * length * component_bytes(model, Site.NEURONS)  # also while they are stacked
    return s.layers * (GRAPH * _layer_bytes(model, length, length) + slopes)


def _layer_bytes(model: Model, tail: int, length: int) -> int:
    s = model.sizes
    stream = tail * (6 * s.width + 4 * s.heads * s.head_dim + 4 * s.neurons)
    keys_and_values = 4 * length * s.key_value_heads * s.head_dim
    scores = 3 * s.heads * tail * length
    return (stream + keys_and_values + scores) * model.hf_model.dtype.itemsize


def cache_bytes(model: Model, positions: int) -> int:
    """Bytes of the keys and values of one row over all layers."""
    s, size = model.sizes, model.hf_model.dtype.itemsize
    return 2 * s.layers * positions * s.key_value_heads * s.head_dim * size


def storage(model: Model) -> int:
    """Bytes that results may take now on the subject's device, beside a pass."""
    if model.device.type == "cuda":
        return min(GPU_STORAGE, int(GPU_SHARE * _free(model)))
    return psutil.virtual_memory().available // 4


def _free(model: Model) -> int:
    """On the fullest of the GPUs that layers run on."""
    free = []
    for gpu in (device for device in model.devices if device.type == "cuda"):
        unused = torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)
        free.append(torch.cuda.mem_get_info(gpu)[0] + unused)
    return min(free)


def budget(model: Model, row: int = 0, passes: int = 1) -> int:
    """Bytes that one pass, or each of several at once, may take now, for rows of that many bytes."""
    if model.device.type == "cuda" or model.offloads:  # each pass fetches weights: the fewer the better
        return min(GPU_BUDGET, storage(model))
    return min(max(CPU_BUDGET, CPU_ROWS * row), storage(model) // passes)


def rows_that_fit(model: Model, tail: int, length: int, per_row: int = 0, passes: int = 1) -> int:
    """Rows of one pass, or of each of several at once, over `tail` of `length` positions; `per_row` adds bytes for what the
    caller keeps per row."""
    row = row_bytes(model, tail, length) + per_row
    return rows_within(budget(model, row, passes), row)


def component_bytes(model: Model, site: Site) -> int:
    """Bytes of one layer's components at one position."""
    n, width = model.entries(site)
    return n * width * model.hf_model.dtype.itemsize

"""What a pass costs, from the shapes of the model's matrices: floating-point operations, bytes per row, and how many rows fit
into one pass in the device's free memory."""

from math import prod

import psutil
import torch
from transformers.pytorch_utils import Conv1D

from arithscope.models.model import Model, Site, widths
from arithscope.utils.out_of_memory import rows_within

CPU_BUDGET = 64 * 2**20  # more is no faster on a CPU, whose caches are full by then …
CPU_ROWS = 256  # … unless it holds fewer rows than this
GPU_BUDGET = 16 * 2**30  # enough to keep a GPU busy
GPU_STORAGE = 36 * 2**30  # upper limit for results: beside an 8B model, half of a large GPU stays free
GPU_SHARE = 0.5  # of the free memory; the rest is for the allocator and the library's temporaries
GRAPH = 2  # what a backward pass keeps of a layer, in multiples of the layer's peak (an upper bound)


def flops_per_position(model: Model, start: int = 0) -> int:
    """FLOPs that take one position from layer `start` to its logits: 2 × the entries of all matrices, however they are stored.
    Attention, norms and activation functions are left out: a few thousandths of a large model's work."""
    modules = [*(m for layer in model.layers[start:] for m in layer.modules()), model.unembedding]
    return 2 * sum(prod(widths(m)) for m in modules if isinstance(m, Conv1D) or hasattr(m, "in_features"))


def first_replayed_layer(model: Model, layer: int) -> int:
    """First layer that a replay of single neurons runs: the next one, unless the family has post-norms."""
    return layer if model.architecture.post_norms else layer + 1


def row_bytes(model: Model, tail: int, length: int) -> int:
    """Peak bytes of one row while `tail` of its `length` positions pass through a layer and the unembedding."""
    return _layer_bytes(model, tail, length) + logit_bytes(model)


def logit_bytes(model: Model) -> int:
    """Bytes of the logits at one position of a row: as computed, and as float32 and its log-softmax."""
    return model.sizes.vocabulary * (model.hf_model.dtype.itemsize + 12)


def graph_bytes(model: Model, measures: int) -> int:
    """Extra bytes of one row for gradients of some measures with respect to all layers' neurons."""
    s, length = model.sizes, model.encoder.length
    slopes = (1 + 2 * measures) * length * component_bytes(model, Site.NEURONS)  # twice while they are stacked
    return s.layers * (GRAPH * _layer_bytes(model, length, length) + slopes)


def _layer_bytes(model: Model, tail: int, length: int) -> int:
    s = model.sizes
    stream = tail * (6 * s.width + 4 * s.heads * s.head_dim + 4 * s.neurons)
    keys_and_values = 4 * length * s.key_value_heads * s.head_dim
    scores = 3 * s.heads * tail * length
    return (stream + keys_and_values + scores) * model.hf_model.dtype.itemsize


def cache_bytes(model: Model, positions: int) -> int:
    """Bytes of one row's keys and values over all layers."""
    s, size = model.sizes, model.hf_model.dtype.itemsize
    return 2 * s.layers * positions * s.key_value_heads * s.head_dim * size


def component_bytes(model: Model, site: Site) -> int:
    """Bytes of one layer's components at one position."""
    n, width = model.component_shape(site)
    return n * width * model.hf_model.dtype.itemsize


def storage(model: Model) -> int:
    """Bytes that results may take now on the model's device, beside a pass."""
    if model.device.type == "cuda":
        return min(GPU_STORAGE, int(GPU_SHARE * _free(model)))
    return psutil.virtual_memory().available // 4


def _free(model: Model) -> int:
    """Free bytes on the fullest of the GPUs that layers run on."""
    cuda, gpus = torch.cuda, [device for device in model.devices if device.type == "cuda"]
    return min(cuda.mem_get_info(x)[0] + cuda.memory_reserved(x) - cuda.memory_allocated(x) for x in gpus)


def budget(model: Model, row: int = 0, passes: int = 1) -> int:
    """Bytes that each of `passes` parallel passes may take now, for rows of `row` bytes."""
    if model.device.type == "cuda" or model.offloads:  # each pass fetches weights: the fewer the better
        return min(GPU_BUDGET, storage(model))
    return min(max(CPU_BUDGET, CPU_ROWS * row), storage(model) // passes)


def rows_that_fit(model: Model, tail: int, length: int, per_row: int = 0, passes: int = 1) -> int:
    """Number of rows in each of `passes` passes over `tail` of `length` positions that keep `per_row` more bytes per row."""
    row = row_bytes(model, tail, length) + per_row
    return rows_within(budget(model, row, passes), row)

"""Estimates of the memory that stages need beside the model's weights, in bytes."""

from arithscope.models.engine.sweep import num_parallel_passes
from arithscope.models.memory import budget, cache_bytes, component_bytes, row_bytes
from arithscope.models.model import Model, Site
from arithscope.prompts import legal_prompts
from arithscope.settings import Settings


def sweep_memory(model: Model, settings: Settings) -> int:
    """A sweep over the legal prompts."""
    prompts = len(legal_prompts(settings.operators, settings.max_operand, model.limit))
    row = row_bytes(model, model.encoder.length, model.encoder.length)
    row += 2 * cache_bytes(model, model.encoder.length)
    passes = num_parallel_passes(model)
    return min(passes * budget(model, row, passes), row * prompts) + 64 * prompts


def replay_memory(model: Model, settings: Settings) -> int:
    """Patching and ablation: one pass, the recorded prompts, and the activations they are patched with."""
    length, s = model.encoder.length, model.sizes
    row = row_bytes(model, length, length)
    stream = length * s.width * model.hf_model.dtype.itemsize
    components = 4 * sum(component_bytes(model, site) for site in Site)
    kept = s.layers * (stream + components) + cache_bytes(model, length)
    return budget(model, row) + kept * max(settings.sizes.discovery, settings.sizes.evaluation)

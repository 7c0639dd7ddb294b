"""Floating-point operations of a pass, counted from the shapes of the model's matrices."""

from math import prod

from transformers.pytorch_utils import Conv1D

from arithscope.models.model import Model, widths


def flops_per_position(model: Model, start: int = 0) -> int:
    """FLOPs that take one position from layer `start` to its logits: 2 × the entries of all matrices.

    Attention to the few earlier positions, norms and activation functions are left out: a few thousandths of a large model's
    work. Quantised and offloaded weights count the same.
    """
    modules = [*(m for layer in model.layers[start:] for m in layer.modules()), model.unembedding]
    return 2 * sum(prod(widths(m)) for m in modules if isinstance(m, Conv1D) or hasattr(m, "in_features"))


def first_replayed_layer(model: Model, layer: int) -> int:
    """First layer that a replay of single neurons runs: the next one, unless the family has post-norms."""
    return layer if model.architecture.post_norms else layer + 1

"""Floating-point operations of a pass, counted from the shapes of the model's matrices."""

from __future__ import annotations

from typing import Any

from arithscope.models.model import Model


def flops_per_position(model: Model, start: int = 0) -> int:
    """FLOPs that take one position from layer `start` to its logits: 2 × the entries of all matrices.

    Attention to the few earlier positions, norms and activation functions are left out: a few thousandths of a large model's
    work. Quantised and offloaded weights count the same.
    """
    modules = [m for layer in model.layers[start:] for m in layer.modules()]
    return 2 * sum(_entries(module) for module in [*modules, model.unembedding])


def first_replayed_layer(model: Model, layer: int) -> int:
    """First layer that a replay of single neurons runs: the next one, unless the MLP's output is normalised before it joins
    the residual stream."""
    return layer if model.architecture.post_norms else layer + 1


def _entries(module: Any) -> int:
    """Entries of a linear map's matrix; 0 for other modules. GPT-2's Conv1D has its own names for the widths."""
    names = ("nx", "nf") if getattr(module, "in_features", None) is None else ("in_features", "out_features")
    width_in, width_out = (getattr(module, name, None) for name in names)
    return width_in * width_out if width_in is not None and width_out is not None else 0

"""How many operations a pass takes, counted from the shapes of the model's matrices."""

from __future__ import annotations

from typing import Any

from arithscope.models.model import Model


def row_operations(model: Model, start: int = 0) -> int:
    """Floating-point operations that take one position from layer `start` on to its logits: 2 × the entries of all matrices.

    Attention over the few earlier positions, norms and activation functions are left out: together they are a few thousandths
    of a large model's work. Counted from the maps' widths, so that quantised and offloaded weights count the same.
    """
    modules = [m for layer in model.layers[start:] for m in layer.modules()]
    return 2 * sum(_entries(module) for module in [*modules, model.unembedding])


def first_layer_run(model: Model, layer: int) -> int:
    """The layer from which a replay runs if single neurons of a layer are edited: the next one, unless the MLP's output is
    normalised before it joins the residual stream."""
    return layer if model.architecture.post_norms else layer + 1


def _entries(module: Any) -> int:
    """Of a linear map's matrix, whichever way its kind names the widths; 0 for other modules."""
    inputs, outputs = getattr(module, "in_features", None), getattr(module, "out_features", None)
    if inputs is None:  # GPT-2's kind
        inputs, outputs = getattr(module, "nx", None), getattr(module, "nf", None)
    return inputs * outputs if inputs is not None and outputs is not None else 0

"""The same model in TransformerLens, if it is installed: only to compare with."""

from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from arithscope.models.engine.sweep import replica
from arithscope.models.model import Ids, Logits, Model


class TransformerLensUnavailable(Exception):
    """Why a model cannot be used in TransformerLens, in one clause."""


class TransformerLensModel:
    """A model as a TransformerLens bridge, which rewrites modules in place: it gets a replica that shares the weights."""

    def __init__(self, model: Model):
        if find_spec("transformer_lens") is None:
            raise TransformerLensUnavailable("it is not installed")
        if model.quantization or getattr(model.hf_model, "hf_device_map", None):
            raise TransformerLensUnavailable("it takes models that are on one device and not quantised")
        hf_model = replica(model).hf_model
        try:
            from transformer_lens.model_bridge.sources import build_bridge_from_module

            self._bridge: Any = build_bridge_from_module(hf_model, type(hf_model).__name__, hf_config=hf_model.config)
        except Exception as error:
            raise _unavailable(error) from error

    @torch.no_grad()
    def logits_with(self, ids: Ids, layer: int, neuron: int, values: Float[Tensor, " batch"]) -> Logits:
        """Logits at the last position of a full pass that sets one neuron there to a value per prompt."""

        def patch(activations: Tensor, hook: Any) -> Tensor:
            activations[:, -1, neuron] = values.to(activations)
            return activations

        try:
            logits = self._bridge.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.mlp.hook_post", patch)])
        except Exception as error:
            raise _unavailable(error) from error
        return logits[:, -1].float()


def _unavailable(error: Exception) -> TransformerLensUnavailable:
    """Wraps whatever TransformerLens raises on a model that it does not support."""
    first_line = (str(error).strip().splitlines() or ["no reason given"])[0][:160]
    return TransformerLensUnavailable(f"it cannot take this model ({type(error).__name__}: {first_line})")

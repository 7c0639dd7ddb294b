"""The same model in TransformerLens, if that is installed: to compare with, never to compute with."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arithscope.models.engine.replicas import replica
from arithscope.models.model import Model


class NoLens(Exception):
    """Why a subject cannot be had in TransformerLens; one clause."""


class Lens:
    """A subject's model as a TransformerLens bridge.

    A bridge is built into the model that it is given, so it gets a twin's; the weights are shared.
    """

    def __init__(self, model: Model):
        if find_spec("transformer_lens") is None:
            raise NoLens("it is not installed")
        if model.quantization or getattr(model.hf_model, "hf_device_map", None):
            raise NoLens("it takes models that are on one device and not quantised")
        hf_model = replica(model).hf_model
        try:
            from transformer_lens.model_bridge.sources import build_bridge_from_module

            self._bridge: Any = build_bridge_from_module(hf_model, type(hf_model).__name__, hf_config=hf_model.config)
        except Exception as error:
            raise _refused(error) from error

    @torch.no_grad()
    def logits_with(
        self, ids: Int[Tensor, "batch length"], layer: int, neuron: int, values: Float[Tensor, " batch"]
    ) -> Float[Tensor, "batch vocabulary"]:
        """Logits at the last position with one neuron set to a value for each prompt, there: one full pass."""

        def patch(activations: Tensor, hook: Any) -> Tensor:
            activations[:, -1, neuron] = values.to(activations)
            return activations

        try:
            logits = self._bridge.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.mlp.hook_post", patch)])
        except Exception as error:
            raise _refused(error) from error
        return logits[:, -1].float()


def _refused(error: Exception) -> NoLens:
    """Whatever a library that is not ours may raise on a model that it does not know."""
    first_line = (str(error).strip().splitlines() or ["no reason given"])[0][:160]
    return NoLens(f"it cannot take this model ({type(error).__name__}: {first_line})")

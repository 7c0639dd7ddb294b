"""A model taken apart so that other processes can rebuild it: a ModelSpec, and its weights as plain bytes.

Processes that find these bytes in shared memory build their models around them without a copy.
"""

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from arithscope.errors import UserError
from arithscope.models.engine.replay import check_replay
from arithscope.models.model import Identity, Model
from arithscope.models.untrained import empty_model
from arithscope.prompts import Template


def checked_model(hf_model: Any, tokenizer: Any, identity: Identity, template: Template | None) -> Model:
    """A model that replays exactly; UserError if it does not."""
    model = Model(hf_model, tokenizer, identity, template)
    check_replay(model, model.encode(model.encoder.examples()))
    return model


@dataclass(frozen=True, eq=False)
class Weights:
    """Every parameter and buffer, persistent or not. Tied ones are stored once: several names share an index."""

    arrays: list[NDArray[np.uint8]]
    formats: list[tuple[torch.dtype, tuple[int, ...]]]
    indices: dict[str, int]  # name → array


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """All of a model but its weights."""

    config: Any
    tokenizer: Any
    identity: Identity
    template: Template
    dtype: torch.dtype
    attention: str
    quantized: bool

    def empty(self) -> Model:
        """A model with sizes, tokenizer and identity that cannot be run."""
        return Model(self._empty_hf_model(), self.tokenizer, self.identity, self.template)

    def filled(self, weights: Weights, device: torch.device) -> Model:
        """The model itself. On the CPU its weights are the given bytes, not copies of them."""
        hf_model = self._empty_hf_model()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")  # shared memory is read-only
            stored = zip(weights.arrays, weights.formats, strict=True)
            tensors = [torch.from_numpy(x).view(dtype).view(shape).to(device) for x, (dtype, shape) in stored]
        parameters = [nn.Parameter(tensor, requires_grad=False) for tensor in tensors]
        for name, index in weights.indices.items():
            path, _, leaf = name.rpartition(".")
            owner = hf_model.get_submodule(path)
            if leaf in owner._parameters:
                owner._parameters[leaf] = parameters[index]
            else:
                owner._buffers[leaf] = tensors[index]
        return checked_model(hf_model, self.tokenizer, self.identity, self.template)

    def _empty_hf_model(self) -> Any:
        config = copy.deepcopy(self.config)
        if hasattr(config, "quantization_config"):
            del config.quantization_config  # an empty model is not quantised
        hf_model = empty_model(config, dtype=self.dtype, attn_implementation=self.attention)
        if self.quantized:
            hf_model.config.quantization_config, hf_model.is_quantized = self.config.quantization_config, True
        return hf_model


def model_spec(model: Model) -> ModelSpec:
    hf_model, template = model.hf_model, model.encoder.template
    attention, quantized = model.attention_implementation, bool(model.quantization)
    return ModelSpec(hf_model.config, model.tokenizer, model.identity, template, hf_model.dtype, attention, quantized)


def weights_of(model: Model) -> Weights:
    """Views of the weights if they are on the CPU, otherwise copies."""
    hf_model = model.hf_model
    named = [*hf_model.named_parameters(remove_duplicate=False), *hf_model.named_buffers(remove_duplicate=False)]
    if model.quantization or any(tensor.device.type == "meta" for _, tensor in named):
        problem = "are quantised or offloaded and cannot be sent to other processes"
        advice = "give the model's name, so that each process loads it itself"
        raise UserError(f"The weights of {model.identity.name} {problem}; {advice}.")
    distinct: dict[int, Tensor] = {id(tensor): tensor for _, tensor in named}
    index = {key: i for i, key in enumerate(distinct)}
    return Weights(
        [x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() for x in distinct.values()],
        [(x.dtype, tuple(x.shape)) for x in distinct.values()],
        {name: index[id(tensor)] for name, tensor in named},
    )

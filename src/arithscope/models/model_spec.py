"""A subject taken apart, so that it can be put together in other processes: its hull, and its weights as plain bytes.

Processes on a machine that find these bytes in shared memory build their models around them without a copy.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from arithscope.errors import UserError
from arithscope.models.engine.replay import check_replay
from arithscope.models.model import Identity, Model
from arithscope.prompts import Template


@dataclass(frozen=True, eq=False)
class Weights:
    """Every parameter and buffer, stored or not. Tied ones are there once: several names may have the same number."""

    arrays: list[NDArray[np.uint8]]
    kinds: list[tuple[torch.dtype, tuple[int, ...]]]
    numbers: dict[str, int]  # of each name the place of its array


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """All of a subject but its weights."""

    config: Any
    tokenizer: Any
    identity: Identity
    template: Template
    dtype: torch.dtype
    attention: str
    quantized: bool

    def empty(self) -> Model:
        """A subject that knows its sizes, its tokens and what it is called, but cannot be run."""
        return Model(self._model(), self.tokenizer, self.identity, self.template)

    def filled(self, weights: Weights, device: torch.device) -> Model:
        """The subject itself. On the CPU its weights are the given bytes, not copies of them."""
        hf_model = self._model()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")  # shared memory is not, and need not be
            found = [
                torch.from_numpy(array).view(dtype).view(shape).to(device)
                for array, (dtype, shape) in zip(weights.arrays, weights.kinds, strict=True)
            ]
        parameters: dict[int, nn.Parameter] = {}
        for name, number in weights.numbers.items():
            path, _, leaf = name.rpartition(".")
            owner = hf_model.get_submodule(path)
            if leaf in owner._parameters:
                if number not in parameters:
                    parameters[number] = nn.Parameter(found[number], requires_grad=False)
                owner._parameters[leaf] = parameters[number]
            else:
                owner._buffers[leaf] = found[number]
        model = Model(hf_model, self.tokenizer, self.identity, self.template)
        check_replay(model, model.encode(model.encoder.examples()))
        return model

    def _model(self) -> Any:
        plain = copy.deepcopy(self.config)
        if hasattr(plain, "quantization_config"):
            del plain.quantization_config  # an empty model is not quantised
        with torch.device("meta"):
            hf_model = AutoModelForCausalLM.from_config(plain, dtype=self.dtype, attn_implementation=self.attention)
        if self.quantized:
            hf_model.config.quantization_config, hf_model.is_quantized = self.config.quantization_config, True
        return hf_model


def model_spec(model: Model) -> ModelSpec:
    return ModelSpec(
        model.hf_model.config,
        model.tokenizer,
        model.identity,
        model.encoder.template,
        model.hf_model.dtype,
        model.attention_implementation,
        bool(model.quantization),
    )


def weights_of(model: Model) -> Weights:
    """Views of the weights, if they are on the CPU; else copies."""
    hf_model = model.hf_model
    named = [*hf_model.named_parameters(remove_duplicate=False), *hf_model.named_buffers(remove_duplicate=False)]
    if model.quantization or any(tensor.device.type == "meta" for _, tensor in named):
        raise UserError(
            f"The weights of {model.identity.name} are quantised or offloaded and cannot be sent to other processes; give "
            "the subject's name, so that each loads it itself."
        )
    places: dict[int, int] = {}
    distinct: list[Tensor] = []
    for _, tensor in named:
        if id(tensor) not in places:
            places[id(tensor)] = len(distinct)
            distinct.append(tensor)
    return Weights(
        [x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() for x in distinct],
        [(x.dtype, tuple(x.shape)) for x in distinct],
        {name: places[id(tensor)] for name, tensor in named},
    )

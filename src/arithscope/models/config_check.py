"""What a configuration asks for, before anything is built from it: a number in a file must not fill the memory."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from arithscope.errors import UserError

MOST_LAYERS = 1000


def check_sizes(config: Any, most: int) -> int:
    """The number of a model's parameters. Refuses a configuration that cannot be built, or that asks for more numbers than so
    many."""
    layers = config.get_text_config().num_hidden_layers
    if not 1 <= layers <= MOST_LAYERS:
        raise UserError(f"The configuration asks for {layers} layers; it must be 1 to {MOST_LAYERS}.")
    with torch.device("meta"):
        hf_model = AutoModelForCausalLM.from_config(config)
    parameters = sum(p.numel() for p in hf_model.parameters())
    numbers = parameters + sum(b.numel() for b in hf_model.buffers())
    if numbers > most:
        raise UserError(
            f"The configuration asks for a model of {numbers:,} numbers, of which {most:,} at most are possible here."
        )
    return parameters

"""A small random model of every supported family, and prompts for it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from arithscope.models.families import FAMILIES
from arithscope.models.model import Identity, Model
from arithscope.models.untrained import number_tokenizer, untrained_model
from arithscope.prompts import Layout, Prompts, Stratum, Template, operand_grid, random_source, sample
from tests.tokenizers_for_tests import right_grouped, three_chunks

NUMBERS = 40

_LLAMA = dict(
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    max_position_embeddings=128,
)
_GEMMA = dict(_LLAMA, head_dim=12, num_hidden_layers=4)  # heads wider than hidden / heads, as in the real ones
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": dict(_LLAMA, head_dim=8),
    "qwen2": _LLAMA,
    "qwen3": dict(_LLAMA, head_dim=12),
    "gemma": _GEMMA,
    "gemma2": dict(_GEMMA, query_pre_attn_scalar=12, sliding_window=64),
    "gemma3_text": dict(_GEMMA, query_pre_attn_scalar=12, sliding_window=64),
    "olmo2": _LLAMA,
    "gpt_neox": {k: v for k, v in _LLAMA.items() if k != "num_key_value_heads"},
    "gptj": dict(n_embd=32, n_layer=3, n_head=4, n_inner=48, n_positions=128, rotary_dim=4),
    "gpt2": dict(n_embd=32, n_layer=3, n_head=4, n_inner=48, n_positions=128),
}

FAMILY_AND_ATTENTION = [
    (family, attention)
    for family, architecture in FAMILIES.items()
    for attention in (("eager",) if architecture.eager_only else ("eager", "sdpa"))
]


# Tokenizers of numbers, by name, and a stratum of numbers of several tokens for each but the first.
TOKENIZERS = {
    "whole": lambda: number_tokenizer(NUMBERS),
    "digits": lambda: number_tokenizer(NUMBERS, digits=True),
    "three_chunks": three_chunks,
    "right_grouped": right_grouped,
}
STRATA = {
    "digits": Stratum((10, 99), (10, 99), (100, 198), Layout((1, 0), (1, 0), (2, 1, 0))),
    "three_chunks": Stratum((1000, 1099), (10_000, 10_099), (11_000, 11_198), Layout((1, 0), (2, 0), (2, 0))),
    "right_grouped": Stratum((1000, 1099), (10_000, 10_099), (11_000, 11_198), Layout((3, 0), (3, 0), (3, 0))),
}


@cache
def small(
    family: str,
    attention: str = "eager",
    dtype: torch.dtype = torch.float32,
    prefix: str = "",
    numbers: str = "whole",
) -> Model:
    """A random model whose weights are larger than at initialisation, so that every part of it matters."""
    tokenizer = TOKENIZERS[numbers]()
    hf_model = untrained_model(family, CONFIGS[family], tokenizer, seed=7)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in hf_model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * (0.5 / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.1))
    hf_model.set_attn_implementation(attention)
    return Model(
        hf_model.to(dtype), tokenizer, Identity(f"small {family}", "", family, "numbers"), Template(prefix=prefix)
    )


@cache
def small_at(family: str, attention: str, numbers: str, step: int) -> Model:
    """A small model with a tokenizer that cuts numbers, at an answer step of that tokenizer's stratum."""
    return small(family, attention, numbers=numbers).at(STRATA[numbers].at_step(step))


def some_of_stratum(model: Model, n: int = 3, seed: int = 0) -> Prompts:
    """Prompts of a model at an answer step."""
    assert model.encoder.stratum is not None
    return sample(model.encoder.stratum.prompts("+"), n, random_source(seed, "stratum"))


def some_prompts(n: int = 3) -> Prompts:
    return sample(operand_grid("+-*/", 30), n, random_source(0, "ids"))


def some_ids(model: Model, n: int = 3) -> torch.Tensor:
    return model.encode(some_prompts(n))

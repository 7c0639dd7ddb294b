"""New, untrained subjects: a model of any supported family with random weights, and a tokenizer of whole numbers."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from arithscope.errors import UserError
from arithscope.models.config_check import check_sizes
from arithscope.prompts import OPERATORS

MOST_PARAMETERS = 10**9  # of a model that is trained from scratch


def number_tokenizer(numbers: int) -> PreTrainedTokenizerFast:
    """A word-level tokenizer: 0…numbers−1, the operators and `=` are one token each."""
    words = [*map(str, range(numbers)), *OPERATORS, "=", "<bos>", "<eos>", "<pad>", "<unk>"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d+|."), behavior="isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )


def untrained_model(family: str, config: dict[str, Any], tokenizer: Any, seed: int = 0) -> torch.nn.Module:
    """A model with random weights, on the CPU in float32, sized to the tokenizer."""
    tokens = dict(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    try:
        filled = AutoConfig.for_model(family, **{**tokens, **config})
        check_sizes(filled, MOST_PARAMETERS)
        torch.manual_seed(seed)
        hf_model = AutoModelForCausalLM.from_config(filled, dtype=torch.float32)
        with torch.no_grad():
            hf_model(input_ids=torch.arange(len(tokenizer))[-8:][None])  # the largest tokens
        return hf_model
    except UserError:
        raise
    except Exception as error:  # whatever the library, or torch, raises on such a configuration
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"A model of family {family!r} cannot be built from {str(config)[:300]}: {reason}") from None

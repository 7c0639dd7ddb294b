"""New, untrained subjects: a model of any supported family with random weights, and a tokenizer of whole numbers."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from arithscope.errors import UserError
from arithscope.prompts import OPERATORS


def number_tokenizer(numbers: int) -> PreTrainedTokenizerFast:
    """A word-level tokenizer: 0…numbers−1, the operators and `=` are one token each."""
    words = [*map(str, range(numbers)), *OPERATORS, "=", "<bos>", "<eos>", "<pad>", "<unk>"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d+|."), behavior="isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )


def fresh_model(family: str, config: dict[str, Any], tokenizer: Any, seed: int = 0) -> torch.nn.Module:
    """A model with random weights, on the CPU in float32, sized to the tokenizer."""
    tokens = dict(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    try:
        filled = AutoConfig.for_model(family, **{**tokens, **config})
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(filled, dtype=torch.float32)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"A model of family {family!r} cannot be built from {config}: {reason}") from None

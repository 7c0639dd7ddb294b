"""New models of any supported family with random weights, and a tokenizer of whole numbers or digits."""

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from arithscope.errors import UserError
from arithscope.prompts import OPERATORS

MAX_PARAMETERS = 10**9  # of a model that is trained from scratch
MAX_LAYERS = 1000


def number_tokenizer(numbers: int, words: Sequence[str] = (), digits: bool = False) -> PreTrainedTokenizerFast:
    """A word-level tokenizer: 0…numbers−1 (or, with `digits`, every digit of a number), the operators, `=` and the words are
    one token each. It drops spaces if there are words, which need them."""
    known = [*map(str, range(10 if digits else numbers)), *OPERATORS, "=", "<bos>", "<eos>", "<pad>", "<unk>", *words]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    number = r"\d" if digits else r"\d+"
    split = pre_tokenizers.Split(Regex(rf"{number}|[a-z]+|."), behavior="isolated")
    spaces = [pre_tokenizers.Split(Regex(r"\s+"), behavior="removed")] if words else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*spaces, split])
    special = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad", "unk")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def empty_model(config: Any, **options: Any) -> Any:
    """A Hugging Face model on the meta device, without weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, **options)


def check_config(config: Any, max_numbers: int) -> int:
    """Number of parameters of a model. Raises UserError for absurd sizes before memory is allocated for them."""
    layers = config.get_text_config().num_hidden_layers
    if not 1 <= layers <= MAX_LAYERS:
        raise UserError(f"The configuration asks for {layers} layers; it must be 1 to {MAX_LAYERS}.")
    hf_model = empty_model(config)
    parameters = sum(p.numel() for p in hf_model.parameters())
    numbers = parameters + sum(b.numel() for b in hf_model.buffers())
    if numbers > max_numbers:
        sizes = f"{numbers:,} parameters and buffer entries, but at most {max_numbers:,} are possible here"
        raise UserError(f"The configuration asks for {sizes}.")
    return parameters


def untrained_model(family: str, config: dict[str, Any], tokenizer: Any, seed: int = 0) -> torch.nn.Module:
    """A model with random weights, on the CPU in float32, with the tokenizer's vocabulary."""
    tokens = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    try:
        filled = AutoConfig.for_model(family, **{"vocab_size": len(tokenizer), **tokens, **config})
        check_config(filled, MAX_PARAMETERS)
        torch.manual_seed(seed)
        hf_model = AutoModelForCausalLM.from_config(filled, dtype=torch.float32)
        with torch.no_grad():
            hf_model(input_ids=torch.arange(len(tokenizer))[-8:][None])  # the largest tokens
        return hf_model
    except UserError:
        raise
    except Exception as error:  # whatever transformers or torch raises on such a configuration
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"A model of family {family!r} cannot be built from {str(config)[:300]}: {reason}") from None

"""A GGUF file of a tiny random Llama, made with the library that reads such files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from arithscope.prompts import OPERATORS

WIDTH, HIDDEN, HEADS = 16, 32, 2
BLOCK, QUANTIZATION = 32, gguf.GGMLQuantizationType.Q8_0


def write_llama(
    path: Path,
    numbers: int = 11,
    chat_template: str | None = None,
    quantized: bool = False,
    add_bos: bool | None = None,
) -> None:
    """One layer, and a byte-pair tokenizer of single characters and of 11 to 20 numbers.

    With `quantized`, weights are stored in blocks where these fit. `add_bos` is what the file says about BOS in front of texts,
    if anything.
    """
    random = np.random.default_rng(0)
    tokens = ["<unk>", "<s>", "</s>", *map(str, range(numbers)), *OPERATORS, "="]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges([f"1 {digit}" for digit in range(numbers - 10)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    shapes = {
        "token_embd": (len(tokens), WIDTH),
        "output": (len(tokens), WIDTH),
        **{f"blk.0.attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{name}": (HIDDEN, WIDTH) for name in ("gate", "up")},
        "blk.0.ffn_down": (WIDTH, HIDDEN),
        **dict.fromkeys(("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"), (WIDTH,)),
    }
    for name, shape in shapes.items():
        weight = random.standard_normal(shape).astype(np.float32)
        in_blocks = quantized and shape[-1] % BLOCK == 0
        stored = gguf.quantize(weight, QUANTIZATION) if in_blocks else weight
        writer.add_tensor(f"{name}.weight", stored, raw_dtype=QUANTIZATION if in_blocks else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

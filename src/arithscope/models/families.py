"""Module names of the supported families, one row each. No other module of the package depends on a family's names."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Architecture:
    """Module paths of a family; the key of FAMILIES is the `model_type` of its Hugging Face configuration.

    Attributes:
        gated: Whether the activation function's output is multiplied by a second projection.
        post_norms: Whether the outputs of attention and MLP are normalised before they join the residual stream, so that a
            neuron does not write to it linearly.
        gain_offset: What the final norm adds to its stored weight.
        eager_only: Whether the family's fused attention is missing or incomplete (attention soft-capping).
    """

    layers: str = "model.layers"
    attention: str = "self_attn"
    attention_out: str = "self_attn.o_proj"
    mlp_down: str = "mlp.down_proj"
    mlp_activation: str = "mlp.act_fn"
    final_norm: str = "model.norm"
    gated: bool = True
    post_norms: bool = False
    gain_offset: float = 0.0
    eager_only: bool = False


_LLAMA = Architecture()
_GEMMA = replace(_LLAMA, gain_offset=1.0)
_GPT2 = Architecture("transformer.h", "attn", "attn.c_proj", "mlp.c_proj", "mlp.act", "transformer.ln_f", gated=False)
_NEOX_LAYER = ("attention", "attention.dense", "mlp.dense_4h_to_h", "mlp.act")

FAMILIES: dict[str, Architecture] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, post_norms=True, eager_only=True),
    "gemma3_text": replace(_GEMMA, post_norms=True),
    "olmo2": replace(_LLAMA, post_norms=True),
    "gpt_neox": Architecture("gpt_neox.layers", *_NEOX_LAYER, "gpt_neox.final_layer_norm", gated=False),
    "gptj": replace(_GPT2, attention_out="attn.out_proj", mlp_down="mlp.fc_out", eager_only=True),
    "gpt2": _GPT2,
}

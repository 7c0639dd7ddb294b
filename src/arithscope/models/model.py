"""Subject: a causal language model with its tokenizer, seen through the handful of things every experiment needs."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from arithscope.errors import UserError
from arithscope.models.engine.fast_ops import exact_product, quicken
from arithscope.models.families import FAMILIES
from arithscope.models.offload import devices, main_device, offloaded, weight_of
from arithscope.models.tokenization import Positions, PromptEncoder
from arithscope.prompts import Prompts, Template

if TYPE_CHECKING:
    from arithscope.models.engine.interface import Engine


class Site(StrEnum):
    """The two places where components live: slices of the input to a layer's attention output projection (heads), and
    entries of the input to its MLP down projection (neurons; all of them together are the whole MLP)."""

    HEADS = "heads"
    NEURONS = "neurons"


@dataclass(frozen=True)
class Identity:
    """What exactly was studied: enough to tell two subjects apart and to find one again."""

    name: str
    revision: str
    weight_hash: str
    tokenizer_hash: str
    source: str = ""  # what `load` was given, a path in full: where to find it again


@dataclass(frozen=True)
class Sizes:
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    neurons: int  # in one MLP
    width: int  # of the residual stream
    vocabulary: int
    parameters: int


class Model:
    """A loaded model, frozen, in evaluation mode. Make one with `load`."""

    def __init__(self, hf_model: Any, tokenizer: Any, identity: Identity, template: Template | None = None):
        config = hf_model.config.get_text_config()
        if config.model_type not in FAMILIES:
            raise unknown_family(config.model_type)
        self.hf_model, self.tokenizer, self.identity = hf_model.eval().requires_grad_(False), tokenizer, identity
        quicken(hf_model)
        self._engine: Engine | None = None
        self.family = config.model_type
        self.architecture = architecture = FAMILIES[self.family]
        self.layers = list(hf_model.get_submodule(architecture.layers))
        self._sites = {
            Site.HEADS: [layer.get_submodule(architecture.attention_out) for layer in self.layers],
            Site.NEURONS: [layer.get_submodule(architecture.mlp_down) for layer in self.layers],
        }
        self.final_norm = hf_model.get_submodule(architecture.final_norm)
        self.unembedding = hf_model.get_output_embeddings()
        self._soft_cap = getattr(config, "final_logit_softcapping", None)
        heads = config.num_attention_heads
        key_value_heads = getattr(config, "num_key_value_heads", None) or heads
        self.sizes = Sizes(
            layers=len(self.layers),
            heads=heads,
            key_value_heads=key_value_heads,
            head_dim=_shape(self._sites[Site.HEADS][0])[0] // heads,
            neurons=_shape(self._sites[Site.NEURONS][0])[0],
            width=_shape(self._sites[Site.NEURONS][0])[1],
            vocabulary=_shape(self.unembedding)[1],
            parameters=hf_model.num_parameters(),
        )
        self.encoder = PromptEncoder(tokenizer, template or Template())
        known = min(self.sizes.vocabulary, hf_model.get_input_embeddings().num_embeddings)
        if not 0 <= self.encoder.top_token < known:
            raise UserError(
                f"The tokenizer of {identity.name} has token {self.encoder.top_token}, but its model knows only {known}; "
                "tokenizer and weights do not belong together."
            )

    def __repr__(self) -> str:
        s = self.sizes
        return (
            f"Subject({self.identity.name!r}, {self.family}, {s.layers} layers × ({s.heads} heads + {s.neurons} neurons), "
            f"{s.parameters:,} parameters, {self.dtype_name} on {self.device})"
        )

    @property
    def engine(self) -> Engine:
        """What experiments run edited passes and sweeps with: the fast replay engine unless `with_engine` chose another."""
        from arithscope.models.engine.interface import REPLAY

        return self._engine or REPLAY

    def with_engine(self, engine: Engine) -> Model:
        """Return a shallow copy that uses another engine; modules, weights and tokenizer are shared."""
        other = copy.copy(self)
        other._engine = engine
        return other

    @property
    def device(self) -> torch.device:
        """Where prompts go, and where the results of all methods are, wherever the model's parts may be."""
        return main_device(self.hf_model)

    @cached_property
    def devices(self) -> set[torch.device]:
        """All that parts of the model run on."""
        return devices(self.hf_model)

    @cached_property
    def offloads(self) -> bool:
        """Whether some weights are fetched anew in every pass."""
        return any(map(offloaded, self.hf_model.modules()))

    @property
    def dtype_name(self) -> str:
        return str(self.hf_model.dtype).removeprefix("torch.")

    @property
    def quantization(self) -> str:
        """How the weights are quantised in memory; empty where they are not (a GGUF file's are unpacked on loading)."""
        said = getattr(self.hf_model.config, "quantization_config", None)
        if said is None or not getattr(self.hf_model, "is_quantized", False):
            return ""
        fields = said if isinstance(said, dict) else said.to_dict()
        bits = [name for name in ("4bit", "8bit") if fields.get(f"load_in_{name}")]
        method = fields.get("quant_method", "quantized")
        name = bits[0] if bits else str(getattr(method, "value", method))
        return "" if name == "gguf" else name

    @property
    def attention_implementation(self) -> str:
        return str(self.hf_model.config.get_text_config()._attn_implementation)

    @property
    def limit(self) -> int:
        """The single-token limit s: 0…s−1 are one token each."""
        return self.encoder.limit

    @property
    def positions(self) -> Positions:
        return self.encoder.positions

    def module(self, site: Site, layer: int) -> Any:
        """The projection whose input holds the components of this site and layer."""
        return self._sites[site][layer]

    def attention(self, layer: int) -> Any:
        return self.layers[layer].get_submodule(self.architecture.attention)

    def entries(self, site: Site) -> tuple[int, int]:
        """How many components a layer has at this site, and how wide each is."""
        return (self.sizes.heads, self.sizes.head_dim) if site is Site.HEADS else (self.sizes.neurons, 1)

    def encode(self, prompts: Prompts) -> Int[Tensor, "batch length"]:
        return self.encoder.encode(prompts).to(self.device)

    def answers(self, prompts: Prompts) -> Int[Tensor, " batch"]:
        return self.encoder.answers(prompts).to(self.device)

    @cached_property
    def number_of_token(self) -> Int[Tensor, " vocabulary"]:
        """The number that each token is as an answer; −1 for those that are none."""
        numbers = torch.full((self.sizes.vocabulary,), -1, dtype=torch.int32)
        numbers[self.encoder.answer_tokens] = torch.arange(self.limit, dtype=torch.int32)
        return numbers

    def embed(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length width"]:
        """The tokens' embeddings. Some families scale them, or add those of positions, before the first layer."""
        return self.hf_model.get_input_embeddings()(ids).to(self.device)

    def logits(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch vocabulary"]:
        """The model's own logits for the token after the last one, in float32 or better; edits in force apply."""
        return self.last_logits(self.hf_model(input_ids=ids, use_cache=False, logits_to_keep=1))

    @staticmethod
    def last_logits(output: Any) -> Float[Tensor, "batch vocabulary"]:
        """The last position's logits in a model's output, in float32 or better."""
        return _at_least_float32(output.logits[:, -1])

    def unembed(self, residual: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows vocabulary"]:
        """From the last layer's output to logits, as the model itself does it, but not rounded to half precision at the end:
        that would be coarser than the effect of most neurons."""
        logits = exact_product(self.unembedding, self.final_norm(residual))
        if self._soft_cap is not None:
            logits = torch.tanh(logits / self._soft_cap) * self._soft_cap
        return _at_least_float32(logits).to(self.device)

    def value_vectors(self, layer: int) -> Float[Tensor, "neurons width"]:
        """v_out of every neuron of a layer: the rows of the down projection."""
        down = self.module(Site.NEURONS, layer)
        if type(down) is nn.Linear:
            return weight_of(down).T.to(self.device)
        if type(down) is Conv1D:
            return weight_of(down).to(self.device)
        return self._value_vectors_by_probing(down).to(self.device)

    def _value_vectors_by_probing(self, down: Any) -> Float[Tensor, "neurons width"]:
        """Quantised weights cannot be read off; what the projection does to unit vectors can."""
        unit = torch.eye(self.sizes.neurons, device=self.device, dtype=self.hf_model.dtype)
        nothing = down(torch.zeros_like(unit[:1]))
        return torch.cat([down(block) - nothing for block in unit.split(1024)])

    @cached_property
    def _gain(self) -> Float[Tensor, " width"]:
        return weight_of(self.final_norm).to(self.device).float() + self.architecture.gain_offset

    def logit_lens(self, vectors: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows vocabulary"]:
        """What vectors add to the logits, up to the final norm's scale: its gain, then the unembedding, without biases.

        A LayerNorm also removes the mean, which is as linear as the gain, so the lens does too.
        """
        weight = weight_of(self.unembedding)
        return torch.nn.functional.linear(self.before_unembedding(vectors).to(weight), weight).float().to(self.device)

    def before_unembedding(self, vectors: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """The linear part of the final norm."""
        return self._centred(vectors.to(self.device).float()) * self._gain

    def logit_lens_direction(self, tokens: Int[Tensor, " tokens"]) -> Float[Tensor, "tokens width"]:
        """For each token the vector whose dot product with any vector is the lens's logit of that token."""
        weight = weight_of(self.unembedding)
        return self._centred(weight[tokens.to(weight.device)].to(self.device).float() * self._gain)

    def _centred(self, vectors: Tensor) -> Tensor:
        return vectors - vectors.mean(-1, keepdim=True) if isinstance(self.final_norm, nn.LayerNorm) else vectors


def unknown_family(family: str) -> UserError:
    return UserError(
        f"Models of family {family!r} are not supported; supported are {', '.join(FAMILIES)} "
        "(a new family is one row in arithscope/models/families.py)."
    )


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _shape(module: Any) -> tuple[int, int]:
    """Input and output width of a linear map; GPT-2 stores its own kind, transposed."""
    if isinstance(module, Conv1D):
        return module.nx, module.nf
    return module.in_features, module.out_features

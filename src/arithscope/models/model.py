"""A causal language model with its tokenizer, and the few operations that every experiment needs."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from arithscope.errors import UserError
from arithscope.models.engine.fast_ops import unrounded_linear, use_fast_modules
from arithscope.models.families import FAMILIES, Architecture
from arithscope.models.offload import offloaded, weight_of
from arithscope.models.tokenization import Positions, PromptEncoder
from arithscope.prompts import Prompts, Stratum, Template

if TYPE_CHECKING:
    from arithscope.models.engine.interface import Engine

Ids = Int[Tensor, "batch length"]  # tokens of prompts, which all have the same length
Logits = Float[Tensor, "batch vocabulary"]  # at the last position

_at_strata: WeakKeyDictionary[Model, dict[Stratum, Model]] = WeakKeyDictionary()  # what `Model.at` has returned


class Site(StrEnum):
    """Where components live: heads are slices of the input to a layer's attention output projection, neurons are entries of
    the input to its MLP down projection (all of them together are the whole MLP)."""

    HEADS = "heads"
    NEURONS = "neurons"


@dataclass(frozen=True)
class Identity:
    """What exactly was studied: enough to tell two models apart and to find one again."""

    name: str
    revision: str
    weight_hash: str
    tokenizer_hash: str
    source: str = ""  # the argument of `load`; paths are absolute


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
    """A loaded model, frozen and in evaluation mode. Made by `load`.

    Attributes:
        hf_model: The Hugging Face model.
        tokenizer: Its tokenizer.
        identity: Name, revision and hashes.
        family: The `model_type` of its configuration, a key of `FAMILIES`.
        sizes: Number of layers, heads, neurons and so on.
        encoder: Maps prompts to tokens.
        layers: The decoder layers.

    Example:
        >>> model = arithscope.load("tiny-llama")
        >>> prompts = arithscope.legal_prompts("+", 99, model.limit)
        >>> logits = model.logits(model.encode(prompts[:8]))  # [8, vocabulary]
    """

    def __init__(self, hf_model: Any, tokenizer: Any, identity: Identity, template: Template | None = None):
        config = hf_model.config.get_text_config()
        self.family = config.model_type
        self.architecture = architecture_of(config)
        self.hf_model = hf_model.eval().requires_grad_(False)
        self.tokenizer, self.identity = tokenizer, identity
        use_fast_modules(hf_model)
        self._engine: Engine | None = None
        self.layers = list(hf_model.get_submodule(self.architecture.layers))
        paths = {Site.HEADS: self.architecture.attention_out, Site.NEURONS: self.architecture.mlp_down}
        self._sites = {site: [layer.get_submodule(path) for layer in self.layers] for site, path in paths.items()}
        self.final_norm = hf_model.get_submodule(self.architecture.final_norm)
        self.unembedding = hf_model.get_output_embeddings()
        self._soft_cap = getattr(config, "final_logit_softcapping", None)
        heads = config.num_attention_heads
        key_value_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = widths(self._sites[Site.HEADS][0])[0] // heads
        neurons, width = widths(self._sites[Site.NEURONS][0])
        shape = len(self.layers), heads, key_value_heads, head_dim, neurons, width
        self.sizes = Sizes(*shape, vocabulary=widths(self.unembedding)[1], parameters=hf_model.num_parameters())
        self.encoder = self._encoder_of(template or Template())

    def __repr__(self) -> str:
        s = self.sizes
        shape = f"{s.layers} layers × ({s.heads} heads + {s.neurons} neurons), {s.parameters:,} parameters"
        return f"Model({self.identity.name!r}, {self.family}, {shape}, {self.dtype_name} on {self.device})"

    @property
    def engine(self) -> Engine:
        """Runs edited passes and sweeps: by default the fast replay engine."""
        from arithscope.models.engine.interface import REPLAY

        return self._engine or REPLAY

    def with_template(self, template: Template) -> Model:
        """Return a shallow copy whose prompts are written in another way; modules, weights and tokenizer are shared.

        Raises:
            UserError: If the tokenizer cannot be used with this template.
        """
        other = copy.copy(self)
        other.encoder = self._encoder_of(template)
        other.__dict__.pop("token_numbers", None)
        return other

    def _encoder_of(self, template: Template) -> PromptEncoder:
        encoder = PromptEncoder(self.tokenizer, template)
        self._check_tokens(encoder)
        return encoder

    def _check_tokens(self, encoder: PromptEncoder) -> None:
        """Refuse a tokenizer with more tokens than the model."""
        known = min(self.sizes.vocabulary, self.hf_model.get_input_embeddings().num_embeddings)
        if not 0 <= encoder.max_token < known:
            problem = f"uses token {encoder.max_token}, but the model has only {known} tokens"
            raise UserError(f"The tokenizer of {self.identity.name} {problem}; load it with the weights it belongs to.")

    def at(self, stratum: Stratum) -> Model:
        """Return a shallow copy that asks for an answer step of a stratum, always the same one; modules, weights and tokenizer
        are shared.

        Raises:
            UserError: If the tokenizer does not cut the stratum's numbers as its layout says.
        """
        known = _at_strata.setdefault(self, {})
        if stratum not in known:
            other = copy.copy(self)
            other.encoder = self.encoder.at(stratum)
            self._check_tokens(other.encoder)
            other.__dict__.pop("token_numbers", None)
            known[stratum] = other
        return known[stratum]

    def every_step(self) -> list[Model]:
        """The model at each answer step of its stratum; itself where numbers are whole."""
        stratum = self.encoder.stratum
        return [self] if stratum is None else [self.at(each) for each in stratum.every_step()]

    def with_engine(self, engine: Engine) -> Model:
        """Return a shallow copy with another engine; modules, weights and tokenizer are shared."""
        other = copy.copy(self)
        other._engine = engine
        return other

    @property
    def device(self) -> torch.device:
        """Device of prompts and results, even if the model is spread over several."""
        hook = getattr(self.hf_model, "_hf_hook", None)
        return self.hf_model.device if hook is None else torch.device(hook.execution_device)

    @cached_property
    def devices(self) -> set[torch.device]:
        """All devices that parts of the model run on."""
        hooks = [module._hf_hook for module in self.hf_model.modules() if hasattr(module, "_hf_hook")]
        return {self.device, *(torch.device(h.execution_device) for h in hooks if h.execution_device is not None)}

    @cached_property
    def offloads(self) -> bool:
        """Whether some weights are fetched again in every pass."""
        return any(map(offloaded, self.hf_model.modules()))

    @property
    def dtype_name(self) -> str:
        return str(self.hf_model.dtype).removeprefix("torch.")

    @property
    def quantization(self) -> str:
        """Quantisation of the weights in memory; empty if there is none (a GGUF file is dequantised on loading)."""
        config = getattr(self.hf_model.config, "quantization_config", None)
        if config is None or not getattr(self.hf_model, "is_quantized", False):
            return ""
        fields = config if isinstance(config, dict) else config.to_dict()
        method = fields.get("quant_method", "quantized")
        bits = (name for name in ("4bit", "8bit") if fields.get(f"load_in_{name}"))
        name = next(bits, str(getattr(method, "value", method)))
        return "" if name == "gguf" else name

    @property
    def full_precision(self) -> bool:
        """Whether weights are float32 or better."""
        return torch.finfo(self.hf_model.dtype).bits >= 32 and not self.quantization

    @property
    def attention_implementation(self) -> str:
        return str(self.hf_model.config.get_text_config()._attn_implementation)

    @property
    def limit(self) -> int:
        """The single-token limit s: the numbers 0…s−1 are one token each. In a stratum, results lie below it."""
        return self.encoder.limit

    @property
    def positions(self) -> Positions:
        return self.encoder.positions

    def module(self, site: Site, layer: int) -> Any:
        """The projection whose input holds the components of this site and layer."""
        return self._sites[site][layer]

    def attention(self, layer: int) -> Any:
        """The attention module of a layer."""
        return self.layers[layer].get_submodule(self.architecture.attention)

    def component_shape(self, site: Site) -> tuple[int, int]:
        """Number of components of a layer at this site, and the width of each."""
        return (self.sizes.heads, self.sizes.head_dim) if site is Site.HEADS else (self.sizes.neurons, 1)

    def encode(self, prompts: Prompts) -> Ids:
        """Token ids of prompts, on the model's device."""
        return self.encoder.encode(prompts).to(self.device)

    def answers(self, prompts: Prompts) -> Int[Tensor, " batch"]:
        """Token ids of the right answers, on the model's device."""
        return self.encoder.answers(prompts).to(self.device)

    @cached_property
    def token_numbers(self) -> Int[Tensor, " vocabulary"]:
        """The number that each token denotes as an answer; −1 for all other tokens."""
        numbers = torch.full((self.sizes.vocabulary,), -1, dtype=torch.int32)
        tokens, values = self.encoder.answer_tokens, torch.arange(self.limit, dtype=torch.int32)
        numbers[tokens[tokens >= 0]] = values[tokens >= 0]
        return numbers

    def embed(self, ids: Ids) -> Float[Tensor, "batch length width"]:
        """Token embeddings. Some families scale them, or add position embeddings, before the first layer."""
        return self.hf_model.get_input_embeddings()(ids).to(self.device)

    def logits(self, ids: Ids) -> Logits:
        """The model's own logits after the last token, in float32 or better; active edits apply."""
        return self.logits_at_last(ids, 1)[:, 0]

    def logits_at_last(self, ids: Ids, last: int) -> Float[Tensor, "batch last vocabulary"]:
        """The same at the last positions: after each token of the answer, if that is what they hold."""
        return self.kept_logits(self.hf_model(input_ids=ids, use_cache=False, logits_to_keep=last))

    @staticmethod
    def kept_logits(output: Any) -> Float[Tensor, "batch kept vocabulary"]:
        """Logits of a Hugging Face model's output, in float32 or better."""
        return _at_least_float32(output.logits)

    def unembed(self, residual: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows vocabulary"]:
        """Map the last layer's output to logits as the model does, but without rounding them to half precision, which would
        be coarser than the effect of most neurons."""
        logits = unrounded_linear(self.unembedding, self.final_norm(residual))
        if self._soft_cap is not None:
            logits = torch.tanh(logits / self._soft_cap) * self._soft_cap
        return _at_least_float32(logits).to(self.device)

    def value_vectors(self, layer: int) -> Float[Tensor, "neurons width"]:
        """v_out of every neuron of a layer: the rows of the down projection."""
        down = self.module(Site.NEURONS, layer)
        if type(down) in (nn.Linear, Conv1D):
            return (weight_of(down).T if type(down) is nn.Linear else weight_of(down)).to(self.device)
        # Quantised weights cannot be read, but the projection can be applied to unit vectors.
        unit = torch.eye(self.sizes.neurons, device=self.device, dtype=self.hf_model.dtype)
        bias = down(torch.zeros_like(unit[:1]))
        return torch.cat([down(block) - bias for block in unit.split(1024)]).to(self.device)

    @cached_property
    def _gain(self) -> Float[Tensor, " width"]:
        return weight_of(self.final_norm).to(self.device).float() + self.architecture.gain_offset

    def logit_lens(self, vectors: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows vocabulary"]:
        """What vectors add to the logits, up to the final norm's scale: the linear part of the final norm, then the
        unembedding, without biases."""
        weight = weight_of(self.unembedding)
        return nn.functional.linear(self.final_norm_linear(vectors).to(weight), weight).float().to(self.device)

    def final_norm_linear(self, vectors: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """The linear part of the final norm: its gain, and a LayerNorm's centring."""
        return self._centred(vectors.to(self.device).float()) * self._gain

    def logit_lens_direction(self, tokens: Int[Tensor, " tokens"]) -> Float[Tensor, "tokens width"]:
        """For each token, the direction whose dot product with a vector is the vector's logit-lens logit of that token."""
        weight = weight_of(self.unembedding)
        return self._centred(weight[tokens.to(weight.device)].to(self.device).float() * self._gain)

    def _centred(self, vectors: Tensor) -> Tensor:
        return vectors - vectors.mean(-1, keepdim=True) if isinstance(self.final_norm, nn.LayerNorm) else vectors


def architecture_of(config: Any) -> Architecture:
    """The architecture of a Hugging Face configuration. Raises UserError if its family is not supported."""
    if (family := config.get_text_config().model_type) not in FAMILIES:
        supported = f"{', '.join(FAMILIES)} (a new family is one row in arithscope/models/families.py)"
        raise UserError(f"Models of family {family!r} are not supported; choose a model of {supported}.")
    return FAMILIES[family]


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def widths(module: Any) -> tuple[int, int]:
    """Input and output width of a linear map, also of GPT-2's transposed kind."""
    return (module.nx, module.nf) if isinstance(module, Conv1D) else (module.in_features, module.out_features)

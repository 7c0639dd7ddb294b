"""Direct logit attribution: a logit as a sum over everything written to the residual stream.

At the last position, with the final norm's scale held constant, a logit is the sum of the contributions of

1. the embeddings,
2. each attention layer,
3. each neuron: activation × value vector, and
4. biases,

each mapped to a logit by the linear part of the final norm and by the unembedding.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arithscope.models.engine.sweep import last_position
from arithscope.models.hooks import capturing, layer_input
from arithscope.models.model import Ids, Model, Site
from arithscope.models.offload import weight_of


@dataclass(frozen=True)
class LogitAttribution:
    """Contributions to the logit of one token of each prompt, before soft-capping."""

    logit: Float[Tensor, " batch"]
    embeddings: Float[Tensor, " batch"]
    attention: Float[Tensor, "batch layers"]
    activations: Float[Tensor, "batch layers neurons"]
    value_logits: Float[Tensor, "batch layers neurons"]  # the token's logit-lens logit of each value vector
    biases: Float[Tensor, " batch"]  # of the MLPs, the final norm and the unembedding
    scale: Float[Tensor, " batch"]  # of the final norm: logit-lens logits are divided by it

    @cached_property
    def neurons(self) -> Float[Tensor, "batch layers neurons"]:
        return self.activations.double() * self.value_logits / self.scale[:, None, None]

    @property
    def unexplained(self) -> Float[Tensor, " batch"]:
        """The rest of the logit: rounding, and in some families the norms after attention and MLP."""
        return self.logit - self.embeddings - self.attention.sum(-1) - self.neurons.sum((-2, -1)) - self.biases


@torch.no_grad()
def direct_logit_attribution(model: Model, ids: Ids, tokens: Int[Tensor, " batch"]) -> LogitAttribution:
    """Decompose the logit of one token of each prompt, in float64 except for the pass itself.

    Args:
        tokens: The token of each prompt whose logit is decomposed.

    Returns:
        The contributions; they sum to the logit up to `unexplained`.

    Example:
        >>> parts = direct_logit_attribution(model, model.encode(prompts), model.answers(prompts))
        >>> parts.neurons.flatten(1).topk(10)  # the neurons that contribute most to each answer's logit
    """
    layers = range(model.sizes.layers)
    stream: list[Tensor] = []

    def keep_stream(module: Any, args: Any, kwargs: Any) -> None:
        stream.append(layer_input(args, kwargs)[:, -1])

    with (
        model.layers[0].register_forward_pre_hook(keep_stream, with_kwargs=True),
        model.final_norm.register_forward_pre_hook(keep_stream, with_kwargs=True),
        capturing(model, heads=layers, neurons=layers, keep=last_position) as activations,
    ):
        model.logits(ids)
    start, end = stream
    direction, weight = model.logit_lens_direction(tokens).double(), weight_of(model.unembedding)
    biases = weight.new_zeros(len(weight)).double()  # logits of the biases of the final norm and the unembedding
    normalised, undivided = (f(end).double().to(model.device) for f in (model.final_norm, model.final_norm_linear))
    if (bias := weight_of(model.final_norm, "bias")) is not None:
        normalised = normalised - bias.double().to(model.device)
        biases = weight.double() @ bias.double().to(weight.device)
    if (bias := weight_of(model.unembedding, "bias")) is not None:
        biases = biases + bias.double().to(weight.device)
    constant = biases.to(model.device)[tokens]
    scale = (undivided**2).sum(-1) / (undivided * normalised).sum(-1)  # by which the final norm divides

    def logit(vectors: Tensor) -> Tensor:
        return (vectors.to(direction.device).double() * direction).sum(-1) / scale

    attention = [model.module(Site.HEADS, i)(activations.heads[i].flatten(1)) for i in layers]
    mlp_biases = [model.module(Site.NEURONS, i)(torch.zeros_like(activations.neurons[i][:1])) for i in layers]
    value_logits = [direction @ model.value_vectors(i).to(direction).T for i in layers]
    return LogitAttribution(
        logit=logit(end) + constant,
        embeddings=logit(start),
        attention=torch.stack([logit(x) for x in attention], dim=1),
        biases=torch.stack([logit(x) for x in mlp_biases]).sum(0) + constant,
        activations=torch.stack([activations.neurons[i].to(direction.device) for i in layers], dim=1),
        value_logits=torch.stack(value_logits, dim=1),
        scale=scale,
    )

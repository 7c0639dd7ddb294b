"""What adds up to a logit: every part of the residual stream at the last position, through the final norm and unembedding.

The final norm divides by one number, the stream's scale; with that held, a logit is a sum over everything that was written
into the stream: the tokens' embeddings, what each attention layer wrote, activation × value vector of each neuron, and biases.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arithscope.models.hooks import capturing
from arithscope.models.model import Model, Site
from arithscope.models.offload import weight_of


@dataclass(frozen=True)
class Contributions:
    """To the logit of one token of each prompt, before soft-capping. In families that put a norm behind an MLP or attention,
    what is written is not what arrives, and the difference is left over."""

    logit: Float[Tensor, " batch"]
    embeddings: Float[Tensor, " batch"]
    attention: Float[Tensor, "batch layers"]
    activations: Float[Tensor, "batch layers neurons"]
    value_logits: Float[Tensor, "batch layers neurons"]  # of the token, in each neuron's value vector, through the lens
    biases: Float[Tensor, " batch"]  # of the MLPs, the final norm and the unembedding
    scale: Float[Tensor, " batch"]  # of the stream: the lens's logits are divided by it

    @cached_property
    def neurons(self) -> Float[Tensor, "batch layers neurons"]:
        return self.activations.double() * self.value_logits / self.scale[:, None, None]

    @property
    def left_over(self) -> Float[Tensor, " batch"]:
        """What the parts do not account for: rounding, and norms behind MLPs and attention."""
        return self.logit - self.embeddings - self.attention.sum(-1) - self.neurons.sum((-2, -1)) - self.biases


@torch.no_grad()
def direct_logit_attribution(
    model: Model, ids: Int[Tensor, "batch length"], tokens: Int[Tensor, " batch"]
) -> Contributions:
    """Take the logit of a token of each prompt apart, in float64 but for the pass itself."""
    layers = range(model.sizes.layers)
    stream: list[Tensor] = []
    handles = [
        model.layers[0].register_forward_pre_hook(
            lambda m, args, kw: stream.append(_first(args, kw)), with_kwargs=True
        ),
        model.final_norm.register_forward_pre_hook(lambda m, args: stream.append(args[0])),
    ]
    try:
        with capturing(model, heads=layers, neurons=layers, keep=lambda x: x[:, -1].clone()) as seen:
            model.logits(ids)
    finally:
        for handle in handles:
            handle.remove()
    begin, end = (x[:, -1] for x in stream)
    direction = model.logit_lens_direction(tokens).double()
    scale, norm_bias = _scale(model, end)

    def told(vectors: Tensor) -> Tensor:
        return (vectors.to(direction.device).double() * direction).sum(-1) / scale

    attention = [model.module(Site.HEADS, i)(seen.heads[i].flatten(1)) for i in layers]
    silent = [model.module(Site.NEURONS, i)(torch.zeros_like(seen.neurons[i][:1])) for i in layers]
    value_logits = [direction @ model.value_vectors(i).to(direction).T for i in layers]
    of_unembedding = weight_of(model.unembedding, "bias")
    fixed = norm_bias if of_unembedding is None else norm_bias + of_unembedding.double().to(direction.device)
    fixed = fixed[tokens]
    return Contributions(
        logit=told(end) + fixed,
        embeddings=told(begin),
        attention=torch.stack([told(x) for x in attention], dim=1),
        biases=torch.stack([told(x) for x in silent]).sum(0) + fixed,
        activations=torch.stack([seen.neurons[i].to(direction.device) for i in layers], dim=1),
        value_logits=torch.stack(value_logits, dim=1),
        scale=scale,
    )


def _first(args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:
    return args[0] if args else kwargs["hidden_states"]


def _scale(model: Model, stream: Float[Tensor, "batch width"]) -> tuple[Tensor, Tensor]:
    """By what the final norm divides each prompt's stream, read off what it does, and its bias's logits of all tokens."""
    norm, device = model.final_norm, model.device
    bias = weight_of(norm, "bias")
    out = norm(stream).double().to(device)
    shifted = out if bias is None else out - bias.double().to(device)
    undivided = model.before_unembedding(stream).double()
    scale = (undivided**2).sum(-1) / (undivided * shifted).sum(-1)
    weight = weight_of(model.unembedding)
    logits = (
        weight.new_zeros(len(weight)).double() if bias is None else weight.double() @ bias.double().to(weight.device)
    )
    return scale, logits.to(device)

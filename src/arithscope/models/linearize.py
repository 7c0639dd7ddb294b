"""A model made linear around a prompt, for gradients that estimate large changes better.

A gradient describes an infinitesimal step. A patch is a large one, along which norms rescale and activation functions bend.
Inside `linearized` gradients ignore that: the factor by which a norm or an activation function multiplies its input counts as
a constant. Forward passes stay the same.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from arithscope.models.model import Model, Site
from arithscope.models.offload import weight_of


@contextmanager
def linearized(model: Model) -> Iterator[None]:
    """Backward passes inside treat norms, activation functions and gates as linear maps.

    norm                   the scale is held constant; a LayerNorm's centring stays
    activation function    f(x) = x · [f(x) / x], with the bracket held constant
    gate                   of the product act(gate) · up, each factor gets half of the gradient

    The other usual rule for gates, act(gate) held constant and the whole gradient to up, is slightly worse: on tiny-llama the
    rank correlation of its estimates with exact effects is .63 instead of .64 (by log-ratio .61 instead of .62).
    """
    with ExitStack() as stack:
        for norm in (m for m in model.hf_model.modules() if isinstance(m, type(model.final_norm))):
            stack.enter_context(norm.register_forward_hook(_at_norm_or_activation))
        for i, layer in enumerate(model.layers):
            activation = layer.get_submodule(model.architecture.mlp_activation)
            stack.enter_context(activation.register_forward_hook(_at_norm_or_activation))
            if model.architecture.gated:
                # Before all other hooks: they capture the neuron itself, whose own gradient is not halved.
                stack.enter_context(model.module(Site.NEURONS, i).register_forward_pre_hook(_at_product, prepend=True))
        yield


def _at_norm_or_activation(module: Any, args: Any, output: Tensor) -> Tensor:
    x = args[0].to(output.device)  # a norm may run on another device than the module before it
    if isinstance(module, nn.LayerNorm):
        slope = weight_of(module) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + module.eps)
        x = x - x.mean(-1, keepdim=True)
    else:
        slope = torch.where(x == 0, 0.0, output / x)
    return output.detach() + slope.detach() * (x - x.detach())  # the same output, with this slope with respect to x


def _at_product(module: Any, args: Any) -> Any:
    half = args[0] / 2
    return half + half.detach(), *args[1:]

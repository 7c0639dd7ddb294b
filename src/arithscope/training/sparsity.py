"""A penalty on active neurons: it makes few of them take part in an answer, and late ones."""

from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from arithscope.models.families import FAMILIES
from arithscope.training.batches import IGNORED, Batch


class Sparsity:
    """Keeps the activations of all MLPs in a forward pass under `with`, and then gives their penalty.

    A neuron costs |activation|. Where a token of the answer is predicted, activations cost `early` times as much in each layer
    as in the next one.
    """

    def __init__(self, model: Any, family: str, early: float):
        architecture = FAMILIES[family]
        layers = model.get_submodule(architecture.layers)
        self._downs = [layer.get_submodule(architecture.mlp_down) for layer in layers]
        self._costs = [early**above for above in reversed(range(len(self._downs)))]
        self._activations: list[Tensor] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> "Sparsity":
        self._activations.clear()
        self._hooks = [down.register_forward_pre_hook(self._keep) for down in self._downs]
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for hook in self._hooks:
            hook.remove()

    def _keep(self, module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._activations.append(inputs[0])

    def penalty(self, batch: Batch) -> Float[Tensor, ""]:
        """Mean cost over layers, the batch's penalised positions, and neurons."""
        rows, positions = batch.penalised.nonzero(as_tuple=True)
        answering = batch.targets[rows, positions] != IGNORED
        means = []
        for cost, activations in zip(self._costs, self._activations, strict=True):
            size = activations[rows, positions].float().abs().mean(-1)
            means.append((size * torch.where(answering, cost, 1.0)).mean())
        return torch.stack(means).mean()

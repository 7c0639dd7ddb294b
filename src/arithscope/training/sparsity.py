"""A penalty on what MLP neurons write: it makes few neurons take part in an answer, and late ones."""

from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from arithscope.models.families import FAMILIES
from arithscope.training.batches import IGNORED, Batch


class Sparsity:
    """Keeps the activations of all MLPs in a forward pass under `with`, and then gives their penalty.

    A neuron costs |activation| × the length of its value vector; the activation alone could be made small at no cost, by longer
    value vectors. Where a token of the answer is predicted, each layer costs `early` times as much as the next one.
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
        for down, cost, activations in zip(self._downs, self._costs, self._activations, strict=True):
            # Linear layers store a value vector as a column, GPT-2's own kind of layer as a row.
            lengths = down.weight.float().norm(dim=0 if isinstance(down, torch.nn.Linear) else 1)
            written = (activations[rows, positions].float().abs() * lengths).mean(-1)
            means.append((written * torch.where(answering, cost, 1.0)).mean())
        return torch.stack(means).mean()

"""Linear classifiers, one a layer, trained together in one batched optimisation. Knows no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.probe_kernel import Kernel, kernel_for, train_one
from arithscope.prompts import random_source
from arithscope.utils.threads import workers

LEARNING_RATE, BATCH, EPOCHS = 3e-4, 32, 20
BETAS = (0.9, 0.999)  # of Adam, as PyTorch has them; probe_steps.cu has them too
SAID_EVERY = 64  # steps


@dataclass(frozen=True)
class Examples:
    """Prompts as probes see them: the residual stream at one position behind some layers, and the answer to give.

    What comes before a position can be the same for many prompts (op1 alone decides what is at op1), so states are kept
    once, and `of_prompt` says which are whose. Both are reached by prompt number only, so they cannot get out of step.
    """

    states: Float[Tensor, "layers distinct width"]
    of_prompt: Int[Tensor, " prompts"]
    answer: Int[Tensor, " prompts"]

    def __len__(self) -> int:
        return len(self.answer)

    def __getitem__(
        self, rows: Int[Tensor, " rows"]
    ) -> tuple[Float[Tensor, "layers rows width"], Int[Tensor, " rows"]]:
        return self.states[:, self.of_prompt[rows]].float(), self.answer[rows]


@dataclass(frozen=True)
class Probes:
    matrix: Float[Tensor, "layers width answers"]
    bias: Float[Tensor, "layers 1 answers"]

    def logits(self, states: Float[Tensor, "layers rows width"]) -> Float[Tensor, "layers rows answers"]:
        return torch.baddbmm(self.bias, states, self.matrix)

    def right(self, examples: Examples, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "layers rows"]:
        """Which of these examples each probe answers rightly."""
        found = []
        for some in rows.to(examples.answer.device).split(4096):
            states, answer = examples[some]
            found.append(self.logits(states).argmax(-1) == answer)
        return torch.cat(found, dim=1)


def initial(layers: Sequence[int], width: int, answers: int, seed: int, name: str) -> Probes:
    """As a linear layer of PyTorch starts: uniform up to ± 1/√width. Each layer has a random source of its own."""
    bound = width**-0.5

    def one(layer: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        source = random_source(seed, "probe start", name, layer)
        return source.uniform(-bound, bound, (width, answers)), source.uniform(-bound, bound, (1, answers))

    with workers() as pool:
        parts = zip(*pool.map(one, layers), strict=True)
        return Probes(*(torch.from_numpy(np.stack(x).astype(np.float32)) for x in parts))


def steps(training: int) -> int:
    return EPOCHS * -(-training // BATCH)


def train(
    start: Probes, examples: Examples, training: int, seed: int, name: str, advance: Callable[[int], None]
) -> Probes:
    """Fit all layers' probes to the first `training` examples with Adam on the cross-entropy.

    Adam works entry by entry, and no entry is in two probes, so each probe ends up where it would alone. The order of
    examples depends on the epoch only, not on which layers are trained together.
    """
    kernel = kernel_for(examples.states, start.matrix.shape[2])
    if kernel is not None:
        return _trained_on_chip(kernel, start, examples, training, seed, name, advance)
    device = examples.states.device
    probes = Probes(start.matrix.to(device, copy=True), start.bias.to(device, copy=True))
    optimizer = torch.optim.Adam(
        (probes.matrix, probes.bias), LEARNING_RATE, BETAS, fused=True, capturable=device.type == "cuda"
    )
    orders = _orders(training, seed, name).to(device)
    number = torch.zeros(1, dtype=torch.long, device=device)
    each = torch.arange(BATCH, device=device)

    def step() -> None:
        order = orders.index_select(0, number)[0]
        states, answer = examples[order.clamp(min=0)]
        # The gradient of the mean cross-entropy, written out: probabilities, less 1 at the answer.
        slope = probes.logits(states).softmax(-1)
        slope[:, each, answer] -= 1
        slope *= ((order >= 0) / (order >= 0).sum())[:, None]
        probes.matrix.grad, probes.bias.grad = states.mT @ slope, slope.sum(1, keepdim=True)
        optimizer.step()
        number.add_(1)

    def clear_cache() -> None:
        """Make as if no step had been taken."""
        probes.matrix.copy_(start.matrix)
        probes.bias.copy_(start.bias)
        for x in [number, *(x for state in optimizer.state.values() for x in state.values())]:
            x.zero_()

    take = step if device.type != "cuda" else _recorded(step, clear_cache, device)
    for i in range(len(orders)):
        take()
        if (i + 1) % SAID_EVERY == 0 or i + 1 == len(orders):
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # what is said to be done is done, not only asked for
            advance((i % SAID_EVERY + 1) * len(probes.matrix))
    return probes


def _trained_on_chip(
    kernel: Kernel,
    start: Probes,
    examples: Examples,
    training: int,
    seed: int,
    name: str,
    advance: Callable[[int], None],
) -> Probes:
    """The same, one layer after the other."""
    device = examples.states.device
    orders = _orders(training, seed, name).to(device)
    rows = examples.of_prompt[orders.clamp(min=0)].int()
    answers = torch.where(orders >= 0, examples.answer[orders.clamp(min=0)], -1).int()
    t = torch.arange(1, len(orders) + 1, dtype=torch.float64)
    rates = torch.stack([LEARNING_RATE / (1 - BETAS[0] ** t), (1 - BETAS[1] ** t) ** -0.5], dim=1).float().to(device)
    found = []
    for layer, states in enumerate(examples.states):
        first = torch.cat([start.matrix[layer], start.bias[layer]]).to(device)
        found.append(train_one(kernel, states, rows, answers, rates, first, advance))
    every = torch.stack(found)
    return Probes(every[:, :-1].contiguous(), every[:, -1:].contiguous())


def _recorded(step: Callable[[], None], clear_cache: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """A step on a GPU as a graph of kernels that is played back: calling them one by one takes longer than they do."""
    step()  # prepares what cannot be while a graph is recorded
    clear_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):  # a graph is of one device, by default the first
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            step()
    return graph.replay


def _orders(training: int, seed: int, name: str) -> Int[Tensor, "steps rows"]:
    """The examples of each step, all epochs one after the other; −1 fills up the last step of an epoch."""
    orders = np.full((EPOCHS, -(-training // BATCH) * BATCH), -1)
    for epoch in range(EPOCHS):
        orders[epoch, :training] = random_source(seed, "probe order", name, epoch).permutation(training)
    return torch.from_numpy(orders.reshape(-1, BATCH))

"""The training of linear probes on a GPU: a step is recorded once, as a graph of kernels, and played back.

What a step costs is Adam, which reads and writes three numbers for each weight. So probes take their turns: the gradient of one
layer's is still in the GPU's cache when it is used, and never has to come from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

BETAS, EPSILON = (0.9, 0.999), 1e-8  # as in torch.optim.Adam
BLOCK = 2048
SAID_EVERY = 256  # steps


@triton.jit
def _adam(gradient, weights, first, second, rates, scales, number, size, beta1, beta2, epsilon, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    t = tl.load(number)
    rate, scale = tl.load(rates + t), tl.load(scales + t)
    g, m, v = tl.load(gradient + at, inside), tl.load(first + at, inside), tl.load(second + at, inside)
    m += (g - m) * (1 - beta1)
    v += (g * g - v) * (1 - beta2)
    value = tl.load(weights + at, inside) - rate * m / (tl.sqrt(v) * scale + epsilon)
    tl.store(first + at, m, inside)
    tl.store(second + at, v, inside)
    tl.store(weights + at, value, inside)


class _Adam:
    """Adam for a tensor of weights; `number`, on the device, says which step it is."""

    def __init__(self, weights: Tensor, number: Tensor, steps: int, learning_rate: float):
        self.weights, self.number = weights, number
        self.first, self.second = torch.zeros_like(weights), torch.zeros_like(weights)
        count = torch.arange(1, steps + 1, dtype=torch.float64)
        self.rates = (learning_rate / (1 - BETAS[0] ** count)).float().to(weights.device)
        self.scales = (1 / (1 - BETAS[1] ** count).sqrt()).float().to(weights.device)

    def step(self, gradient: Tensor, part: int | slice) -> None:
        """Update a part of the weights."""
        weights, first, second = self.weights[part], self.first[part], self.second[part]
        size = gradient.numel()
        _adam[(triton.cdiv(size, BLOCK),)](
            gradient, weights, first, second, self.rates, self.scales, self.number, size, *BETAS, EPSILON, BLOCK=BLOCK
        )

    def forget(self) -> None:
        self.first.zero_()
        self.second.zero_()


def train(
    matrix: Float[Tensor, "layers width answers"],
    bias: Float[Tensor, "layers 1 answers"],
    examples: Any,
    orders: Int[Tensor, "steps rows"],
    learning_rate: float,
    advance: Callable[[int], None],
) -> None:
    """Train probes in place; `orders` names the examples of each step, −1 where a step has fewer."""
    device, (steps, rows) = matrix.device, orders.shape
    number = torch.zeros((), dtype=torch.long, device=device)
    shares = (orders >= 0).to(device) / (orders >= 0).sum(1, keepdim=True).to(device)
    orders = orders.clamp(min=0).to(device)
    each, gradient = torch.arange(rows, device=device), torch.empty_like(matrix[0])
    of_matrix, of_bias = (_Adam(x, number, steps, learning_rate) for x in (matrix, bias))

    def step() -> None:
        states, answer = examples[orders.index_select(0, number[None])[0]]
        slope = torch.baddbmm(bias, states, matrix).softmax(-1)
        slope[:, each, answer] -= 1
        slope *= shares.index_select(0, number[None])[0][:, None]
        for layer in range(len(matrix)):
            torch.mm(states[layer].T, slope[layer], out=gradient)
            of_matrix.step(gradient, layer)
        of_bias.step(slope.sum(1), slice(None))
        number.add_(1)

    before = matrix.clone(), bias.clone()
    step()  # what is compiled now need not be while the graph is recorded; then all is as it was
    matrix.copy_(before[0])
    bias.copy_(before[1])
    of_matrix.forget()
    of_bias.forget()
    number.zero_()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for i in range(steps):
        graph.replay()
        if (i + 1) % SAID_EVERY == 0 or i + 1 == steps:
            torch.cuda.synchronize(device)  # progress is what is done, not what is asked for
            advance((i % SAID_EVERY + 1) * len(matrix))

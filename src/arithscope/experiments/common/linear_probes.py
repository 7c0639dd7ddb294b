"""Linear classifiers, one per layer, trained together in one batched optimisation. Knows nothing of the model.

Adam updates every weight independently and no weight belongs to two probes, so each probe ends up where it would if it were
trained alone. On a GPU a training step is recorded as a CUDA graph, because launching its kernels one by one takes longer than
they run, and multiplies in TF32: its rounding is far below the noise of a batch of 32, and a bfloat16 state is exact in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.prompts import random_source
from arithscope.utils.progress import Advance
from arithscope.utils.threads import thread_pool

LEARNING_RATE, BATCH, EPOCHS = 3e-4, 32, 20
STEPS_PER_REPORT = 64

States = Float[Tensor, "layers rows width"]
Rows = Int[Tensor, " rows"]


@dataclass(frozen=True)
class Examples:
    """Residual stream at one position after some layers, and the answers to predict.

    Prompts that agree up to the position share their state (at op1 only the first operand has been read), so states are kept
    once and `of_prompt` maps prompts to them.
    """

    states: Float[Tensor, "layers distinct width"]
    of_prompt: Int[Tensor, " prompts"]
    answer: Int[Tensor, " prompts"]

    def __len__(self) -> int:
        return len(self.answer)

    def __getitem__(self, rows: Rows) -> tuple[States, Rows]:
        return self.states[:, self.of_prompt[rows]].float(), self.answer[rows]


@dataclass(frozen=True)
class Probes:
    matrix: Float[Tensor, "layers width answers"]
    bias: Float[Tensor, "layers 1 answers"]

    def logits(self, states: States) -> Float[Tensor, "layers rows answers"]:
        return torch.baddbmm(self.bias, states, self.matrix)

    def correct(self, examples: Examples, rows: Rows) -> Bool[Tensor, "layers rows"]:
        """Whether each probe classifies each of these examples correctly."""
        parts = []
        for chunk in rows.to(examples.answer.device).split(4096):
            states, answer = examples[chunk]
            parts.append(self.logits(states).argmax(-1) == answer)
        return torch.cat(parts, dim=1)


def initial_probes(layers: Sequence[int], width: int, answers: int, seed: int, name: str) -> Probes:
    """Weights as PyTorch initialises a linear layer, uniform in ± 1/√width. Each layer has its own random source."""
    bound = width**-0.5

    def one_layer(layer: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        source = random_source(seed, "probe start", name, layer)
        return source.uniform(-bound, bound, (width, answers)), source.uniform(-bound, bound, (1, answers))

    with thread_pool() as pool:
        parts = zip(*pool.map(one_layer, layers), strict=True)
        return Probes(*(torch.from_numpy(np.stack(x).astype(np.float32)) for x in parts))


def training_steps(examples: int) -> int:
    return EPOCHS * -(-examples // BATCH)


def train(start: Probes, examples: Examples, training: int, seed: int, name: str, advance: Advance) -> Probes:
    """Fit all probes to the first `training` examples with Adam; their order depends on the epoch only, not on the layers."""
    device = examples.states.device
    probes = Probes(start.matrix.to(device, copy=True), start.bias.to(device, copy=True))
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.Adam((probes.matrix, probes.bias), LEARNING_RATE, fused=True, capturable=on_gpu)
    orders = _orders(training, seed, name).to(device)
    number = torch.zeros(1, dtype=torch.long, device=device)
    each = torch.arange(BATCH, device=device)

    def step() -> None:
        order = orders.index_select(0, number)[0]
        states, answer = examples[order.clamp(min=0)]
        # The gradient of the mean cross-entropy in closed form: probabilities, minus 1 at the answer.
        slope = probes.logits(states).softmax(-1)
        slope[:, each, answer] -= 1
        slope *= ((order >= 0) / (order >= 0).sum())[:, None]
        probes.matrix.grad, probes.bias.grad = states.mT @ slope, slope.sum(1, keepdim=True)
        optimizer.step()
        number.add_(1)

    def reset() -> None:
        """Undo all steps taken so far."""
        probes.matrix.copy_(start.matrix)
        probes.bias.copy_(start.bias)
        for x in [number, *(x for state in optimizer.state.values() for x in state.values())]:
            x.zero_()

    take_step = _recorded(step, reset, device) if on_gpu else step
    for i in range(len(orders)):
        take_step()
        if (i + 1) % STEPS_PER_REPORT == 0 or i + 1 == len(orders):
            if on_gpu:
                torch.cuda.synchronize(device)  # report steps that are done, not only launched
            advance((i % STEPS_PER_REPORT + 1) * len(probes.matrix))
    return probes


def _recorded(step: Callable[[], None], reset: Callable[[], None], device: torch.device) -> Callable[[], None]:
    graph, precision = torch.cuda.CUDAGraph(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        step()  # allocates what cannot be allocated while a graph is recorded
        reset()
        with torch.cuda.device(device):  # a graph belongs to the current device, by default the first
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                step()
    finally:
        torch.set_float32_matmul_precision(precision)
    return graph.replay


def _orders(training: int, seed: int, name: str) -> Int[Tensor, "steps rows"]:
    """The examples of each step of all epochs; −1 fills up the last step of an epoch."""
    orders = np.full((EPOCHS, -(-training // BATCH) * BATCH), -1)
    for epoch in range(EPOCHS):
        orders[epoch, :training] = random_source(seed, "probe order", name, epoch).permutation(training)
    return torch.from_numpy(orders.reshape(-1, BATCH))

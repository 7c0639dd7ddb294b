"""Probes whose weights stay on the chip. The kernel itself runs on GPUs only; what it is given is checked everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from arithscope.experiments.common import linear_probes
from arithscope.experiments.common.linear_probes import Examples, initial, steps, train
from arithscope.experiments.probe_kernel import COLUMNS, STEPS_AT_A_TIME, kernel_for

CUDA = torch.device("cuda", 0)


def some_examples(layers: int, width: int, answers: int, prompts: int, device: str) -> Examples:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(layers, prompts // 2, width, generator=generator).to(device, torch.bfloat16)
    of_prompt, answer = (torch.randint(0, n, (prompts,), generator=generator) for n in (prompts // 2, answers))
    return Examples(states, of_prompt.to(device), answer.to(device))


def trained(examples: Examples, answers: int, training: int) -> tuple[linear_probes.Probes, int]:
    done: list[int] = []
    layers, _, width = examples.states.shape
    found = train(initial(range(layers), width, answers, 0, "last"), examples, training, 0, "last", done.append)
    return found, sum(done)


def plain_steps(
    kernel: object,
    states: Tensor,
    rows: Tensor,
    answers: Tensor,
    rates: Tensor,
    weights: Tensor,
    advance: Callable[[int], None],
) -> Tensor:
    """What the kernel does, by autograd and the formulas of Adam."""
    weights, first, second = weights.clone(), torch.zeros_like(weights), torch.zeros_like(weights)
    for some, right, (rate, scale) in zip(rows, answers, rates.tolist(), strict=True):
        weights.requires_grad_()
        x, y = states[some[right >= 0].long()].float(), right[right >= 0].long()
        loss = torch.nn.functional.cross_entropy(x @ weights[:-1] + weights[-1], y)
        (slope,) = torch.autograd.grad(loss, weights)
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        weights = weights.detach() - rate * first / (second.sqrt() * scale + 1e-8)
        advance(1)
    return weights


def test_what_the_kernel_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the steps that it should take in its place, probes come out as from PyTorch's Adam; the last batch is not full."""
    examples = some_examples(2, 16, 5, 60, "cpu")
    expected, _ = trained(examples, 5, 45)
    stand_in: Any = object()
    monkeypatch.setattr(linear_probes, "kernel_for", lambda *given: stand_in)
    monkeypatch.setattr(linear_probes, "train_one", plain_steps)
    found, done = trained(examples, 5, 45)
    assert done == 2 * steps(45)
    assert torch.allclose(found.matrix, expected.matrix, atol=1e-5)
    assert torch.allclose(found.bias, expected.bias, atol=1e-5)


def test_no_kernel_without_a_gpu() -> None:
    assert kernel_for(torch.zeros(1, 4, 128, dtype=torch.bfloat16), 10) is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("width", "answers", "training"),
    [
        (4096, 1000, 700),
        (4096, 531, 321),
        (3584, 1000, 200),  # warps with fewer rows than others
        (1152, COLUMNS - 1, 33),  # one cluster of blocks, not full, and a batch of one
        (128, 100, 20),
    ],
)
def test_on_the_chip_as_in_memory(monkeypatch: pytest.MonkeyPatch, width: int, answers: int, training: int) -> None:
    examples = some_examples(2, width, answers, 1000, "cuda")
    assert kernel_for(examples.states, answers) is not None
    found, done = trained(examples, answers, training)
    assert done == 2 * steps(training)
    again, _ = trained(examples, answers, training)
    assert torch.equal(found.matrix, again.matrix)
    monkeypatch.setattr(linear_probes, "kernel_for", lambda *given: None)
    expected, _ = trained(examples, answers, training)
    difference = (found.matrix - expected.matrix).abs()
    # An entry whose slopes are next to nothing moves by their sign, which is noise.
    assert difference.mean() < 1e-6
    assert (difference > 1e-4).float().mean() < 1e-4
    assert torch.allclose(found.bias, expected.bias, atol=1e-5)


@pytest.mark.gpu
def test_in_several_launches() -> None:
    """Weights and moments are handed on from launch to launch."""
    examples = some_examples(1, 256, 20, 3000, "cuda")
    found, done = trained(examples, 20, 2400)
    assert done == steps(2400) > STEPS_AT_A_TIME
    states = some_examples(1, 256, 20, 3000, "cpu")
    expected, _ = trained(states, 20, 2400)
    assert (found.matrix.cpu() - expected.matrix).abs().mean() < 1e-5


@pytest.mark.gpu
def test_what_has_no_room() -> None:
    def kernel(width: int, answers: int, dtype: torch.dtype = torch.bfloat16) -> object:
        return kernel_for(torch.zeros(1, 4, width, dtype=dtype, device=CUDA), answers)

    assert kernel(4096, 1000) is not None
    assert kernel(8192, 1000) is None
    assert kernel(4096, 5000) is None
    assert kernel(4096, 1000, torch.float32) is None
    assert kernel(100, 1000) is None

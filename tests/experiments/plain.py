"""The experiments once more, slow and obvious: plain hooks, one prompt and one component at a time, the whole model each
time. Nothing here uses arithscope's edits, replay, sweeps or measures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arithscope.experiments.accuracy import Accuracy, accuracy
from arithscope.prompts import Prompts, legal_prompts
from arithscope.subject.subject import Subject

Change = tuple[Any, int, slice | list[int], Tensor]  # module, position, entries of its input, what they become


def pretended(subject: Subject, operators: str, max_operand: int) -> Accuracy:
    """The accuracy of a random model, but with every prompt counted as correct, so that there is something to study."""
    found = accuracy(subject, legal_prompts(operators, max_operand, subject.limit))
    return Accuracy(found.prompts.assign(correct=True), found.table)


def heads_module(subject: Subject, layer: int) -> Any:
    return subject.layers[layer].get_submodule(subject.architecture.attention_out)


def mlp_module(subject: Subject, layer: int) -> Any:
    return subject.layers[layer].get_submodule(subject.architecture.mlp_down)


def head_entries(subject: Subject, head: int) -> slice:
    width = subject.sizes.head_dim
    return slice(head * width, (head + 1) * width)


@torch.no_grad()
def activation(subject: Subject, prompt: Prompts, module: Any) -> Tensor:
    """The input of a module, [positions, entries], for one prompt."""
    seen = []
    handle = module.register_forward_pre_hook(lambda m, args: seen.append(args[0].clone()))
    subject.model(input_ids=subject.encode(prompt))
    handle.remove()
    return seen[0][0]


@torch.no_grad()
def logits(subject: Subject, prompt: Prompts, changes: Sequence[Change] = ()) -> Tensor:
    """The logits behind one prompt, with changes in force, in float64."""

    def hook(position: int, entries: slice | list[int], value: Tensor) -> Any:
        def change(module: Any, args: Any) -> Any:
            x = args[0].clone()
            x[0, position, entries] = value
            return (x, *args[1:])

        return change

    with ExitStack() as stack:
        for module, position, entries, value in changes:
            handle = module.register_forward_pre_hook(hook(position, entries, value))
            stack.callback(handle.remove)
        return subject.model(input_ids=subject.encode(prompt)).logits[0, -1].double()


def silenced(subject: Subject, neurons: Sequence[tuple[int, int]], positions: Sequence[int]) -> list[Change]:
    """Changes that set neurons (layer, neuron) to zero at some positions."""
    return [
        (mlp_module(subject, i), p, [n for layer, n in neurons if layer == i], torch.zeros(1))
        for i in sorted({layer for layer, _ in neurons})
        for p in positions
    ]


def effect(before: Tensor, after: Tensor, answer: int, other: int) -> float:
    p, q = before.softmax(-1), after.softmax(-1)
    return float(0.5 * ((q[other] - p[other]) / p[other] + (p[answer] - q[answer]) / q[answer]))


def log_ratio(before: Tensor, after: Tensor, answer: int, other: int) -> float:
    p, q = before.softmax(-1), after.softmax(-1)
    return float(0.5 * (torch.log(q[other] / p[other]) + torch.log(p[answer] / q[answer])))


def patched_effects(
    subject: Subject, prompts: Prompts, others: Prompts, module: Any, position: int, entries: slice
) -> tuple[list[float], list[float]]:
    """The effect, by probability and as log-ratio, of patching some entries at a position, prompt by prompt."""
    found = []
    for i in range(len(prompts)):
        prompt, other = prompts[[i]], others[[i]]
        value = activation(subject, other, module)[position, entries]
        both = logits(subject, prompt), logits(subject, prompt, [(module, position, entries, value)])
        answers = int(subject.answers(prompt)), int(subject.answers(other))
        found.append((effect(*both, *answers), log_ratio(*both, *answers)))
    return [e for e, _ in found], [r for _, r in found]


def normalized_logit(z: Tensor, answer: int) -> float:
    z = z - z.mean()
    return float(z[answer] / z.max())


def mean_ablation(
    subject: Subject,
    means: dict[Any, Tensor],
    kept: set[tuple[int, int]],
    kept_neurons: dict[int, set[int]],
    neurons_at: Sequence[int] | None = None,
) -> list[Change]:
    """Everything but the kept heads (layer, head) and, in the layers named, the kept neurons is set to its mean: heads at
    all positions, neurons at those given (None: all)."""
    changes: list[Change] = []
    for layer in range(subject.sizes.layers):
        for position in range(subject.encoder.length):
            module = heads_module(subject, layer)
            for head in range(subject.sizes.heads):
                if (layer, head) not in kept:
                    entries = head_entries(subject, head)
                    changes.append((module, position, entries, means[module][position, entries]))
            module = mlp_module(subject, layer)
            ablated = layer in kept_neurons and (neurons_at is None or position in neurons_at)
            for neuron in range(subject.sizes.neurons) if ablated else ():
                if neuron not in kept_neurons[layer]:
                    entries = slice(neuron, neuron + 1)
                    changes.append((module, position, entries, means[module][position, entries]))
    return changes


def means(subject: Subject, prompts: Prompts) -> dict[Any, Tensor]:
    """The mean input of every attention output and MLP down projection, [positions, entries], over prompts."""
    modules = [f(subject, layer) for layer in range(subject.sizes.layers) for f in (heads_module, mlp_module)]
    totals: dict[Any, Any] = dict.fromkeys(modules, 0.0)
    for i in range(len(prompts)):
        for module in modules:
            totals[module] = totals[module] + activation(subject, prompts[[i]], module).double()
    return {module: (total / len(prompts)).float() for module, total in totals.items()}


def measures(
    subject: Subject,
    prompts: Prompts,
    means: dict[Any, Tensor],
    kept: set[tuple[int, int]],
    kept_neurons: dict[int, set[int]] | None = None,
    neurons_at: Sequence[int] | None = None,
) -> dict[str, float]:
    """Faithfulness (Eq. 2), accuracy and mean probability of the answer of a circuit, prompt by prompt."""
    nothing = mean_ablation(subject, means, set(), {layer: set() for layer in range(subject.sizes.layers)})
    circuit = mean_ablation(subject, means, kept, kept_neurons or {}, neurons_at)
    faithful, right, probability = [], [], []
    for i in range(len(prompts)):
        prompt = prompts[[i]]
        answer = int(subject.answers(prompt))
        empty, part, whole = (logits(subject, prompt, changes) for changes in (nothing, circuit, []))
        right.append(int(part.argmax()) == answer)
        probability.append(float(part.softmax(-1)[answer]))
        nl = [normalized_logit(z, answer) for z in (empty, part, whole)]
        if abs(nl[2] - nl[0]) >= 1e-3:
            faithful.append((nl[1] - nl[0]) / (nl[2] - nl[0]))
    return {
        "faithfulness": float(np.mean(faithful)),
        "accuracy": float(np.mean(right)),
        "p_answer": float(np.mean(probability)),
    }

"""The experiments again, slow and obvious: plain hooks, one prompt and one component at a time, a full pass each time.
Nothing here uses arithscope's edits, replay, sweeps or measures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arithscope.experiments.accuracy import Accuracy, measure_accuracy
from arithscope.models.model import Model
from arithscope.prompts import Prompts, legal_prompts

Change = tuple[Any, int, slice | list[int], Tensor]  # module, position, entries of its input, what they become


def all_correct(model: Model, operators: str, max_operand: int) -> Accuracy:
    """The accuracy of a random model with every prompt counted as correct, so that there is something to study."""
    found = measure_accuracy(model, legal_prompts(operators, max_operand, model.limit))
    return replace(found, prompts=found.prompts.assign(correct=True, whole=True))


def heads_module(model: Model, layer: int) -> Any:
    return model.layers[layer].get_submodule(model.architecture.attention_out)


def mlp_module(model: Model, layer: int) -> Any:
    return model.layers[layer].get_submodule(model.architecture.mlp_down)


def head_entries(model: Model, head: int) -> slice:
    width = model.sizes.head_dim
    return slice(head * width, (head + 1) * width)


@torch.no_grad()
def activation(model: Model, prompt: Prompts, module: Any) -> Tensor:
    """The input of a module, [positions, entries], for one prompt."""
    seen = []
    handle = module.register_forward_pre_hook(lambda m, args: seen.append(args[0].clone()))
    model.hf_model(input_ids=model.encode(prompt))
    handle.remove()
    return seen[0][0]


@torch.no_grad()
def logits(model: Model, prompt: Prompts, changes: Sequence[Change] = ()) -> Tensor:
    """The logits after one prompt, with the changes applied, in float64."""

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
        return model.hf_model(input_ids=model.encode(prompt)).logits[0, -1].double()


def ablated(model: Model, neurons: Sequence[tuple[int, int]], positions: Sequence[int]) -> list[Change]:
    """Changes that set neurons (layer, neuron) to zero at some positions."""
    return [
        (mlp_module(model, i), p, [n for layer, n in neurons if layer == i], torch.zeros(1))
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
    model: Model, prompts: Prompts, others: Prompts, module: Any, position: int, entries: slice
) -> tuple[list[float], list[float]]:
    """The effect on probability, and as log-ratio, of patching some entries at a position, for each prompt."""
    found = []
    for i in range(len(prompts)):
        prompt, other = prompts[[i]], others[[i]]
        value = activation(model, other, module)[position, entries]
        both = logits(model, prompt), logits(model, prompt, [(module, position, entries, value)])
        answers = int(model.answers(prompt)), int(model.answers(other))
        found.append((effect(*both, *answers), log_ratio(*both, *answers)))
    return [e for e, _ in found], [r for _, r in found]


def normalized_logit(z: Tensor, answer: int) -> float:
    z = z - z.mean()
    return float(z[answer] / z.max())


def mean_ablation(
    model: Model,
    means: dict[Any, Tensor],
    kept: set[tuple[int, int]],
    kept_neurons: dict[int, set[int]],
    neurons_at: Sequence[int] | dict[int, Sequence[int] | None] | None = None,
) -> list[Change]:
    """Changes that mean-ablate all heads except those kept (layer, head), and in the layers of `kept_neurons` other neurons:
    heads at all positions, neurons at those given, for all layers or by layer (None: all)."""
    changes: list[Change] = []
    for layer in range(model.sizes.layers):
        for position in range(model.encoder.length):
            module = heads_module(model, layer)
            for head in range(model.sizes.heads):
                if (layer, head) not in kept:
                    entries = head_entries(model, head)
                    changes.append((module, position, entries, means[module][position, entries]))
            module = mlp_module(model, layer)
            at = neurons_at.get(layer) if isinstance(neurons_at, dict) else neurons_at
            ablated = layer in kept_neurons and (at is None or position in at)
            for neuron in range(model.sizes.neurons) if ablated else ():
                if neuron not in kept_neurons[layer]:
                    entries = slice(neuron, neuron + 1)
                    changes.append((module, position, entries, means[module][position, entries]))
    return changes


def means(model: Model, prompts: Prompts) -> dict[Any, Tensor]:
    """The mean input of every attention output and MLP down projection, [positions, entries], over prompts."""
    modules = [f(model, layer) for layer in range(model.sizes.layers) for f in (heads_module, mlp_module)]
    totals: dict[Any, Any] = dict.fromkeys(modules, 0.0)
    for i in range(len(prompts)):
        for module in modules:
            totals[module] = totals[module] + activation(model, prompts[[i]], module).double()
    return {module: (total / len(prompts)).float() for module, total in totals.items()}


def measures(
    model: Model,
    prompts: Prompts,
    means: dict[Any, Tensor],
    kept: set[tuple[int, int]],
    kept_neurons: dict[int, set[int]] | None = None,
    neurons_at: Sequence[int] | dict[int, Sequence[int] | None] | None = None,
) -> dict[str, float]:
    """Faithfulness (Eq. 2), accuracy and mean probability of the answer of a circuit, prompt by prompt."""
    nothing = mean_ablation(model, means, set(), {layer: set() for layer in range(model.sizes.layers)})
    circuit = mean_ablation(model, means, kept, kept_neurons or {}, neurons_at)
    faithful, right, probability = [], [], []
    for i in range(len(prompts)):
        prompt = prompts[[i]]
        answer = int(model.answers(prompt))
        empty, part, whole = (logits(model, prompt, changes) for changes in (nothing, circuit, []))
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

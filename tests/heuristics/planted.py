"""Activation maps with known rules: noise, real maps with permuted prompts, and noise with a planted rule."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from arithscope.experiments.patterns import neuron_activations
from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import Identical, MultiResult, Rule
from arithscope.heuristics.neuron_matching import NeuronBatch, NeuronMatches, calibrated_matches
from arithscope.models.load import LoadOptions, load
from arithscope.models.model import Model
from arithscope.prompts import Prompts, operand_grid

LIMIT = 1000
FEWEST = 30  # prompts of a planted heuristic


def classified(neurons: NeuronBatch, sets: Catalogue, draws: int) -> NeuronMatches:
    return calibrated_matches(neurons, sets, draws, 0, [f"n{i}" for i in range(len(neurons))], lambda n: None)


def shares(found: NeuronMatches, n: int) -> tuple[float, float]:
    """Shares of neurons with a raw and with a calibrated match."""
    raw, calibrated = found.matches[found.matches.sign == 1], found.matches[found.matches.calibrated]
    return raw.row.nunique() / n, calibrated.row.nunique() / n


@cache
def _model() -> Model:
    return load("tiny-llama", options=LoadOptions(device="cpu"))


@cache
def _upper_neurons() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Layers and numbers of the neurons of tiny-llama's upper layers, shuffled."""
    sizes = _model().sizes
    layers, neurons = np.indices((sizes.layers, sizes.neurons))[:, 2:].reshape(2, -1)
    order = np.random.default_rng(0).permutation(len(layers))
    return layers[order], neurons[order]


@cache
def real_value_vectors() -> NDArray[np.float32]:
    """Their value vectors through the logit lens, [neurons, numbers]."""
    model, (layers, neurons) = _model(), _upper_neurons()
    with torch.no_grad():
        lens = torch.stack([model.logit_lens(model.value_vectors(layer)) for layer in range(model.sizes.layers)])
    logits: NDArray[np.float32] = lens[layers, neurons][:, model.encoder.answer_tokens].numpy()
    return logits


def noise(
    n: int, max_operand: int, logits: NDArray[np.float32] | None, gated: bool = False, seed: int = 0
) -> NeuronBatch:
    """Random activations, with the given value vectors or constant ones."""
    random = np.random.default_rng(seed)
    activations = random.standard_normal((n, max_operand + 1, max_operand + 1), dtype=np.float32).astype(np.float16)
    return NeuronBatch(activations, np.ones((n, LIMIT), dtype=np.float32) if logits is None else logits[:n], gated)


def permuted_maps(n: int, operator: str, max_operand: int, gated: bool) -> NeuronBatch:
    """Real activation maps and value vectors; the prompts of each map are permuted."""
    random, (layers, neurons) = np.random.default_rng(0), _upper_neurons()
    grid = operand_grid(operator, max_operand)
    maps = neuron_activations(_model(), grid, layers[:n], neurons[:n], advance=lambda done: None)
    maps = random.permuted(maps, axis=1).reshape(n, max_operand + 1, -1)
    return NeuronBatch(maps, real_value_vectors()[:n], gated)


def candidates(sets: Catalogue, of_each: int, random: np.random.Generator) -> list[Rule]:
    """Random heuristics of each kind and number with enough prompts, including multi-result ones."""
    enough = [
        h
        for group in sets.groups
        for h, k in zip(group.heuristics, group.sizes.tolist(), strict=True)
        if FEWEST <= k <= len(sets) / 2
    ]
    groups: dict[tuple[str, str], list[Rule]] = {}
    for h in enough:
        groups.setdefault((h.kind, h.on), []).append(h)
    chosen = [group[i] for group in groups.values() for i in random.integers(0, len(group), of_each)]
    if sets.operator == "/":
        answers, sizes = np.unique(sets.prompts.answer, return_counts=True)
        while sum(isinstance(h, MultiResult) for h in chosen) < of_each:
            picks = random.choice(len(answers), random.integers(2, 5), replace=False)
            # A result with few prompts would be left out of the smallest set that accounts for 95 %.
            if FEWEST <= sizes[picks].sum() <= len(sets) / 2 and sizes[picks].min() >= 0.1 * sizes[picks].sum():
                chosen.append(MultiResult(tuple(answers[picks].tolist())))
    return chosen


def planted(sets: Catalogue, heuristics: list[Rule], max_operand: int, strength: float, seed: int = 0) -> NeuronBatch:
    """Unit noise, raised by `strength` where a heuristic holds; for a direct one the value vector too, on its results."""
    random = np.random.default_rng(seed)
    everything: Prompts = operand_grid(sets.operator, max_operand)
    size = max_operand + 1
    activations = np.empty((len(heuristics), size, size), dtype=np.float16)
    logits = random.standard_normal((len(heuristics), LIMIT), dtype=np.float32)
    for i, h in enumerate(heuristics):
        field = strength * h.holds(everything) + random.standard_normal(len(everything))
        activations[i] = field.reshape(size, size)
        if h.direct and not isinstance(h, Identical):
            logits[i] += strength * h.admits(np.arange(LIMIT))
    return NeuronBatch(activations, logits)


def recall(
    sets: Catalogue, max_operand: int, strength: float, of_each: int, draws: int, seed: int = 0
) -> dict[str, float]:
    """Share of planted heuristics with a calibrated match, among as many noise neurons: of all, and by kind."""
    heuristics = candidates(sets, of_each, np.random.default_rng(seed))
    signal = planted(sets, heuristics, max_operand, strength, seed)
    other = noise(len(heuristics), max_operand, real_value_vectors(), seed=seed + 1)
    activations, logits = (np.concatenate(pair) for pair in zip(*map(_arrays, (signal, other)), strict=True))
    together = NeuronBatch(activations, logits, gated=True)  # harder: twice as many indirect heuristics are tried
    matches = classified(together, sets, draws).matches
    matches = matches[matches.calibrated & (matches.sign == 1)]
    found = set(matches[["row", "heuristic"]].itertuples(index=False, name=None))
    hits = [(i, str(h)) in found for i, h in enumerate(heuristics)]
    by_kind: dict[str, list[bool]] = {}
    for h, hit in zip(heuristics, hits, strict=True):
        by_kind.setdefault(f"{h.kind} of {h.on}", []).append(hit)
    return {"all": float(np.mean(hits)), **{kind: float(np.mean(x)) for kind, x in by_kind.items()}}


def _arrays(neurons: NeuronBatch) -> tuple[NDArray[np.float16], NDArray[np.float32]]:
    return neurons.activations, neurons.logits

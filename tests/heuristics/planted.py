"""Patterns with a known truth: noise, and noise with a rule in it."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.classification import Classification, NeuronBatch, classify
from arithscope.heuristics.kinds import Heuristic, Identical, MultiResult
from arithscope.models.load import LoadOptions, load
from arithscope.prompts import Prompts, operand_grid

LIMIT = 1000
FEWEST = 30  # prompts of a planted heuristic


def classified(neurons: NeuronBatch, sets: Catalogue, draws: int) -> Classification:
    return classify(neurons, sets, draws, 0, [f"n{i}" for i in range(len(neurons))], lambda n: None)


def shares(found: Classification, n: int) -> tuple[float, float]:
    """Of neurons classified by the raw score, and after calibration."""
    return found.matches.row.nunique() / n, found.matches[found.matches.calibrated].row.nunique() / n


@cache
def real_value_vectors() -> NDArray[np.float32]:
    """Logits of the numbers, [neurons, numbers], of the upper layers of tiny-llama, in random order."""
    model = load("tiny-llama", options=LoadOptions(device="cpu"))
    with torch.no_grad():
        lens = [model.logit_lens(model.value_vectors(layer)) for layer in range(2, model.sizes.layers)]
    logits = torch.cat(lens)[:, model.encoder.answer_tokens].numpy()
    return np.random.default_rng(0).permutation(logits)


def noise(n: int, max_operand: int, logits: NDArray[np.float32] | None, seed: int = 0) -> NeuronBatch:
    """Random activations, with value vectors that favour no number, or with the given ones."""
    random = np.random.default_rng(seed)
    activations = random.standard_normal((n, max_operand + 1, max_operand + 1), dtype=np.float32).astype(np.float16)
    return NeuronBatch(activations, np.ones((n, LIMIT), dtype=np.float32) if logits is None else logits[:n])


def candidates(sets: Catalogue, of_each: int, random: np.random.Generator) -> list[Heuristic]:
    """Some heuristics, with enough prompts, of each kind and about each number, those of several results among them."""
    enough = [
        h
        for side in (sets.indirect, sets.direct)
        for h, k in zip(side.heuristics, side.sizes.tolist(), strict=True)
        if FEWEST <= k <= len(sets) / 2
    ]
    groups: dict[tuple[str, str], list[Heuristic]] = {}
    for h in enough:
        groups.setdefault((h.kind, h.on), []).append(h)
    chosen = [group[i] for group in groups.values() for i in random.integers(0, len(group), of_each)]
    if sets.operator == "/":
        answers, sizes = np.unique(sets.prompts.answer, return_counts=True)
        while sum(isinstance(h, MultiResult) for h in chosen) < of_each:
            some = random.choice(len(answers), random.integers(2, 5), replace=False)
            # Each must have a fair share of the prompts: the smallest set that accounts for 95 % of them leaves out the rest.
            if FEWEST <= sizes[some].sum() <= len(sets) / 2 and sizes[some].min() >= 0.1 * sizes[some].sum():
                chosen.append(MultiResult(tuple(answers[some].tolist())))
    return chosen


def planted(
    sets: Catalogue, heuristics: list[Heuristic], max_operand: int, strength: float, seed: int = 0
) -> NeuronBatch:
    """Noise of deviation 1, raised by `strength` where a heuristic holds. Of a direct heuristic the value vector, noise too,
    is raised likewise for the results it is about."""
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
    """The share of planted heuristics that are found, after calibration, beside as much noise: of all, and by kind."""
    heuristics = candidates(sets, of_each, np.random.default_rng(seed))
    signal = planted(sets, heuristics, max_operand, strength, seed)
    other = noise(len(heuristics), max_operand, real_value_vectors(), seed + 1)
    together = NeuronBatch(*(np.concatenate(pair) for pair in zip(*map(_arrays, (signal, other)), strict=True)))
    matches = classified(together, sets, draws).matches
    found = set(matches[matches.calibrated][["row", "heuristic"]].itertuples(index=False, name=None))
    hits = [(i, str(h)) in found for i, h in enumerate(heuristics)]
    by_kind: dict[str, list[bool]] = {}
    for h, hit in zip(heuristics, hits, strict=True):
        by_kind.setdefault(f"{h.kind} of {h.on}", []).append(hit)
    return {"all": float(np.mean(hits)), **{kind: float(np.mean(x)) for kind, x in by_kind.items()}}


def _arrays(neurons: NeuronBatch) -> tuple[NDArray[np.float16], NDArray[np.float32]]:
    return neurons.activations, neurons.logits

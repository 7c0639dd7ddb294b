"""The bag of heuristics: which top neurons implement which rule, and so have something to say about which prompt.

A prompt is associated with a heuristic that holds for it, and with the neurons that match such a heuristic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.classify import Classification
from arithscope.heuristics.kinds import Bools, Heuristic, Ints, parse
from arithscope.models.hooks import Edit, edit
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts

NO_RANK = np.iinfo(np.int32).max  # of a neuron that is no candidate
LAST = "last"
POSITIONS = (LAST, "all")  # where neurons are silenced


@dataclass(frozen=True, eq=False)
class Association:
    """The top neurons of an operator, and every match of one of them with a heuristic, in arrays.

    layers, neurons      of each top neuron, layer by layer
    heuristics           that some neuron matches
    row, heuristic       of each match the top neuron and the heuristic, sorted by neuron
    score                of each match
    """

    operator: str
    layers: Ints
    neurons: Ints
    heuristics: list[Heuristic]
    row: Ints
    heuristic: Ints
    score: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.layers)

    def holds(self, prompts: Prompts) -> Bool[NDArray[Any], "heuristics prompts"]:
        """Which prompts are associated with which heuristic."""
        held = [h.holds(prompts) for h in self.heuristics]
        return np.stack(held) if held else np.zeros((0, len(prompts)), dtype=np.bool_)

    def best_scores(self, prompts: Prompts) -> Float[NDArray[Any], "rows prompts"]:
        """Of each neuron the best score among its heuristics that hold for the prompt; 0 where there is none."""
        found = np.zeros((len(self), len(prompts)))
        if len(self.row):
            held = self.holds(prompts)
            first = np.flatnonzero(np.diff(self.row, prepend=-1))  # of each neuron's matches
            for column in range(len(prompts)):
                scores = np.where(held[self.heuristic, column], self.score, 0.0)
                found[self.row[first], column] = np.maximum.reduceat(scores, first)
        return found

    @cached_property
    def classified(self) -> Bools:
        """Which of the neurons match any heuristic."""
        return np.isin(np.arange(len(self)), self.row)

    def members(self, heuristic: int) -> Bools:
        """Which of the neurons match a heuristic."""
        found = np.zeros(len(self), dtype=np.bool_)
        found[self.row[self.heuristic == heuristic]] = True
        return found

    def of_layers(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Each layer, and the rows of its neurons."""
        for layer in np.unique(self.layers):
            yield int(layer), np.flatnonzero(self.layers == layer)

    def masks(self, chosen: Bool[NDArray[Any], "*sets rows"], size: int) -> dict[int, Bool[Tensor, "*sets neurons"]]:
        """Sets of these neurons as sets of each layer's neurons, of which there are `size`."""
        found = {}
        for layer, rows in self.of_layers():
            found[layer] = torch.zeros(*chosen.shape[:-1], size, dtype=torch.bool)
            found[layer][..., torch.from_numpy(self.neurons[rows])] = torch.from_numpy(chosen[..., rows])
        return found

    def ranks(self, preference: Float[NDArray[Any], "rows columns"]) -> Int[NDArray[Any], "rows columns"]:
        """Within its layer and column, the rank from 0 of each neuron by falling preference, of equal ones the stronger first;
        NaN marks those that are no candidates, whose rank is NO_RANK."""
        found = np.full(preference.shape, NO_RANK, dtype=np.int64)
        for _, rows in self.of_layers():
            order = np.argsort(-preference[rows], axis=0, kind="stable")  # NaN comes last
            np.put_along_axis(found, rows[order], np.arange(len(rows))[:, None], axis=0)
        return np.where(np.isnan(preference), NO_RANK, found)


def association(classify: Classification, operator: str, criterion: str) -> Association:
    """Of an operator, with all matches (raw) or the calibrated ones."""
    top = classify.neurons[classify.neurons.operator == operator]
    matches = classify.matched(operator, criterion)
    place = {neuron: i for i, neuron in enumerate(zip(top.layer, top.neuron, strict=True))}
    row = np.array([place[neuron] for neuron in zip(matches.layer, matches.neuron, strict=True)], dtype=np.int64)
    names, heuristic = np.unique(matches.heuristic.to_numpy(dtype=str), return_inverse=True)
    order = np.argsort(row, kind="stable")
    return Association(
        operator,
        top.layer.to_numpy(dtype=np.int64),
        top.neuron.to_numpy(dtype=np.int64),
        [parse(str(name)) for name in names],
        row[order],
        heuristic[order],
        matches.score.to_numpy(dtype=np.float64)[order],
    )


def as_many(of: Association, members: Bools, candidates: Bools, random: np.random.Generator) -> Bools:
    """Random candidates, in each layer as many as there are members (or all there are)."""
    wish = np.where(candidates, random.random(len(of)), np.nan)
    [rank] = of.ranks(wish[:, None]).T
    counts = np.bincount(of.layers[members], minlength=int(of.layers.max(initial=0)) + 1)
    return rank < counts[of.layers]


def zero_ablation(
    model: Model, of: Association, chosen: Bool[NDArray[Any], "variants prompts rows"], positions: str
) -> list[Edit]:
    """Edits that set the chosen top neurons to zero, in each variant and for each prompt its own (1: for all the same), at the
    last position or at all that depend on the prompt."""
    first = model.positions.last if positions == LAST else model.positions.op1
    at = range(first, model.encoder.length)
    masks = of.masks(chosen, model.sizes.neurons)
    return [edit(model, Site.NEURONS, i, mask, positions=at) for i, mask in masks.items() if mask.any()]

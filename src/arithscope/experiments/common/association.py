"""Which heuristics the top neurons match, and hence which neurons are associated with which prompts.

A prompt is associated with the heuristics that hold for it, and with the neurons that match at least one of them: those that
fire on it according to their matches. (With sign −1 they fire negatively there; only calibrated matches can have it.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.classify import Classification
from arithscope.heuristics.kinds import Bools, Ints, Rule, parse
from arithscope.models.hooks import Edit, edit
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts
from arithscope.stats.intervals import Floats

NO_RANK = np.iinfo(np.int32).max  # rank of a neuron that is not a candidate


@dataclass(frozen=True, eq=False)
class Association:
    """The top neurons of an operator and their matches with heuristics, as arrays."""

    operator: str
    layers: Ints  # of each top neuron; within a layer, by descending effect
    neurons: Ints  # number of each top neuron in its layer
    heuristics: list[Rule]  # those that at least one neuron matches
    row: Ints  # for each match, the index of its neuron; matches are sorted by it
    heuristic: Ints  # for each match, the index of its heuristic
    score: Floats  # of each match

    def __len__(self) -> int:
        return len(self.layers)

    def holds(self, prompts: Prompts) -> Bool[np.ndarray, "heuristics prompts"]:
        """Whether each heuristic holds for each prompt."""
        rules = self.heuristics
        return np.array([rule.holds(prompts) for rule in rules], dtype=np.bool_).reshape(len(rules), len(prompts))

    def best_scores(self, prompts: Prompts) -> Float[np.ndarray, "rows prompts"]:
        """Best score of each neuron among its heuristics that hold for each prompt; 0 if none does."""
        best = np.zeros((len(self), len(prompts)))
        if len(self.row):
            held = self.holds(prompts)
            first = np.flatnonzero(np.diff(self.row, prepend=-1))  # of each neuron's matches
            for column in range(len(prompts)):
                scores = np.where(held[self.heuristic, column], self.score, 0.0)
                best[self.row[first], column] = np.maximum.reduceat(scores, first)
        return best

    @cached_property
    def classified(self) -> Bools:
        """Whether each neuron matches any heuristic."""
        return np.isin(np.arange(len(self)), self.row)

    def members(self, heuristic: int) -> Bools:
        """Whether each neuron matches this heuristic."""
        return np.isin(np.arange(len(self)), self.row[self.heuristic == heuristic])

    def rows_by_layer(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Each layer, with the rows of its neurons."""
        for layer in np.unique(self.layers):
            yield int(layer), np.flatnonzero(self.layers == layer)

    def masks(self, chosen: Bool[np.ndarray, "*sets rows"], size: int) -> dict[int, Bool[Tensor, "*sets neurons"]]:
        """Turn sets of top neurons into masks over the `size` neurons of each layer."""
        masks = {}
        for layer, rows in self.rows_by_layer():
            masks[layer] = torch.zeros(*chosen.shape[:-1], size, dtype=torch.bool)
            masks[layer][..., torch.from_numpy(self.neurons[rows])] = torch.from_numpy(chosen[..., rows])
        return masks

    def ranks(self, preference: Float[np.ndarray, "rows columns"]) -> Int[np.ndarray, "rows columns"]:
        """Rank neurons by descending preference, from 0, within each layer and column; ties by effect. NaN has NO_RANK."""
        ranks = np.full(preference.shape, NO_RANK, dtype=np.int64)
        for _, rows in self.rows_by_layer():
            order = np.argsort(-preference[rows], axis=0, kind="stable")  # NaN comes last
            np.put_along_axis(ranks, rows[order], np.arange(len(rows))[:, None], axis=0)
        return np.where(np.isnan(preference), NO_RANK, ranks)

    def zero_ablation(self, model: Model, chosen: Bools) -> list[Edit]:
        """Edits that set the chosen neurons [variants, prompts, top neurons] to zero at the last position.

        Sizes of 1 broadcast. Layers without a chosen neuron have no edit.
        """
        masks, last = self.masks(chosen, model.sizes.neurons), model.positions.final
        return [edit(model, Site.NEURONS, layer, mask, positions=last) for layer, mask in masks.items() if mask.any()]


def association(classification: Classification, operator: str, criterion: str) -> Association:
    """The top neurons of an operator with their raw matches, or the calibrated ones."""
    top = classification.neurons[classification.neurons.operator == operator]
    matches = classification.matched(operator, criterion)
    # A rule of more than half of the prompts can match with both signs; the better score counts.
    matches = matches.sort_values("score", ascending=False, kind="stable")
    matches = matches.drop_duplicates(["layer", "neuron", "heuristic"]).sort_index()
    row_of = {neuron: i for i, neuron in enumerate(zip(top.layer, top.neuron, strict=True))}
    row = np.array([row_of[neuron] for neuron in zip(matches.layer, matches.neuron, strict=True)], dtype=np.int64)
    names, heuristic = np.unique(matches.heuristic.to_numpy(dtype=str), return_inverse=True)
    order = np.argsort(row, kind="stable")
    layers, neurons = (x.to_numpy(dtype=np.int64) for x in (top.layer, top.neuron))
    score = matches.score.to_numpy(dtype=np.float64)
    heuristics = [parse(str(name)) for name in names]
    return Association(operator, layers, neurons, heuristics, row[order], heuristic[order], score[order])


def matched_random_neurons(bag: Association, members: Bools, candidates: Bools, random: np.random.Generator) -> Bools:
    """Draw random candidates: in each layer as many as there are members, or all if there are fewer."""
    preference = np.where(candidates, random.random(len(bag)), np.nan)
    [rank] = bag.ranks(preference[:, None]).T
    counts = np.bincount(bag.layers[members], minlength=int(bag.layers.max(initial=0)) + 1)
    return rank < counts[bag.layers]

"""Plain passes through the whole model, one for each edit: the slow way that stages take a shorter one instead of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common.ablation import Baseline, Judging, mean_ablation, score_reducer
from arithscope.experiments.common.samples import batches
from arithscope.experiments.localize import effect_reducer
from arithscope.experiments.means import MeanActivations
from arithscope.models.hooks import Edit, capturing, edit, editing
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts
from arithscope.stats.measures import EFFECTS


@dataclass(frozen=True)
class Place:
    """A component (None: all of a layer's at that site) at a position."""

    site: Site
    layer: int
    index: int | None
    position: int


@torch.no_grad()
def edited_logits(model: Model, ids: Tensor, edits: Sequence[Edit] = ()) -> Tensor:
    """[prompts, vocabulary], not rounded to half precision at the end."""
    top = model.sizes.layers - 1
    with (
        editing(model, edits, len(ids)),
        capturing(model, residual=[top], keep=lambda x: x[:, -1].clone()) as seen,
    ):
        model.logits(ids)
    return model.unembed(seen.residual[top])


def patched_effects(model: Model, prompts: Prompts, others: Prompts, places: Sequence[Place]) -> NDArray[np.float64]:
    """[places, prompts, measures] of patching each place with what it is on the counterfactual."""
    found = np.empty((len(places), len(prompts), len(EFFECTS)))
    layers = {site: sorted({p.layer for p in places if p.site is site}) for site in Site}
    for rows, batch in batches(model, prompts, 0):
        ids, other_ids = model.encode(batch), model.encode(others[rows])
        with torch.no_grad(), capturing(model, heads=layers[Site.HEADS], neurons=layers[Site.NEURONS]) as seen:
            model.logits(other_ids)
        reduce = effect_reducer(model, batch, others[rows], lambda n: None)
        before = edited_logits(model, ids)
        for i, p in enumerate(places):
            values = (seen.heads if p.site is Site.HEADS else seen.neurons)[p.layer][:, [p.position]]
            which = None if p.index is None else [p.index]
            change = edit(model, p.site, p.layer, which, positions=p.position, values=values)
            found[i, rows] = reduce(before, edited_logits(model, ids, [change])[None])[0].cpu().numpy()
    return found


@dataclass(frozen=True, eq=False)
class Scored:
    """values: NL, whether it is right, and P(answer), as in `ablated_scores`. unsure: where the answer and the next token are
    so close that another pass may see them the other way round."""

    values: NDArray[np.float64]  # variants, prompts, scores
    unsure: NDArray[np.bool_]  # variants, prompts


def scores(
    model: Model, prompts: Prompts, edits: Sequence[Edit], variants: int, judging: Judging, tie: float
) -> Scored:
    """A pass for each variant."""
    values, unsure = np.empty((variants, len(prompts), 3)), np.empty((variants, len(prompts)), dtype=np.bool_)
    for rows, batch in batches(model, prompts, 0):
        reduce = score_reducer(model, batch, judging, lambda n: None)
        ids, answer, own = model.encode(batch), model.answers(batch), [e.of_prompts(rows) for e in edits]
        for variant in range(variants):
            logits = edited_logits(model, ids, [e.select(torch.tensor([variant])) for e in own])
            values[variant, rows] = reduce(logits, logits[None])[0].cpu().numpy()
            unsure[variant, rows] = _close_call(logits, answer, tie).cpu().numpy()
    return Scored(values, unsure)


def _close_call(logits: Tensor, answer: Tensor, tie: float) -> Tensor:
    first, second = logits.topk(2, dim=-1).values.T
    at_answer = logits.gather(-1, answer[:, None])[:, 0]
    margin = torch.where(at_answer == first, first - second, first - at_answer)
    return margin < tie * (first - logits.mean(-1))


def circuit_scores(
    model: Model,
    means: MeanActivations,
    prompts: Prompts,
    heads: NDArray[np.bool_],
    neurons: dict[int, NDArray[np.bool_]],
    neurons_from: int | None,
    judging: Judging,
    tie: float,
) -> Scored:
    """Of circuits that keep these heads [variants or 1, layers, heads] and, by layer, neurons [variants, neurons]."""
    masks = {layer: torch.from_numpy(keep) for layer, keep in neurons.items()}
    edits = mean_ablation(model, means.on(model.device), torch.from_numpy(heads), masks, neurons_from)
    return scores(model, prompts, edits, max(e.variants for e in edits), judging, tie)


def baseline(model: Model, means: MeanActivations, prompts: Prompts, judging: Judging) -> Baseline:
    """The two ends of the scale."""
    s, keep = model.sizes, np.array([[False], [True]])
    heads = np.broadcast_to(keep[:, :, None], (2, s.layers, s.heads)).copy()
    neurons = dict.fromkeys(range(s.layers), np.repeat(keep, s.neurons, axis=1))
    ends = circuit_scores(model, means, prompts, heads, neurons, None, judging, 0.0)
    return Baseline(ends.values[0, :, 0], ends.values[1, :, 0], judging)

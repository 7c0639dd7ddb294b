"""Attribution methods: estimates of every neuron's effect from a few gradients instead of one pass per neuron.

Patching a neuron changes it by a′ − a, from its activation in the clean run to that in the corrupted run. To first order this
moves a measure of the output by (a′ − a) × slope. The three measures that determine every effect (the landmarks) are estimated
this way, and the effect formulas are applied to the estimates, prompt by prompt.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common.samples import batches
from arithscope.models.hooks import capturing, gradients, linearized
from arithscope.models.memory import graph_bytes
from arithscope.models.model import Model
from arithscope.prompts import Prompts
from arithscope.stats.effects import EFFECTS, effects_between, landmarks
from arithscope.utils.progress import Advance

STEPS = 8  # along the path of integrated gradients

Layers = Sequence[int]
Measures = Callable[[Float[Tensor, "batch vocabulary"]], Float[Tensor, "measures batch"]]
Slopes = dict[int, Float[Tensor, "measures batch neurons"]]  # by layer, at one position


def attribution_patching(
    model: Model,
    ids: Tensor,
    corrupted: Tensor,
    measures: Measures,
    layers: Layers,
    at: int,
    start: Tensor | None = None,
) -> Slopes:
    """Slopes at the clean prompt, or at other embeddings."""
    _, slopes = gradients(model, ids, measures, neurons=layers, embeddings=start)
    return {layer: slope[:, :, at] for layer, slope in slopes.neurons.items()}


def integrated_gradients(
    model: Model, ids: Tensor, corrupted: Tensor, measures: Measures, layers: Layers, at: int
) -> Slopes:
    """Mean slopes along the straight path from the clean prompt's embeddings to the counterfactual's."""
    start, end = model.embed(ids), model.embed(corrupted)
    totals: Slopes = {}
    for step in range(STEPS):
        between = torch.lerp(start, end, (step + 0.5) / STEPS)
        for layer, slope in attribution_patching(model, ids, corrupted, measures, layers, at, between).items():
            totals[layer] = totals.get(layer, 0) + slope / STEPS
    return totals


def relevance_patching(
    model: Model, ids: Tensor, corrupted: Tensor, measures: Measures, layers: Layers, at: int
) -> Slopes:
    """Slopes of the model linearised around the clean prompt (relevance patching, RelP)."""
    with linearized(model):
        return attribution_patching(model, ids, corrupted, measures, layers, at)


ATTRIBUTION_METHODS = {"atp": attribution_patching, "ig": integrated_gradients, "relp": relevance_patching}
# Attribution patching agrees best with exact patching, presumably because one neuron is a small change. Rank correlation with
# exact effects (by probability, mean over operators) on tiny-llama, tiny-pythia and tiny-gptj: atp .96 .95 .95, ig .70 .70 .71,
# relp .64 .70 .78. Of the exact top 5 % of neurons, atp has 98 %, 95 % and 99 % in its top 10 %.
BEST_METHOD = "atp"


def attributed_effects(
    model: Model, prompts: Prompts, counterfactuals: Prompts, layers: Layers, method: str, at: int, *, advance: Advance
) -> NDArray[np.float32]:
    """Unit of work: estimated effects of patching each neuron at one position: [layers, neurons, prompts, measures]."""

    def at_position(x: Tensor) -> Tensor:
        return x[:, at].clone()  # a view would keep all positions in memory

    found = np.empty((len(layers), model.sizes.neurons, len(prompts), len(EFFECTS)), np.float32)
    for rows, batch in batches(model, prompts, 0, graph_bytes(model, measures=3)):
        other = counterfactuals[rows]
        ids, corrupted = model.encode(batch), model.encode(other)
        measures = partial(landmarks, answer=model.answers(batch), counterfactual=model.answers(other))
        slopes = ATTRIBUTION_METHODS[method](model, ids, corrupted, measures, layers, at)
        with torch.no_grad(), capturing(model, neurons=layers, keep=at_position) as corrupted_run:
            model.logits(corrupted)
        with torch.no_grad(), capturing(model, neurons=layers, keep=at_position) as clean_run:
            before = measures(model.logits(ids))
        for i, layer in enumerate(layers):
            change = (corrupted_run.neurons[layer] - clean_run.neurons[layer]).to(before)
            moved = change * slopes[layer].to(before)  # [landmarks, batch, neurons]
            estimates = effects_between(before, before[:, None] + moved.mT)
            found[i][:, rows] = torch.stack([estimates[m] for m in EFFECTS], dim=-1).float().cpu().numpy()
        advance(len(batch))
    return found

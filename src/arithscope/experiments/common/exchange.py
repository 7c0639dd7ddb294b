"""Exchanging the residual stream: what a model answers if one position of one layer holds another prompt's.

This is activation patching of the whole residual stream. With counterfactuals that differ in one thing alone, such as a carry,
it tells where that thing is held: the answer follows the counterfactual exactly where it is.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common.samples import batches
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import Prompts
from arithscope.utils.progress import Advance


@torch.no_grad()
def exchanged_answers(
    model: Model, prompts: Prompts, sources: Prompts, position_name: str, layers: Sequence[int], *, advance: Advance
) -> NDArray[np.int32]:
    """Unit of work: answers with the residual stream after each of some layers, at one position, taken from another prompt.

    Args:
        model: The model, at the answer step of the prompts.
        prompts: The prompts that are answered.
        sources: For each of them, the prompt whose own run the residual stream is taken from.
        position_name: Name of the position.
        layers: Layers after which it is exchanged, one at a time; EMBEDDINGS for the input of layer 0.
        advance: Called with the number of answers, whenever some are known.

    Returns:
        The number that the most likely token denotes, [layers, prompts]; −1 if the stratum has no answer with this token there.
    """
    if len(prompts) != len(sources):
        raise ValueError(f"there are {len(prompts)} prompts, but {len(sources)} sources")
    at = model.positions.named()[position_name]
    answers = np.empty((len(layers), len(prompts)), dtype=np.int32)

    def answer(unedited: Tensor, edited: Tensor) -> Tensor:
        return model.token_numbers[edited.argmax(-1).cpu()]

    kept = 2 * len(layers) * model.sizes.width * model.hf_model.dtype.itemsize  # of the sources, and on the tape
    for rows, batch in batches(model, prompts, at, kept):
        with capturing(model, residual=layers, keep=lambda x: x[:, at].clone()) as source:
            model.logits(model.encode(sources[rows]))
        tape = model.engine.record(model, model.encode(batch), at)
        for i, layer in enumerate(layers):
            answers[i, rows] = model.engine.replay_residual(tape, layer, at, source.residual[layer], answer)[0].numpy()
            advance(len(rows))
    return answers

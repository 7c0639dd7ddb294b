"""The residual stream of prompts at several positions and layers, read in one sweep.

Prompts that agree up to a position have the same state there, as a model sees no later token. Each distinct state is therefore
kept once: at the first token of op1 there are nine, however many prompts there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from arithscope.experiments.common.samples import batches
from arithscope.models.engine.sweep import Rows
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import Ints, Prompts


@dataclass(frozen=True)
class States:
    """Residual stream at one position after some layers: the distinct states, and which of them each prompt has."""

    states: Float[Tensor, "layers distinct width"]
    of_prompt: Ints


def distinct_rows(table: Ints) -> Ints:
    """Numbers the distinct rows of a table from 0, and returns the number of each row; rows without columns are all equal."""
    numbers = np.zeros(len(table), dtype=np.int64)
    for column in table.T:
        numbers = np.unique(numbers * (column.max(initial=0) + 1) + column, return_inverse=True)[1]
    return numbers


@torch.no_grad()
def read_positions(model: Model, prompts: Prompts, positions: Sequence[str], layers: Sequence[int]) -> list[States]:
    """Residual stream of prompts after each of these layers, at each of these named positions.

    For positions from op2 on, all prompts run in one sweep; for those before it, one prompt with each op1 in a full pass.
    """
    ids, at = model.encode(prompts).cpu().numpy(), [model.positions.named()[name] for name in positions]
    of_prompt = [distinct_rows(ids[:, model.positions.op1 : end + 1]) for end in at]
    first = [np.unique(numbers, return_index=True)[1] for numbers in of_prompt]  # the first prompt with each state
    kind = dict(dtype=model.hf_model.dtype, device=model.device)
    found = [torch.empty(len(layers), len(rows), model.sizes.width, **kind) for rows in first]
    early = [i for i, end in enumerate(at) if end < model.positions.op2]
    late = [i for i in range(len(at)) if i not in early]
    for chosen, start in ((early, 0), (late, model.positions.op2)):
        if not chosen:
            continue
        # The first prompt with a state at one position is also the first with its state at every later one.
        run = np.sort(first[max(chosen, key=lambda i: at[i])])
        for rows, residual in _passes(model, prompts[run], layers, [at[i] - start for i in chosen], start):
            for slot, i in enumerate(chosen):
                is_first = np.flatnonzero(np.isin(run[rows], first[i]))
                states = torch.from_numpy(of_prompt[i][run[rows[is_first]]]).to(model.device)
                for j, layer in enumerate(layers):
                    found[i][j, states] = residual[layer][is_first, slot].to(model.device)
    return [States(*parts) for parts in zip(found, of_prompt, strict=True)]


def _passes(
    model: Model, prompts: Prompts, layers: Sequence[int], at: list[int], start: int
) -> Iterator[tuple[Rows, dict[int, Tensor]]]:
    """Row numbers of prompts and, by layer, their residual stream [rows, positions, width] at some positions, which are counted
    from `start`."""
    if start:
        for block in model.engine.sweep(model, prompts, residual=layers, keep=lambda x: x[:, at]):
            yield block.rows, block.activations.residual
        return
    for rows, batch in batches(model, prompts, 0):
        with capturing(model, residual=layers, keep=lambda x: x[:, at]) as activations:
            model.logits(model.encode(batch))
        yield rows, activations.residual

"""The slow engine: each variant is one plain edited forward pass over whole prompts.

No caches, no shared prefixes, no replicas: nothing here is clever, so that `verify` and the tests can hold the fast
engine against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.models.engine.replay import Reduce, number_of_variants
from arithscope.models.engine.sweep import Block, Means, last_position
from arithscope.models.hooks import Edit, capturing, edit, editing
from arithscope.models.memory import component_bytes, rows_that_fit
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts
from arithscope.utils.progress import Advance


@dataclass(frozen=True)
class FullTape:
    """Prompts to be run again from their first token in every replay."""

    model: Model
    ids: Int[Tensor, "batch length"]
    first: int
    edits: Sequence[Edit]
    logits: Float[Tensor, "batch vocabulary"]  # with `edits` in force, not rounded to half precision


class FullPass:
    """An `Engine` that takes no shortcut.

    Args:
        tie: Two logits closer than this share of (largest − mean logit) count as a close call.

    Attributes:
        close_calls: Largest share, over all variants replayed since it was last set to 0, of prompts whose two largest
            logits are a close call: another computation may rank them the other way round.
    """

    def __init__(self, tie: float = 0.0):
        self.tie, self.close_calls = tie, 0.0

    @torch.no_grad()
    def record(
        self,
        model: Model,
        ids: Int[Tensor, "batch length"],
        first: int,
        neurons: Sequence[int] = (),
        edits: Sequence[Edit] = (),
    ) -> FullTape:
        if not 0 <= first < ids.shape[1]:
            raise ValueError(f"position {first} is outside the prompt of {ids.shape[1]} tokens")
        return FullTape(model, ids, first, edits, edited_logits(model, ids, edits))

    @torch.no_grad()
    def replay(self, tape: FullTape, edits: Sequence[Edit], reduce: Reduce, chunk: int | None = None) -> Tensor:
        variants = range(number_of_variants(edits, tape.first))
        return self._reduced(tape, ([e.select(torch.tensor([v])) for e in edits] for v in variants), reduce)

    @torch.no_grad()
    def replay_neurons(
        self,
        tape: FullTape,
        layer: int,
        neurons: Int[Tensor, " variants"],
        values: Float[Tensor, "variants #batch"],
        reduce: Reduce,
        position: int | None = None,
        chunk: int | None = None,
    ) -> Tensor:
        at = tape.ids.shape[1] - 1 if position is None else position
        values = values.expand(len(neurons), len(tape.ids))
        variants = (
            [edit(tape.model, Site.NEURONS, layer, [neuron], positions=at, values=value[:, None, None])]
            for neuron, value in zip(neurons.tolist(), values, strict=True)
        )
        return self._reduced(tape, variants, reduce)

    def _reduced(self, tape: FullTape, variants: Iterator[Sequence[Edit]], reduce: Reduce) -> Tensor:
        results = []
        for edits in variants:
            logits = edited_logits(tape.model, tape.ids, [*edits, *tape.edits])
            largest, second = logits.topk(2, dim=-1).values.T
            close = largest - second < self.tie * (largest - logits.mean(-1))
            self.close_calls = max(self.close_calls, float(close.float().mean()))
            results.append(reduce(tape.logits, logits[None]))
        if not results:
            raise ValueError("there is nothing to replay")
        return torch.cat(results)

    @torch.no_grad()
    def sweep(
        self,
        model: Model,
        prompts: Prompts,
        *,
        heads: Sequence[int] = (),
        neurons: Sequence[int] = (),
        residual: Sequence[int] = (),
        keep: Callable[[Tensor], Tensor] = last_position,
        progress: Advance | None = None,
        rows: int | None = None,
    ) -> Iterator[Block]:
        first = model.positions.op2

        def of_tail(x: Tensor) -> Tensor:
            return keep(x[:, first:])

        for chosen in _batches(model, len(prompts), rows):
            with capturing(model, heads=heads, neurons=neurons, residual=residual, keep=of_tail) as seen:
                logits = model.logits(model.encode(prompts[chosen]))
            yield Block(chosen, logits, seen)
            if progress is not None:
                progress(len(chosen))

    def sweep_neurons(
        self,
        model: Model,
        prompts: Prompts,
        chosen: Mapping[int, Int[Tensor, " chosen"]],
        progress: Advance | None = None,
        rows: int | None = None,
        keep: Callable[[Float[Tensor, "rows chosen"]], Tensor] = lambda x: x,
    ) -> Iterator[tuple[NDArray[np.int64], dict[int, Tensor]]]:
        for block in self.sweep(model, prompts, neurons=list(chosen), progress=progress, rows=rows):
            yield block.rows, {i: keep(x[:, chosen[i].to(x.device)]) for i, x in block.seen.neurons.items()}

    @torch.no_grad()
    def mean_activations(
        self,
        model: Model,
        prompts: Prompts,
        progress: Advance | None = None,
        rows: int | None = None,
        see: Callable[[NDArray[np.int64], Tensor], None] = lambda rows, logits: None,
    ) -> Means:
        layers = range(model.sizes.layers)
        heads, neurons = ([torch.zeros((), dtype=torch.float64) for _ in layers] for _ in range(2))
        for chosen in _batches(model, len(prompts), rows):
            with capturing(model, heads=layers, neurons=layers, keep=lambda x: x.cpu().double().sum(0)) as sums:
                see(chosen, model.logits(model.encode(prompts[chosen])))
            heads = [heads[i] + sums.heads[i] for i in layers]
            neurons = [neurons[i] + sums.neurons[i] for i in layers]
            if progress is not None:
                progress(len(chosen))
        return Means(
            *(torch.stack([x / len(prompts) for x in sums]).float().to(model.device) for sums in (heads, neurons))
        )


def edited_logits(
    model: Model, ids: Int[Tensor, "batch length"], edits: Sequence[Edit]
) -> Float[Tensor, "batch vocabulary"]:
    """Logits at the last position, under edits of one variant; not rounded to half precision at the end."""
    top, logits = model.sizes.layers - 1, []
    for rows in _batches(model, len(ids)):
        with (
            editing(model, [e.of_prompts(rows) for e in edits], len(rows)),
            capturing(model, residual=[top], keep=last_position) as seen,
        ):
            model.logits(ids[rows])
        logits.append(model.unembed(seen.residual[top]))
    return torch.cat(logits)


def _batches(model: Model, prompts: int, rows: int | None = None) -> Iterator[NDArray[np.int64]]:
    """Row numbers of prompts, in batches that fit in memory together with all their activations."""
    length = model.encoder.length
    kept = model.sizes.layers * length * sum(component_bytes(model, site) for site in Site)
    size = rows or rows_that_fit(model, length, length, kept)
    for start in range(0, prompts, size):
        yield np.arange(start, min(start + size, prompts))

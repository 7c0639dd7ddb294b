"""The slow engine: each variant is one plain edited forward pass over whole prompts.

No caches, no shared prefixes, no replicas: it is simple enough for `verify` and the tests to check the fast engine against it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from arithscope.models.engine.interface import Engine
from arithscope.models.engine.replay import Reduce, Tape, number_of_variants
from arithscope.models.engine.sweep import Block, Means, Observer, Rows, ids_of, last_position
from arithscope.models.hooks import (
    EMBEDDINGS,
    Edit,
    Layers,
    attached,
    capturing,
    edit,
    editing,
    layer_input,
    layer_output,
)
from arithscope.models.memory import component_bytes, rows_that_fit
from arithscope.models.model import Ids, Logits, Model, Site
from arithscope.prompts import Prompts
from arithscope.utils.progress import Advance


class FullPass(Engine):
    """An engine that takes no shortcut.

    Args:
        tie: Two logits closer than this share of (largest − mean logit) are a close call.

    Attributes:
        close_calls: Largest share, over all variants replayed since it was last set to 0, of prompts whose two largest
            logits are a close call: another computation may rank them the other way round.
    """

    def __init__(self, tie: float = 0.0):
        self.tie, self.close_calls = tie, 0.0

    @torch.no_grad()
    def record(
        self, model: Model, ids: Ids, first: int, neurons: Layers = (), edits: Sequence[Edit] = (), last: int = 1
    ) -> Tape:
        if not 0 <= first < ids.shape[1]:
            raise ValueError(f"position {first} is outside the prompt of {ids.shape[1]} tokens")
        return Tape(model, ids, first, edited_logits(model, ids, edits, last), edits, last)

    @torch.no_grad()
    def replay(self, tape: Tape, edits: Sequence[Edit], reduce: Reduce, chunk: int | None = None) -> Tensor:
        variants = range(number_of_variants(edits, tape.first))
        return self._reduced_edits(tape, ([e.select(torch.tensor([v])) for e in edits] for v in variants), reduce)

    @torch.no_grad()
    def replay_neurons(
        self,
        tape: Tape,
        layer: int,
        neurons: Int[Tensor, " variants"],
        values: Float[Tensor, "variants #batch"],
        reduce: Reduce,
        position: int | None = None,
        chunk: int | None = None,
    ) -> Tensor:
        at = tape.length - 1 if position is None else position
        variants = (
            [edit(tape.model, Site.NEURONS, layer, [neuron], positions=at, values=value[:, None, None])]
            for neuron, value in zip(neurons.tolist(), values.expand(len(neurons), tape.batch), strict=True)
        )
        return self._reduced_edits(tape, variants, reduce)

    @torch.no_grad()
    def replay_residual(
        self, tape: Tape, layer: int, position: int, values: Float[Tensor, "batch width"], reduce: Reduce
    ) -> Tensor:
        if position < tape.first:
            raise ValueError(f"position {position} lies before position {tape.first}, where the tape begins")
        model = tape.model

        def replaced() -> Iterator[Logits]:
            for rows in _batches(model, tape.batch):
                with _replacing_residual(model, layer, position, values[rows]):
                    yield _batch_logits(model, tape.ids[rows], [e.for_prompts(rows) for e in tape.edits])

        return self._reduced(tape, iter([torch.cat(list(replaced()))]), reduce)

    def _reduced_edits(self, tape: Tape, variants: Iterator[Sequence[Edit]], reduce: Reduce) -> Tensor:
        logits = (edited_logits(tape.model, tape.ids, [*edits, *tape.edits], tape.last) for edits in variants)
        return self._reduced(tape, logits, reduce)

    def _reduced(self, tape: Tape, variants: Iterator[Logits], reduce: Reduce) -> Tensor:
        results = []
        for logits in variants:
            largest, second = logits.topk(2, dim=-1).values.unbind(-1)
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
        heads: Layers = (),
        neurons: Layers = (),
        residual: Layers = (),
        keep: Callable[[Tensor], Tensor] = last_position,
        progress: Advance = lambda n: None,
        rows: int | None = None,
        ids: Int[Tensor, "prompts length"] | None = None,
    ) -> Iterator[Block]:
        def keep_tail(x: Tensor) -> Tensor:
            return keep(x[:, model.positions.op2 :])

        for batch in _batches(model, len(prompts), rows):
            with capturing(model, heads=heads, neurons=neurons, residual=residual, keep=keep_tail) as activations:
                logits = model.logits(ids_of(model, prompts, batch, ids))
            yield Block(batch, logits, activations)
            progress(len(batch))

    def sweep_neurons(
        self,
        model: Model,
        prompts: Prompts,
        chosen: Mapping[int, Int[Tensor, " chosen"]],
        progress: Advance = lambda n: None,
        rows: int | None = None,
        keep: Callable[[Float[Tensor, "rows chosen"]], Tensor] = lambda x: x,
    ) -> Iterator[tuple[Rows, dict[int, Tensor]]]:
        for block in self.sweep(model, prompts, neurons=list(chosen), progress=progress, rows=rows):
            yield block.rows, {i: keep(x[:, chosen[i].to(x.device)]) for i, x in block.activations.neurons.items()}

    @torch.no_grad()
    def mean_activations(
        self,
        model: Model,
        prompts: Prompts,
        progress: Advance = lambda n: None,
        rows: int | None = None,
        observe: Observer = lambda rows, logits: None,
        steps: int = 1,
        ids: Int[Tensor, "prompts length"] | None = None,
    ) -> Means:
        layers = range(model.sizes.layers)
        totals = dict.fromkeys(Site, torch.zeros((), dtype=torch.float64))
        for batch in _batches(model, len(prompts), rows):
            with capturing(model, heads=layers, neurons=layers, keep=lambda x: x.cpu().double().sum(0)) as sums:
                observe(batch, model.logits_at_last(ids_of(model, prompts, batch, ids), steps))
            totals = {site: totals[site] + torch.stack([getattr(sums, site)[i] for i in layers]) for site in Site}
            progress(len(batch))
        return Means(*((total / len(prompts)).float().to(model.device) for total in totals.values()))


def edited_logits(
    model: Model, ids: Ids, edits: Sequence[Edit], last: int = 1
) -> Float[Tensor, "batch *last vocabulary"]:
    """Logits at the last position, or the last ones, under edits of one variant, not rounded to half precision."""
    batches = _batches(model, len(ids))
    return torch.cat([_batch_logits(model, ids[rows], [e.for_prompts(rows) for e in edits], last) for rows in batches])


def _batch_logits(model: Model, ids: Ids, edits: Sequence[Edit], last: int = 1) -> Tensor:
    """`edited_logits` of one batch."""
    top, keep = model.sizes.layers - 1, last_position if last == 1 else lambda x: x[:, -last:].clone()
    with editing(model, edits, len(ids)), capturing(model, residual=[top], keep=keep) as activations:
        model.logits(ids)
    return model.unembed(activations.residual[top])


@contextmanager
def _replacing_residual(
    model: Model, layer: int, position: int, values: Float[Tensor, "batch width"]
) -> Iterator[None]:
    """Set the output of a layer (EMBEDDINGS: the input of layer 0) to values at one position."""

    def replaced(hidden: Tensor) -> Tensor:
        hidden = hidden.clone()
        hidden[:, position] = values.to(hidden)
        return hidden

    def at_first_input(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        hidden = replaced(layer_input(args, kwargs))
        return (
            (args, {**kwargs, "hidden_states": hidden}) if "hidden_states" in kwargs else ((hidden, *args[1:]), kwargs)
        )

    def at_output(module: Any, args: Any, output: Any) -> Any:
        hidden = replaced(layer_output(output))
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    if layer == EMBEDDINGS:
        hook = model.layers[0].register_forward_pre_hook(at_first_input, with_kwargs=True)
    else:
        hook = model.layers[layer].register_forward_hook(at_output)
    with attached([hook]):
        yield


def _batches(model: Model, prompts: int, rows: int | None = None) -> Iterator[Rows]:
    """Row numbers of prompts, in batches that fit in memory with all their activations."""
    length = model.encoder.length
    kept = model.sizes.layers * length * sum(component_bytes(model, site) for site in Site)
    size = rows or rows_that_fit(model, length, length, kept)
    return (np.arange(start, min(start + size, prompts)) for start in range(0, prompts, size))

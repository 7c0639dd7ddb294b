"""The fast engine for very many prompts, such as the whole operand grid: compute each shared prefix once.

The grid repeats everything before op2 (BOS, few-shot prefix, op1, operator) for each second operand. A sweep

1. runs each distinct prefix once and keeps its keys and values, and
2. runs only the tail, from op2 on, for every prompt; on a CPU several passes in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from arithscope.models.engine.prefix_attention import KeysValues
from arithscope.models.engine.replay import prefix_keys_values, tail_logits
from arithscope.models.engine.replicas import num_parallel_passes, parallel_passes
from arithscope.models.hooks import Activations, Layers, capturing
from arithscope.models.memory import cache_bytes, component_bytes, rows_that_fit
from arithscope.models.model import Logits, Model, Site
from arithscope.prompts import Prompts
from arithscope.utils.progress import Advance

Rows = NDArray[np.int64]  # row numbers of prompts
Observer = Callable[[Rows, Logits], None]
A = TypeVar("A")


@dataclass(frozen=True)
class Block:
    """Results for some rows of the swept prompts; blocks come in no particular order."""

    rows: Rows
    logits: Logits
    activations: Activations  # as `keep` returned them


@dataclass(frozen=True)
class Means:
    """Mean activation of every head and neuron at every position, in float32."""

    heads: Float[Tensor, "layers positions heads head_dim"]
    neurons: Float[Tensor, "layers positions neurons"]


def last_position(x: Tensor) -> Tensor:
    return x[:, -1].clone()  # a view would keep the whole tail in memory


@torch.no_grad()
def sweep(
    model: Model,
    prompts: Prompts,
    *,
    heads: Layers = (),
    neurons: Layers = (),
    residual: Layers = (),
    keep: Callable[[Tensor], Tensor] = last_position,
    progress: Advance = lambda n: None,
    rows: int | None = None,
) -> Iterator[Block]:
    """Run every prompt and yield, block by block, its logits and its activations at the given layers.

    Args:
        heads: Layers whose heads are captured.
        neurons: Layers whose neurons are captured.
        residual: Layers whose output is captured.
        keep: What to keep of the activations [rows, positions from op2 on, …]; by default the last position.
        progress: Called with the number of prompts in each finished block.
        rows: Number of prompts in one pass; by default as many as fit in memory.
    """

    def run(model: Model, tail: _Tail) -> Block:
        with capturing(model, heads=heads, neurons=neurons, residual=residual, keep=keep) as activations:
            logits = tail.logits(model)
        return Block(tail.rows, logits, activations)

    n_heads, n_neurons = (component_bytes(model, site) for site in (Site.HEADS, Site.NEURONS))
    kept = len(heads) * n_heads + len(neurons) * n_neurons + len(residual) * model.sizes.width * 4
    for block in _run_tails(model, prompts, rows, kept, run):
        yield block
        progress(len(block.rows))


@torch.no_grad()
def sweep_neurons(
    model: Model,
    prompts: Prompts,
    chosen: Mapping[int, Int[Tensor, " chosen"]],
    progress: Advance = lambda n: None,
    rows: int | None = None,
    keep: Callable[[Float[Tensor, "rows chosen"]], Tensor] = lambda x: x,
) -> Iterator[tuple[Rows, dict[int, Tensor]]]:
    """Run every prompt and yield row numbers and, by layer, what `keep` returns for the chosen neurons' activations at the
    last position. A pass ends where the last of them is captured."""
    layers, highest = list(chosen), max(chosen)

    def run(model: Model, tail: _Tail) -> tuple[Rows, dict[int, Tensor]]:
        with (
            capturing(model, neurons=layers, keep=last_position) as activations,
            _stopping_at(model.module(Site.NEURONS, highest)),
        ):
            tail.logits(model)
        return tail.rows, {i: keep(x.index_select(1, chosen[i].to(x.device))) for i, x in activations.neurons.items()}

    for block in _run_tails(model, prompts, rows, len(layers) * component_bytes(model, Site.NEURONS), run):
        yield block
        progress(len(block[0]))


@torch.no_grad()
def mean_activations(
    model: Model,
    prompts: Prompts,
    progress: Advance = lambda n: None,
    rows: int | None = None,
    observe: Observer = lambda rows, logits: None,
) -> Means:
    """Mean over prompts of all heads and neurons at every position: the values of mean ablation. `observe` gets the rows and
    logits of each block, in any thread."""
    layers, length, first = range(model.sizes.layers), model.encoder.length, model.positions.op2
    totals: dict[Site, dict[int, Tensor]] = {site: {} for site in Site}

    def add(sums: Activations, start: int) -> None:
        """Add sums at the positions from `start` on, in float64."""
        for site in Site:
            for layer, x in getattr(sums, site).items():
                # On the layer's own device where that has float64: copying each block to the CPU would make a GPU wait.
                x = x.cpu() if x.device.type == "mps" else x
                if layer not in totals[site]:
                    totals[site][layer] = torch.zeros(length, *x.shape[1:], dtype=torch.float64, device=x.device)
                totals[site][layer][start : start + len(x)] += x

    def run_prefixes(model: Model, prefixes: _Prefixes) -> tuple[KeysValues, Activations]:
        weights = torch.from_numpy(np.bincount(prefixes.owner, minlength=len(prefixes.ids)))

        def weighted_sum(x: Tensor) -> Tensor:
            return torch.tensordot(weights.to(x.device, torch.float32), x.float(), dims=1)

        with capturing(model, heads=layers, neurons=layers, keep=weighted_sum) as sums:
            return prefix_keys_values(model, prefixes.ids), sums

    def run(model: Model, tail: _Tail) -> tuple[int, Activations]:
        with capturing(model, heads=layers, neurons=layers, keep=lambda x: x.float().sum(0)) as sums:
            observe(tail.rows, tail.logits(model))
        return len(tail.rows), sums

    kept = len(layers) * (length - first) * sum(component_bytes(model, site) for site in Site)
    for n, sums in _run_tails(model, prompts, rows, kept, run, run_prefixes, lambda sums: add(sums, 0)):
        add(sums, first)
        progress(n)
    means = [torch.stack([(totals[s][i] / len(prompts)).float().cpu() for i in layers]) for s in Site]
    return Means(*(x.to(model.device) for x in means))


@dataclass(frozen=True)
class _Prefixes:
    """Some distinct prefixes, and the prompts that start with them."""

    ids: Int[Tensor, "prefixes first"]
    rows: Rows  # prompts, sorted by prefix
    owner: NDArray[np.int64]  # the prefix of each of these prompts, an index into ids

    def split(self, count: int) -> list[_Prefixes]:
        """Split into at most `count` parts."""
        size = -(-len(self.ids) // count)
        edges = np.searchsorted(self.owner, np.arange(0, len(self.ids) + size, size))
        return [
            _Prefixes(ids, self.rows[start:end], self.owner[start:end] - i * size)
            for i, (ids, start, end) in enumerate(zip(self.ids.split(size), edges, edges[1:], strict=False))
        ]


@dataclass(frozen=True)
class _Tail:
    """The tails of some prompts, and the prefixes they continue."""

    rows: Rows
    ids: Int[Tensor, "rows tail"]
    prefixes: KeysValues
    owner: Int[Tensor, " rows"]  # the prefix of each prompt

    def logits(self, model: Model) -> Tensor:
        return tail_logits(model, self.prefixes, self.ids, self.owner)


def _keys_values(model: Model, prefixes: _Prefixes) -> tuple[KeysValues, Activations]:
    return prefix_keys_values(model, prefixes.ids), Activations()


def _run_tails(
    model: Model,
    prompts: Prompts,
    rows: int | None,
    kept: int,
    run: Callable[[Model, _Tail], A],
    run_prefixes: Callable[[Model, _Prefixes], tuple[KeysValues, Activations]] = _keys_values,
    on_prefixes: Callable[[Activations], None] = lambda activations: None,
) -> Iterator[A]:
    """Results of `run` for every block of tails; `kept` is the number of bytes it keeps per row. `on_prefixes` gets the
    activations that `run_prefixes` captured."""
    count, length, first = num_parallel_passes(model), model.encoder.length, model.positions.op2
    per_row = 2 * cache_bytes(model, length) + kept
    with parallel_passes(model) as passes:
        for block in _distinct_prefixes(model, prompts, rows, count):
            parts = list(passes(run_prefixes, block.split(count)))
            for _, activations in parts:
                on_prefixes(activations)
            prefixes = _concatenated([keys_values for keys_values, _ in parts])
            size = rows or rows_that_fit(model, length - first, length, per_row, passes=count)
            yield from passes(run, _tails(model, prompts, block, prefixes, size))


def _tails(model: Model, prompts: Prompts, block: _Prefixes, prefixes: KeysValues, size: int) -> Iterator[_Tail]:
    for start in range(0, len(block.rows), size):
        chosen = block.rows[start : start + size]
        owner = torch.from_numpy(block.owner[start : start + size]).to(model.device)
        yield _Tail(chosen, model.encode(prompts[chosen])[:, model.positions.op2 :], prefixes, owner)


def _concatenated(parts: Sequence[KeysValues]) -> KeysValues:
    if len(parts) == 1:
        return parts[0]
    return [(torch.cat([k for k, _ in layer]), torch.cat([v for _, v in layer])) for layer in zip(*parts, strict=True)]


def _distinct_prefixes(model: Model, prompts: Prompts, rows: int | None, count: int) -> Iterator[_Prefixes]:
    """The distinct prefixes of the prompts, in blocks that fit in memory."""
    first = model.positions.op2
    key = prompts.operator * model.limit + prompts.op1
    _, examples, group = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(examples) + 1))
    size = rows or count * rows_that_fit(model, first, first, 2 * cache_bytes(model, first), passes=count)
    for start in range(0, len(examples), size):
        end = min(start + size, len(examples))
        chosen = order[edges[start] : edges[end]]
        yield _Prefixes(model.encode(prompts[examples[start:end]])[:, :first], chosen, group[chosen] - start)


class _Stop(Exception):
    """Everything that a pass was run for has been captured."""


@contextmanager
def _stopping_at(module: nn.Module) -> Iterator[None]:
    """End the pass inside when it reaches a module, after hooks that were registered before."""

    def stop(*_: Any) -> None:
        raise _Stop

    handle = module.register_forward_pre_hook(stop)
    try:
        with suppress(_Stop):
            yield
    finally:
        handle.remove()

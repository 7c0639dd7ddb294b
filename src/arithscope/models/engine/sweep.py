"""Passing over very many prompts, the whole operand square say, computing each shared beginning once.

The square repeats everything before op2 (BOS, few-shot prefix, op1, operator) for each of its second operands. A sweep
runs each distinct beginning once, keeps its keys and values, and runs only the tail, from op2 on, for every prompt. On a CPU
passes run side by side.
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
from arithscope.models.engine.replicas import passes_at_once, side_by_side
from arithscope.models.hooks import Activations, capturing
from arithscope.models.memory import cache_bytes, component_bytes, rows_that_fit
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts
from arithscope.utils.progress import Advance

A = TypeVar("A")


@dataclass(frozen=True)
class Block:
    """Some rows of the swept prompts, in no particular order."""

    rows: NDArray[np.int64]  # which prompts
    logits: Float[Tensor, "rows vocabulary"]  # at the last position
    seen: Activations  # what `keep` kept of the tail's activations


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
    heads: Sequence[int] = (),
    neurons: Sequence[int] = (),
    residual: Sequence[int] = (),
    keep: Callable[[Tensor], Tensor] = last_position,
    progress: Advance | None = None,
    rows: int | None = None,
) -> Iterator[Block]:
    """Run every prompt and yield, block by block, its logits and its activations at the named layers.

    By default activations are those at the last position; `keep` gets them at all tail positions (op2…last). `rows` is
    the size of a pass; by default what fits the memory.
    """

    def run(model: Model, tail: _Tail) -> Block:
        with capturing(model, heads=heads, neurons=neurons, residual=residual, keep=keep) as seen:
            logits = tail_logits(model, tail.keys_values, tail.ids, tail.beginning)
        return Block(tail.rows, logits, seen)

    n_heads, n_neurons = (component_bytes(model, site) for site in (Site.HEADS, Site.NEURONS))
    kept = len(heads) * n_heads + len(neurons) * n_neurons + len(residual) * model.sizes.width * 4
    for block in _swept(model, prompts, rows, kept, run):
        yield block
        if progress is not None:
            progress(len(block.rows))


@torch.no_grad()
def sweep_neurons(
    model: Model,
    prompts: Prompts,
    chosen: Mapping[int, Int[Tensor, " chosen"]],
    progress: Advance | None = None,
    rows: int | None = None,
    keep: Callable[[Float[Tensor, "rows chosen"]], Tensor] = lambda x: x,
) -> Iterator[tuple[NDArray[np.int64], dict[int, Tensor]]]:
    """Run every prompt and yield, block by block, which prompts they are and, by layer, what `keep` makes of the activations of
    chosen neurons at the last position. A pass ends where the last of them is seen."""
    layers, highest = list(chosen), max(chosen)

    def run(model: Model, tail: _Tail) -> tuple[NDArray[np.int64], dict[int, Tensor]]:
        with capturing(model, neurons=layers, keep=last_position) as seen, _up_to(model.module(Site.NEURONS, highest)):
            tail_logits(model, tail.keys_values, tail.ids, tail.beginning)
        return tail.rows, {i: keep(x.index_select(1, chosen[i].to(x.device))) for i, x in seen.neurons.items()}

    for found in _swept(model, prompts, rows, len(layers) * component_bytes(model, Site.NEURONS), run):
        yield found
        if progress is not None:
            progress(len(found[0]))


@torch.no_grad()
def mean_activations(
    model: Model,
    prompts: Prompts,
    progress: Advance | None = None,
    rows: int | None = None,
    see: Callable[[NDArray[np.int64], Tensor], None] = lambda rows, logits: None,
) -> Means:
    """The mean over prompts, at every position, of all heads and neurons (the values of mean ablation). `see` is told the rows
    and logits of each block on the way, in any thread."""
    s, layers = model.sizes, range(model.sizes.layers)
    length, first = model.encoder.length, model.positions.op2
    heads, neurons = _Totals(length), _Totals(length)

    def add(seen: Activations, start: int) -> None:
        heads.add(seen.heads, start)
        neurons.add(seen.neurons, start)

    def begin(model: Model, some: _Beginnings) -> tuple[KeysValues, Activations]:
        weights = torch.from_numpy(np.bincount(some.of_row, minlength=len(some.ids)))

        def weighted_sum(x: Tensor) -> Tensor:
            return torch.tensordot(weights.to(x.device, torch.float32), x.float(), dims=1)

        with capturing(model, heads=layers, neurons=layers, keep=weighted_sum) as seen:
            return prefix_keys_values(model, some.ids), seen

    def run(model: Model, tail: _Tail) -> tuple[int, Activations]:
        with capturing(model, heads=layers, neurons=layers, keep=lambda x: x.float().sum(0)) as seen:
            see(tail.rows, tail_logits(model, tail.keys_values, tail.ids, tail.beginning))
        return len(tail.rows), seen

    kept = s.layers * (length - first) * (component_bytes(model, Site.HEADS) + component_bytes(model, Site.NEURONS))
    for done, seen in _swept(model, prompts, rows, kept, run, begin, lambda seen: add(seen, 0)):
        add(seen, first)
        if progress is not None:
            progress(done)
    return Means(*(x.divided(len(prompts)).to(model.device) for x in (heads, neurons)))


class _Totals:
    """Sums over prompts of every layer's activations at every position, in float64 and, where there is such a thing, on the
    layer's own device: copying each block's to the CPU would make a GPU wait."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._of_layer: dict[int, Tensor] = {}

    def add(self, sums: Mapping[int, Float[Tensor, "positions *rest"]], start: int) -> None:
        """Sums at the positions from `start` on, by layer."""
        for layer, x in sums.items():
            if layer not in self._of_layer:
                device = "cpu" if x.device.type == "mps" else x.device
                self._of_layer[layer] = torch.zeros(self._length, *x.shape[1:], dtype=torch.float64, device=device)
            total = self._of_layer[layer]
            total[start : start + len(x)] += x.to(total.device)

    def divided(self, n: int) -> Float[Tensor, "layers positions *rest"]:
        return torch.stack([(self._of_layer[i] / n).float().cpu() for i in sorted(self._of_layer)])


@dataclass(frozen=True)
class _Beginnings:
    """Some distinct beginnings, and the prompts that start with them."""

    ids: Tensor  # [beginnings, first]
    rows: NDArray[np.int64]  # prompts, sorted by beginning
    of_row: NDArray[np.int64]  # the beginning of each of these prompts, an index into ids

    def split(self, count: int) -> list[_Beginnings]:
        """In so many pieces at the most."""
        size = -(-len(self.ids) // count)
        edges = np.searchsorted(self.of_row, np.arange(0, len(self.ids) + size, size))
        return [
            _Beginnings(ids, self.rows[start:end], self.of_row[start:end] - i * size)
            for i, (ids, start, end) in enumerate(zip(self.ids.split(size), edges, edges[1:], strict=False))
        ]


@dataclass(frozen=True)
class _Tail:
    rows: NDArray[np.int64]
    ids: Tensor
    keys_values: KeysValues  # of some beginnings
    beginning: Tensor  # which of them each prompt has


def _begun(model: Model, some: _Beginnings) -> tuple[KeysValues, Activations]:
    return prefix_keys_values(model, some.ids), Activations()


def _swept(
    model: Model,
    prompts: Prompts,
    rows: int | None,
    kept: int,
    run: Callable[[Model, _Tail], A],
    begin: Callable[[Model, _Beginnings], tuple[KeysValues, Activations]] = _begun,
    begun: Callable[[Activations], None] = lambda seen: None,
) -> Iterator[A]:
    """What `run` makes of each block of tails, of which it keeps so many bytes a row; `begun` is told what was seen of the
    beginnings."""
    count = passes_at_once(model)
    with side_by_side(model) as passes:
        for block in _beginnings(model, prompts, rows, count):
            parts = list(passes(begin, block.split(count)))
            for _, seen in parts:
                begun(seen)
            keys_values = _joined([found for found, _ in parts])
            yield from passes(run, _tails(model, prompts, block, keys_values, kept, rows, count))


def _joined(parts: Sequence[KeysValues]) -> KeysValues:
    if len(parts) == 1:
        return parts[0]
    return [(torch.cat([k for k, _ in layer]), torch.cat([v for _, v in layer])) for layer in zip(*parts, strict=True)]


def _beginnings(model: Model, prompts: Prompts, rows: int | None, count: int) -> Iterator[_Beginnings]:
    first = model.positions.op2
    key = prompts.operator * model.limit + prompts.op1
    _, examples, group = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(examples) + 1))
    size = rows or count * rows_that_fit(model, first, first, 2 * cache_bytes(model, first), passes=count)
    for start in range(0, len(examples), size):
        end = min(start + size, len(examples))
        chosen = order[edges[start] : edges[end]]
        yield _Beginnings(model.encode(prompts[examples[start:end]])[:, :first], chosen, group[chosen] - start)


def _tails(
    model: Model,
    prompts: Prompts,
    block: _Beginnings,
    keys_values: KeysValues,
    kept: int,
    rows: int | None,
    count: int,
) -> Iterator[_Tail]:
    first, length = model.positions.op2, model.encoder.length
    per_row = 2 * cache_bytes(model, length) + kept
    size = rows or rows_that_fit(model, length - first, length, per_row, passes=count)
    for start in range(0, len(block.rows), size):
        chosen = block.rows[start : start + size]
        beginning = torch.from_numpy(block.of_row[start : start + size]).to(model.device)
        yield _Tail(chosen, model.encode(prompts[chosen])[:, first:], keys_values, beginning)


class _Enough(Exception):
    """Everything that a pass was to show has been seen."""


@contextmanager
def _up_to(module: nn.Module) -> Iterator[None]:
    """Ends the pass inside where it comes to a module, once hooks that were there before have seen its input."""

    def stop(*_: Any) -> None:
        raise _Enough

    handle = module.register_forward_pre_hook(stop)
    try:
        with suppress(_Enough):
            yield
    finally:
        handle.remove()

"""Passing over very many prompts, the whole operand square say, computing each shared beginning once.

The square repeats everything before op2 (BOS, few-shot prefix, op1, operator) for each of its second operands. A sweep
runs each distinct beginning once, keeps its keys and values, and runs only the tail, from op2 on, for every prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from arithscope.prompts import Prompts
from arithscope.subject.edits import Activations, capturing
from arithscope.subject.memory import cache_bytes, component_bytes, rows_that_fit
from arithscope.subject.replay import prefix_keys_values, tail_logits
from arithscope.subject.shared_prefix import KeysValues
from arithscope.subject.subject import Site, Subject

Progress = Callable[[int], None]  # told how many prompts were done since it was last called


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


def _last(x: Tensor) -> Tensor:
    return x[:, -1].clone()  # a view would keep the whole tail in memory


@torch.no_grad()
def sweep(
    subject: Subject,
    prompts: Prompts,
    *,
    heads: Sequence[int] = (),
    neurons: Sequence[int] = (),
    residual: Sequence[int] = (),
    keep: Callable[[Tensor], Tensor] = _last,
    progress: Progress | None = None,
    rows: int | None = None,
) -> Iterator[Block]:
    """Run every prompt and yield, block by block, its logits and its activations at the named layers.

    By default activations are those at the last position; `keep` gets them at all tail positions (op2…last). `rows` is
    the size of a pass; by default what fits the memory.
    """
    n_heads, n_neurons = (component_bytes(subject, site) for site in (Site.HEADS, Site.NEURONS))
    kept = len(heads) * n_heads + len(neurons) * n_neurons + len(residual) * subject.sizes.width * 4
    for block in _beginnings(subject, prompts, rows):
        keys_values = prefix_keys_values(subject, block.ids)
        for tail in _tails(subject, prompts, block, kept, rows):
            with capturing(subject, heads=heads, neurons=neurons, residual=residual, keep=keep) as seen:
                logits = tail_logits(subject, _spread(keys_values, tail.beginning), tail.ids)
            yield Block(tail.rows, logits, seen)
            if progress is not None:
                progress(len(tail.rows))


@torch.no_grad()
def mean_activations(
    subject: Subject,
    prompts: Prompts,
    progress: Progress | None = None,
    rows: int | None = None,
    see: Callable[[NDArray[np.int64], Tensor], None] = lambda rows, logits: None,
) -> Means:
    """The mean over prompts, at every position, of all heads and neurons (the values of mean ablation). `see` is told the rows
    and logits of each block on the way."""
    s, layers = subject.sizes, range(subject.sizes.layers)
    length, first = subject.encoder.length, subject.positions.op2
    totals = Means(
        torch.zeros(s.layers, length, s.heads, s.head_dim, dtype=torch.float64),
        torch.zeros(s.layers, length, s.neurons, dtype=torch.float64),
    )

    def add(seen: Activations, positions: slice) -> None:
        for i in layers:
            totals.heads[i, positions] += seen.heads[i].double().cpu()
            totals.neurons[i, positions] += seen.neurons[i].double().cpu()

    kept = s.layers * (length - first) * (component_bytes(subject, Site.HEADS) + component_bytes(subject, Site.NEURONS))
    for block in _beginnings(subject, prompts, rows):
        weights = torch.from_numpy(np.bincount(block.of_row, minlength=len(block.ids))).to(subject.device)

        def weighted_sum(x: Tensor, weights: Tensor = weights) -> Tensor:
            return torch.tensordot(weights.to(x.device, torch.float32), x.float(), dims=1)

        with capturing(subject, heads=layers, neurons=layers, keep=weighted_sum) as seen:
            keys_values = prefix_keys_values(subject, block.ids)
        if seen.heads:
            add(seen, slice(0, first))
        for tail in _tails(subject, prompts, block, kept, rows):
            with capturing(subject, heads=layers, neurons=layers, keep=lambda x: x.float().sum(0)) as seen:
                logits = tail_logits(subject, _spread(keys_values, tail.beginning), tail.ids)
            see(tail.rows, logits)
            add(seen, slice(first, length))
            if progress is not None:
                progress(len(tail.rows))
    n = max(1, len(prompts))
    return Means((totals.heads / n).float().to(subject.device), (totals.neurons / n).float().to(subject.device))


@dataclass(frozen=True)
class _Beginnings:
    """Some distinct beginnings, and the prompts that start with them."""

    ids: Tensor  # [beginnings, first]
    rows: NDArray[np.int64]  # prompts, sorted by beginning
    of_row: NDArray[np.int64]  # the beginning of each of these prompts, an index into ids


@dataclass(frozen=True)
class _Tail:
    rows: NDArray[np.int64]
    beginning: Tensor
    ids: Tensor


def _beginnings(subject: Subject, prompts: Prompts, rows: int | None) -> Iterator[_Beginnings]:
    first = subject.positions.op2
    key = prompts.operator * subject.limit + prompts.op1
    _, examples, group = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(examples) + 1))
    size = rows or rows_that_fit(subject, first, first, per_row=2 * cache_bytes(subject, first))
    for start in range(0, len(examples), size):
        end = min(start + size, len(examples))
        chosen = order[edges[start] : edges[end]]
        yield _Beginnings(subject.encode(prompts[examples[start:end]])[:, :first], chosen, group[chosen] - start)


def _tails(subject: Subject, prompts: Prompts, block: _Beginnings, kept: int, rows: int | None) -> Iterator[_Tail]:
    first, length = subject.positions.op2, subject.encoder.length
    size = rows or rows_that_fit(subject, length - first, length, per_row=2 * cache_bytes(subject, length) + kept)
    for start in range(0, len(block.rows), size):
        chosen = block.rows[start : start + size]
        beginning = torch.from_numpy(block.of_row[start : start + size]).to(subject.device)
        yield _Tail(chosen, beginning, subject.encode(prompts[chosen])[:, first:])


def _spread(keys_values: KeysValues, beginning: Tensor) -> KeysValues:
    # Ten times as fast, on a CPU, as indexing.
    return [
        (k.index_select(0, beginning.to(k.device)), v.index_select(0, beginning.to(v.device))) for k, v in keys_values
    ]

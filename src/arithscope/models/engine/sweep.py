"""The fast engine for very many prompts, such as the whole operand grid: compute each shared prefix once.

The grid repeats everything before op2 (BOS, few-shot prefix, op1, operator) for each second operand. A sweep

1. runs each distinct prefix once and keeps its keys and values, and
2. runs only the tail, from op2 on, for every prompt; on a CPU each thread runs its own passes, on a replica of the model.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.models.engine.prefix_attention import KeysValues
from arithscope.models.engine.replay import prefix_keys_values, tail_logits
from arithscope.models.hooks import Activations, Layers, capturing
from arithscope.models.memory import cache_bytes, component_bytes, logit_bytes, rows_that_fit
from arithscope.models.model import Logits, Model, Site
from arithscope.prompts import Prompts
from arithscope.utils.progress import Advance
from arithscope.utils.threads import map_in_order, thread_pool

Rows = NDArray[np.int64]  # row numbers of prompts
Observer = Callable[[Rows, Float[Tensor, "rows steps vocabulary"]], None]
A = TypeVar("A")
B = TypeVar("B")

_replicas: WeakKeyDictionary[Model, list[Model]] = WeakKeyDictionary()  # of the models in use


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
    ids: Int[Tensor, "prompts length"] | None = None,
) -> Iterator[Block]:
    """Run every prompt and yield, block by block, its logits and its activations at the given layers.

    Args:
        heads: Layers whose heads are captured.
        neurons: Layers whose neurons are captured.
        residual: Layers whose output is captured.
        keep: What to keep of the activations [rows, positions from op2 on, …]; by default the last position.
        progress: Called with the number of prompts in each finished block.
        rows: Number of prompts in one pass; by default as many as fit in memory.
        ids: Tokens of the prompts, if not those that the model encodes them to: with other tokens behind op2.
    """

    def run(model: Model, tail: _Tail) -> Block:
        with capturing(model, heads=heads, neurons=neurons, residual=residual, keep=keep) as activations:
            logits = tail.logits(model)[:, 0]
        return Block(tail.rows, logits, activations)

    kept = len(heads) * component_bytes(model, Site.HEADS) + len(neurons) * component_bytes(model, Site.NEURONS)
    kept += len(residual) * model.sizes.width * 4
    for block in _run_tails(model, prompts, rows, kept, run, ids=ids):
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
    """Run every prompt and yield, block by block, row numbers and, by layer, what `keep` returns for the chosen neurons'
    activations at the last position. A pass ends at the highest chosen layer."""
    layers, highest = list(chosen), max(chosen)

    def stop(*_: Any) -> None:
        raise _Captured

    def run(model: Model, tail: _Tail) -> tuple[Rows, dict[int, Tensor]]:
        with (
            capturing(model, neurons=layers, keep=last_position) as activations,
            model.module(Site.NEURONS, highest).register_forward_pre_hook(stop),  # after the hooks that capture
            suppress(_Captured),
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
    steps: int = 1,
    ids: Int[Tensor, "prompts length"] | None = None,
) -> Means:
    """Mean over prompts of all heads and neurons at every position: the values of mean ablation.

    Args:
        progress: Called with the number of prompts in each finished block.
        rows: Number of prompts in one pass; by default as many as fit in memory.
        observe: Called with the rows and logits of each block, in any thread.
        steps: Number of last positions whose logits are observed: one for each answer step.
        ids: As for `sweep`.
    """
    layers, first = range(model.sizes.layers), model.positions.op2
    length = model.encoder.length if ids is None else ids.shape[1]
    totals: dict[Site, dict[int, Tensor]] = {site: {} for site in Site}

    def add(sums: Activations, start: int) -> None:
        """Add sums at the positions from `start` on, in float64."""
        for site in Site:
            for layer, x in getattr(sums, site).items():
                # On the layer's own device if that has float64: copying each block to the CPU would make a GPU wait.
                x = x.cpu() if x.device.type == "mps" else x
                if layer not in totals[site]:
                    totals[site][layer] = torch.zeros(length, *x.shape[1:], dtype=torch.float64, device=x.device)
                totals[site][layer][start : start + len(x)] += x

    def run(model: Model, tail: _Tail) -> tuple[int, Activations]:
        with capturing(model, heads=layers, neurons=layers, keep=lambda x: x.float().sum(0)) as sums:
            observe(tail.rows, tail.logits(model, steps))
        return len(tail.rows), sums

    kept = len(layers) * (length - first) * sum(component_bytes(model, site) for site in Site)
    kept += (steps - 1) * logit_bytes(model)
    for n, sums in _run_tails(model, prompts, rows, kept, run, lambda sums: add(sums, 0), ids):
        add(sums, first)
        progress(n)
    means = [torch.stack([(totals[s][i] / len(prompts)).float().cpu() for i in layers]) for s in Site]
    return Means(*(x.to(model.device) for x in means))


@dataclass(frozen=True)
class _Tail:
    """The tails of some prompts, and the prefixes they continue."""

    rows: Rows
    ids: Int[Tensor, "rows tail"]
    prefixes: KeysValues
    owner: Int[Tensor, " rows"]  # the prefix of each prompt

    def logits(self, model: Model, last: int = 1) -> Float[Tensor, "rows last vocabulary"]:
        return tail_logits(model, self.prefixes, self.ids, self.owner, last)


def _run_tails(
    model: Model,
    prompts: Prompts,
    rows: int | None,
    kept: int,
    run: Callable[[Model, _Tail], A],
    on_prefix_sums: Callable[[Activations], None] | None = None,
    ids: Int[Tensor, "prompts length"] | None = None,
) -> Iterator[A]:
    """Results of `run` for every block of tails; `kept` is the number of bytes it keeps per row. `on_prefix_sums` gets sums
    over prompts of all heads and neurons in the prefixes. `ids` are the prompts' tokens, if not as the model encodes them."""
    count, first = num_parallel_passes(model), model.positions.op2
    length = model.encoder.length if ids is None else ids.shape[1]
    per_row = 2 * cache_bytes(model, length) + kept
    summed = range(model.sizes.layers) if on_prefix_sums else ()

    def run_prefixes(model: Model, part: tuple[Tensor, Tensor]) -> tuple[KeysValues, Activations]:
        ids, weights = part

        def weighted_sum(x: Tensor) -> Tensor:
            return torch.tensordot(weights.to(x.device, torch.float32), x.float(), dims=1)

        with capturing(model, heads=summed, neurons=summed, keep=weighted_sum) as sums:
            return prefix_keys_values(model, ids), sums

    with _parallel_passes(model) as passes:
        for prefix_ids, chosen, owner in _distinct_prefixes(model, prompts, rows, count):
            prompts_per_prefix = torch.from_numpy(np.bincount(owner))
            even = -(-len(prefix_ids) // count)
            parts = list(passes(run_prefixes, zip(prefix_ids.split(even), prompts_per_prefix.split(even), strict=True)))
            if on_prefix_sums:
                for _, sums in parts:
                    on_prefix_sums(sums)
            prefixes = _concatenated([keys_values for keys_values, _ in parts])
            size = rows or rows_that_fit(model, length - first, length, per_row, passes=count)
            yield from passes(run, _tails(model, prompts, ids, chosen, owner, prefixes, size))


def _concatenated(parts: list[KeysValues]) -> KeysValues:
    """Keys and values of several groups of prefixes as one group."""
    by_layer = (zip(*layer, strict=True) for layer in zip(*parts, strict=True))
    return parts[0] if len(parts) == 1 else [(torch.cat(keys), torch.cat(values)) for keys, values in by_layer]


def _tails(
    model: Model,
    prompts: Prompts,
    ids: Int[Tensor, "prompts length"] | None,
    rows: Rows,
    owner: Rows,
    prefixes: KeysValues,
    size: int,
) -> Iterator[_Tail]:
    for start in range(0, len(rows), size):
        chosen, prefix = (x[start : start + size] for x in (rows, owner))
        own = ids_of(model, prompts, chosen, ids)
        yield _Tail(chosen, own[:, model.positions.op2 :], prefixes, torch.from_numpy(prefix).to(model.device))


def ids_of(
    model: Model, prompts: Prompts, rows: Rows, ids: Int[Tensor, "prompts length"] | None
) -> Int[Tensor, "rows length"]:
    """Tokens of some of the prompts; `ids` are those of all, if not as the model encodes them."""
    return model.encode(prompts[rows]) if ids is None else ids[torch.from_numpy(rows)].to(model.device)


def _distinct_prefixes(
    model: Model, prompts: Prompts, rows: int | None, count: int
) -> Iterator[tuple[Tensor, Rows, Rows]]:
    """Blocks of distinct prefixes that fit in memory, each with the prompts that start with them and each prompt's prefix."""
    first = model.positions.op2
    key = prompts.operator * (prompts.op1.max(initial=0) + 1) + prompts.op1
    _, examples, group = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(examples) + 1))
    size = rows or count * rows_that_fit(model, first, first, 2 * cache_bytes(model, first), passes=count)
    for start in range(0, len(examples), size):
        end = min(start + size, len(examples))
        chosen = order[edges[start] : edges[end]]
        yield model.encode(prompts[examples[start:end]])[:, :first], chosen, group[chosen] - start


class _Captured(Exception):
    """Ends a pass early, once everything needed is captured."""


class Passes(Protocol):
    def __call__(self, run: Callable[[Model, A], B], items: Iterable[A]) -> Iterator[B]:
        """Results of `run` for each item, in order."""


def num_parallel_passes(model: Model) -> int:
    """Number of passes at a time: one keeps a GPU busy, and the hooks of a device map cannot handle more."""
    alone = model.device.type != "cpu" or hasattr(model.hf_model, "hf_device_map")
    return 1 if alone else torch.get_num_threads()


def replica(model: Model) -> Model:
    """A copy with its own modules and hooks; weights, tokenizer and encoder are shared."""
    shared = [*model.hf_model.parameters(), *model.hf_model.buffers(), model.tokenizer, model.encoder]
    return copy.deepcopy(model, {id(x): x for x in shared})


@contextmanager
def _parallel_passes(model: Model) -> Iterator[Passes]:
    """Yields a function that runs passes without gradients, as many at a time as suits the device."""
    if (count := num_parallel_passes(model)) == 1:
        yield lambda run, items: (run(model, item) for item in items)
        return
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in model.hf_model.modules())
    replicas = [] if hooked else _replicas.setdefault(model, [])  # replicas with copies of hooks are not kept
    replicas += [replica(model) for _ in range(count - len(replicas))]
    unused, own = replicas[:count], threading.local()

    def start() -> None:
        own.model = unused.pop()
        torch.set_grad_enabled(False)  # in this thread only

    with thread_pool(start) as pool:
        yield lambda run, items: map_in_order(pool, lambda item: run(own.model, item), items, ahead=count + 1)

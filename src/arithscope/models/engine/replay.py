"""The fast engine: recompute only what an edit can reach.

An edit at position p of layer l changes nothing before p and nothing up to l. So the positions before p (the prefix) are
run once and their keys and values kept; then only the tail, from p on, of thousands of edited variants goes through the
layers from l on, as one batch. All prompts have the same length, hence a layer is called with the same mask and position
arguments whatever the prompt: they are recorded once, from a batch of one, and broadcast to any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from arithscope.errors import UserError
from arithscope.models.engine.prefix_attention import KeysValues, shared_prefix
from arithscope.models.hooks import Edit, capturing, editing, layer_output
from arithscope.models.memory import rows_that_fit
from arithscope.models.model import Model, Site

# Turns logits into what is kept of them, chunk by chunk: (unedited [batch, vocabulary], edited [variants, batch,
# vocabulary]) → [variants, batch, …]. The unedited logits come from the same pass, hence from the same batch shape.
Reduce = Callable[[Float[Tensor, "batch vocabulary"], Float[Tensor, "variants batch vocabulary"]], Tensor]

Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword arguments of a decoder layer


class PrefixCache(Cache):
    """Keys and values of the prefix, in the shape of the library's cache, but stateless: `update` returns prefix + new
    and stores nothing, so one prefix serves every variant. (The library's own cache grows with each use.) `apart`: the
    attention knows the prefix already, and gets what is new alone."""

    def __init__(self, prefix: KeysValues, apart: bool):
        super().__init__(layers=[])
        self.prefix, self.apart = prefix, apart

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        if self.apart or not self.prefix:
            return key_states, value_states
        return tuple(
            self._behind(old, new) for old, new in zip(self.prefix[layer_idx], (key_states, value_states), strict=True)
        )

    @staticmethod
    def _behind(old: Tensor, new: Tensor) -> Tensor:
        wide = old.expand(new.shape[0] // old.shape[0], *old.shape)
        return torch.cat([wide.flatten(0, 1), new], dim=-2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.prefix[layer_idx][0].shape[-2] if self.prefix else 0


@dataclass(frozen=True)
class Tape:
    """One pass over a batch of prompts, kept so that its tail, from `first` on, can be replayed."""

    model: Model
    first: int  # position of the tail's first token
    length: int
    prefix: KeysValues
    calls: list[Call]  # how each layer was called, for a batch of one
    inputs: list[Float[Tensor, "batch tail width"]]  # of each layer, and behind them the last layer's output
    neurons: dict[int, Float[Tensor, "batch tail neurons"]]  # of the layers asked for
    logits: Float[Tensor, "batch vocabulary"]  # the model's own, at the last position
    edits: Sequence[Edit] = ()  # in the tail, in force in this pass and in every replay of it

    @property
    def batch(self) -> int:
        return self.logits.shape[0]

    @property
    def tail(self) -> int:
        return self.length - self.first


@torch.no_grad()
def record(
    model: Model,
    ids: Int[Tensor, "batch length"],
    first: int,
    neurons: Sequence[int] = (),
    edits: Sequence[Edit] = (),
) -> Tape:
    """Run prompts once and keep what replaying them from position `first` on needs.

    `neurons` names the layers whose neurons are kept: those that `replay_neurons` is going to edit. `edits`, of one variant
    each, hold for the tape and for all that is replayed from it.
    """
    length = ids.shape[1]
    if not 0 <= first < length:
        raise ValueError(f"position {first} is outside the prompt of {length} tokens")
    early, late = ([e for e in (e.within(p) for e in edits) if e] for p in (range(first), range(first, length)))
    with editing(model, early, len(ids)):
        prefix = prefix_keys_values(model, ids[:, :first])
    with _layer_calls(model) as calls:
        tail_logits(model, [(keys[:1], values[:1]) for keys, values in prefix], ids[:1, first:])
    layers = range(model.sizes.layers)
    with (
        _layer_calls(model) as full_calls,
        editing(model, late, len(ids), first),
        capturing(model, neurons=neurons, residual=layers) as seen,
    ):
        logits = tail_logits(model, prefix, ids[:, first:])
    inputs = [_hidden_states(full_calls[0]), *(seen.residual[i] for i in layers)]
    return Tape(model, first, length, prefix, calls, inputs, seen.neurons, logits, late)


@torch.no_grad()
def prefix_keys_values(model: Model, ids: Int[Tensor, "rows prefix"]) -> KeysValues:
    """Keys and values of the first tokens at every layer (an empty list if there are none)."""
    if ids.shape[1] == 0:
        return []
    cache = DynamicCache()  # without a configuration: plain layers, for sliding-window models too
    model.hf_model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
    return [(layer.keys, layer.values) for layer in cache.layers]


def tail_logits(
    model: Model,
    prefix: KeysValues,
    ids: Int[Tensor, "rows tail"],
    owner: Int[Tensor, " rows"] | None = None,
) -> Float[Tensor, "rows vocabulary"]:
    """The model's own pass over the tail behind a prefix: logits at the last position. `owner` says which of the prefix's rows
    is whose; by default each row has its own."""
    # By index: a slice would not lie together in memory, and be unembedded row by row. (A tensor would be sent to where the
    # model begins, which may not be where it ends.)
    last = [ids.shape[1] - 1]
    with nullcontext(False) if owner is None else shared_prefix(model, prefix, owner) as apart:
        cache = PrefixCache(prefix, apart) if apart else _growing(prefix, owner)
        return model.last_logits(
            model.hf_model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=last)
        )


def _growing(prefix: KeysValues, owner: Tensor | None) -> Cache:
    """The library's own cache with a row for each row of the pass."""
    cache = DynamicCache()
    for i, keys_values in enumerate(prefix):
        # index_select: ten times as fast, on a CPU, as indexing.
        spread = (x if owner is None else x.index_select(0, owner.to(x.device)) for x in keys_values)
        cache.update(*spread, i)
    return cache


@contextmanager
def _layer_calls(model: Model) -> Iterator[list[Call]]:
    """The arguments with which each layer is called in a pass."""
    calls: list[Call] = []
    handles = [
        layer.register_forward_pre_hook(
            lambda module, args, kwargs: calls.append((args, dict(kwargs))), with_kwargs=True
        )
        for layer in model.layers
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _hidden_states(call: Call) -> Tensor:
    args, kwargs = call
    return kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]


def _through_layers(tape: Tape, hidden: Tensor, start: int) -> Tensor:
    """Push rows through the layers from `start` on, each called as it was recorded."""

    def replaced(x: Any) -> Any:
        return cache if isinstance(x, Cache) else x

    with shared_prefix(tape.model, tape.prefix) as apart, editing(tape.model, tape.edits, tape.batch, tape.first):
        cache = PrefixCache(tape.prefix, apart)
        for layer, (args, kwargs) in zip(tape.model.layers[start:], tape.calls[start:], strict=True):
            keywords = {k: replaced(v) for k, v in kwargs.items()}
            if "hidden_states" in keywords:
                keywords["hidden_states"] = hidden
                output = layer(*map(replaced, args), **keywords)
            else:
                output = layer(hidden, *map(replaced, args[1:]), **keywords)
            hidden = layer_output(output)
    return hidden


def _chunks(tape: Tape, variants: int, chunk: int | None) -> Iterator[Tensor]:
    """Variant numbers, chunk by chunk, each chunk of the same size: −1 stands for the unedited variant, which leads
    every chunk and fills up the last one."""
    if variants == 0:
        raise ValueError("there is nothing to replay")
    if chunk is None:
        chunk = max(1, rows_that_fit(tape.model, tape.tail, tape.length) // tape.batch - 1)
    chunk = -(-variants // -(-variants // chunk))  # as even as the number of chunks allows
    for start in range(0, variants, chunk):
        numbers = torch.full((chunk + 1,), -1, device=tape.model.device)
        size = min(chunk, variants - start)
        numbers[1 : size + 1] = torch.arange(start, start + size)
        yield numbers


def _reduced(
    tape: Tape, variants: int, reduce: Reduce, chunk: int | None, hidden_of: Callable[[Tensor], Tensor]
) -> Tensor:
    """Run chunks of variants, from `hidden_of` (variant numbers → last layer's output), and reduce their logits."""
    results = []
    for numbers in _chunks(tape, variants, chunk):
        logits = tape.model.unembed(hidden_of(numbers)[:, -1]).view(len(numbers), tape.batch, -1)
        size = int((numbers >= 0).sum())
        results.append(reduce(logits[0], logits[1 : size + 1]))
    return torch.cat(results)


def number_of_variants(edits: Sequence[Edit], first: int) -> int:
    """Number of variants of edits that are replayed from position `first` on; ValueError if that cannot be done."""
    counts = {e.variants for e in edits} - {1} or {1}
    if not edits or len(counts) > 1:
        raise ValueError(f"edits must agree in their number of variants, not have {sorted(counts)}")
    if min(min(e.positions) for e in edits) < first:
        raise ValueError(f"an edit lies before position {first}, where the tape begins")
    return counts.pop()


@torch.no_grad()
def replay(tape: Tape, edits: Sequence[Edit], reduce: Reduce, chunk: int | None = None) -> Tensor:
    """The reduced logits of every variant of some edits, all in force together: the same numbers as a full edited pass.

    All edits have the same number of variants (or one, which then holds for all). Every edited position must lie in
    the tape's tail. `chunk` is the number of variants in a pass; by default what fits the memory.
    """
    variants = number_of_variants(edits, tape.first)
    start = min(e.layer for e in edits)

    def hidden_of(numbers: Tensor) -> Tensor:
        hidden = tape.inputs[start].repeat(len(numbers), 1, 1)
        with editing(tape.model, [e.select(numbers) for e in edits], tape.batch, tape.first):
            return _through_layers(tape, hidden, start)

    return _reduced(tape, variants, reduce, chunk, hidden_of)


@torch.no_grad()
def replay_neurons(
    tape: Tape,
    layer: int,
    neurons: Int[Tensor, " variants"],
    values: Float[Tensor, "variants #batch"],
    reduce: Reduce,
    position: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The reduced logits with one neuron at a time set to a value of its own for each prompt.

    Where the MLP's output joins the residual stream linearly, a neuron adds (new − old) times its value vector to the
    layer's recorded output, and only the layers above are run; else the layer itself is run again.
    """
    model = tape.model
    at = tape.length - 1 if position is None else position
    neurons, values = neurons.to(model.device), values.to(model.device).expand(len(neurons), tape.batch)

    def hidden_by_running_the_layer(numbers: Tensor) -> Tensor:
        chosen = numbers.clamp(min=0)
        entries = torch.zeros(len(numbers), 1, model.sizes.neurons, dtype=torch.bool, device=model.device)
        entries.scatter_(2, neurons[chosen][:, None, None], (numbers >= 0)[:, None, None])
        one = Edit(Site.NEURONS, layer, (at,), entries, values[chosen][:, :, None, None, None])
        hidden = tape.inputs[layer].repeat(len(numbers), 1, 1)
        with editing(model, [one], tape.batch, tape.first):
            return _through_layers(tape, hidden, layer)

    def hidden_by_adding(numbers: Tensor) -> Tensor:
        chosen = neurons[numbers.clamp(min=0)]
        change = values[numbers.clamp(min=0)].to(old.dtype) - old[:, chosen].T
        change = change * (numbers >= 0)[:, None]
        hidden = tape.inputs[layer + 1].repeat(len(numbers), 1, 1)
        added = change[:, :, None] * value_vectors[chosen][:, None, :]
        hidden[:, at - tape.first] += added.flatten(0, 1).to(hidden)
        return _through_layers(tape, hidden, layer + 1)

    if model.architecture.post_norms:
        return _reduced(tape, len(neurons), reduce, chunk, hidden_by_running_the_layer)
    old, value_vectors = tape.neurons[layer][:, at - tape.first].to(model.device), model.value_vectors(layer)
    return _reduced(tape, len(neurons), reduce, chunk, hidden_by_adding)


@torch.no_grad()
def check_replay(model: Model, ids: Int[Tensor, "batch length"]) -> float:
    """How far unedited replays are from the model's own logits, relative to the logits' spread: root mean square over the
    vocabulary, of the worst prompt and position.

    Raises UserError if it is more than rounding can explain: then nothing that replay says of this model holds.
    """
    own = model.logits(ids)
    scale = float(own.std(-1).mean()) or 1.0
    distances = []
    for first in sorted({0, *model.positions.named().values()}):
        tape = record(model, ids, first)
        again = model.unembed(_through_layers(tape, tape.inputs[0], 0)[:, -1])
        distances.append((again - own).square().mean(-1).sqrt())
    worst = float(torch.stack(distances).max()) / scale  # NaN if any is, unlike Python's own max
    exact = torch.finfo(model.hf_model.dtype).bits >= 32 and not model.quantization
    allowed = 1e-3 if exact else 0.15
    if not worst <= allowed:
        raise UserError(
            f"An unedited replay of {model.identity.name} differs from the model's own logits by {worst:.2g} of their "
            "spread, so its results could not be trusted; try --dtype float32 or report this model's family."
        )
    return worst

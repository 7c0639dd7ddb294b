"""The fast engine for edits: recompute only what an edit can change.

An edit at position p of layer l changes nothing before p and nothing below l. Therefore

1. `record` runs the positions before p (the prefix) once and keeps their keys and values,
2. it runs the rest (the tail) once and keeps each layer's input, and
3. `replay` runs only the tail of thousands of edited variants through the layers from l on, as one batch.

All prompts have the same length, so a layer is called with the same mask and position arguments for every prompt: they are
recorded from a batch of one and broadcast to any number of rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from arithscope.errors import UserError
from arithscope.models.engine.prefix_attention import KeysValues, prefix_attention
from arithscope.models.hooks import Edit, Layers, attached, capturing, editing, layer_input, layer_output
from arithscope.models.memory import logit_bytes, rows_that_fit
from arithscope.models.model import Ids, Logits, Model, Site

# Reduces logits to what is kept of them, chunk by chunk: (unedited [batch, vocabulary], edited [variants, batch, vocabulary])
# → [variants, batch, …]. The unedited logits come from the same pass, hence from the same batch shape.
# A tape of several last positions has logits [batch, last, vocabulary] and [variants, batch, last, vocabulary].
Reduce = Callable[[Logits, Float[Tensor, "variants batch vocabulary"]], Tensor]

Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword arguments of a decoder layer
EXACT, HALF = 1e-3, 0.15  # differences that rounding explains in float32 and in half precision, relative to the spread


class PrefixCache(Cache):
    """Keys and values of the prefix behind the library's cache interface, but stateless: `update` returns prefix + new and
    stores nothing, so that all variants share one prefix. With `separate`, attention has the prefix already and `update`
    returns only the new keys and values."""

    def __init__(self, prefix: KeysValues, separate: bool):
        super().__init__(layers=[])
        self.prefix, self.separate = prefix, separate

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        new = key_states, value_states
        if self.separate or not self.prefix:
            return new
        pairs = zip(self.prefix[layer_idx], new, strict=True)
        return tuple(torch.cat([old.repeat(len(x) // len(old), 1, 1, 1), x], dim=-2) for old, x in pairs)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.prefix[layer_idx][0].shape[-2] if self.prefix else 0


@dataclass(frozen=True)
class Tape:
    """One pass over a batch of prompts, recorded so that edits from position `first` on can be replayed."""

    model: Model
    ids: Ids
    first: int
    logits: Float[Tensor, "batch *last vocabulary"]
    edits: Sequence[Edit] = ()  # active in this pass and in every replay
    last: int = 1  # number of last positions whose logits are read, in replays too
    prefix: KeysValues = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)  # arguments of each layer, for a batch of one
    # Input of each layer; then the last one's output.
    inputs: list[Float[Tensor, "batch tail width"]] = field(default_factory=list)
    neurons: dict[int, Float[Tensor, "batch tail neurons"]] = field(default_factory=dict)  # by layer

    @property
    def batch(self) -> int:
        return self.ids.shape[0]

    @property
    def length(self) -> int:
        return self.ids.shape[1]


@torch.no_grad()
def record(model: Model, ids: Ids, first: int, neurons: Layers = (), edits: Sequence[Edit] = (), last: int = 1) -> Tape:
    """Run prompts once and keep what replays from position `first` on need.

    Args:
        first: First position that replays may edit.
        neurons: Layers whose neurons `replay_neurons` will edit.
        edits: Edits of one variant each that stay active in every replay.
        last: Number of last positions whose logits are read: more than one where a pass asks for several tokens of an answer.

    Raises:
        ValueError: If `first` lies outside the prompt.
    """
    length = ids.shape[1]
    if not 0 <= first < length:
        raise ValueError(f"position {first} is outside the prompt of {length} tokens")
    early, late = ([e for e in (e.within(p) for e in edits) if e] for p in (range(first), range(first, length)))
    with editing(model, early, len(ids)):
        prefix = prefix_keys_values(model, ids[:, :first])
    with layer_calls(model) as calls:
        tail_logits(model, [(keys[:1], values[:1]) for keys, values in prefix], ids[:1, first:])
    layers = range(model.sizes.layers)
    with (
        layer_calls(model) as full_calls,
        editing(model, late, len(ids), first),
        capturing(model, neurons=neurons, residual=layers) as activations,
    ):
        logits = _squeezed(tail_logits(model, prefix, ids[:, first:], last=last), last)
    inputs = [layer_input(*full_calls[0]), *(activations.residual[i] for i in layers)]
    return Tape(model, ids, first, logits, late, last, prefix, calls, inputs, activations.neurons)


def _squeezed(logits: Float[Tensor, "*rows last vocabulary"], last: int) -> Tensor:
    """Logits without the axis of last positions, if that is only one."""
    return logits.squeeze(-2) if last == 1 else logits


@torch.no_grad()
def prefix_keys_values(model: Model, ids: Int[Tensor, "rows prefix"]) -> KeysValues:
    """Keys and values of the first tokens at every layer; an empty list for no tokens."""
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
    last: int = 1,
) -> Float[Tensor, "rows last vocabulary"]:
    """Logits at the last positions of the model's own pass over the tail. `owner` is the prefix of each row; by default each
    row has its own."""
    # A list: a slice would not be contiguous and so be unembedded row by row; a tensor would move to the first layer's device.
    kept = list(range(ids.shape[1] - last, ids.shape[1]))
    with nullcontext(False) if owner is None else prefix_attention(model, prefix, owner) as separate:
        cache = PrefixCache(prefix, separate) if separate else DynamicCache()
        for i, keys_values in enumerate([] if separate else prefix):
            # index_select is ten times as fast as indexing on a CPU.
            keys, values = (x if owner is None else x.index_select(0, owner.to(x.device)) for x in keys_values)
            cache.update(keys, values, i)
        output = model.hf_model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=kept)
    return model.kept_logits(output)


@contextmanager
def layer_calls(model: Model) -> Iterator[list[Call]]:
    """Yield a list that collects the arguments of each layer's calls."""
    calls: list[Call] = []

    def on_call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, dict(kwargs)))

    with attached(layer.register_forward_pre_hook(on_call, with_kwargs=True) for layer in model.layers):
        yield calls


def _run_layers(tape: Tape, hidden: Tensor, start: int, edits: Sequence[Edit] = ()) -> Tensor:
    """Run rows through the layers from `start` on, each called as recorded; returns the last layer's output."""

    def replaced(x: Any) -> Any:
        return cache if isinstance(x, Cache) else x

    with (
        editing(tape.model, [*edits, *tape.edits], tape.batch, tape.first),
        prefix_attention(tape.model, tape.prefix) as separate,
    ):
        cache = PrefixCache(tape.prefix, separate)
        for layer, (args, kwargs) in zip(tape.model.layers[start:], tape.calls[start:], strict=True):
            kwargs = {k: replaced(v) for k, v in kwargs.items()}
            if "hidden_states" in kwargs:
                output = layer(*map(replaced, args), **{**kwargs, "hidden_states": hidden})
            else:
                output = layer(hidden, *map(replaced, args[1:]), **kwargs)
            hidden = layer_output(output)
    return hidden


def _reduced(tape: Tape, variants: int, reduce: Reduce, chunk: int | None, run: Callable[[Tensor], Tensor]) -> Tensor:
    """Reduced logits of all variants. `run` maps variant numbers to the last layer's output; every chunk has the same size,
    with −1, the unedited variant, first and as padding of the last chunk."""
    if variants == 0:
        raise ValueError("there is nothing to replay")
    if chunk is None:
        more = (tape.last - 1) * logit_bytes(tape.model)
        chunk = max(1, rows_that_fit(tape.model, tape.length - tape.first, tape.length, more) // tape.batch - 1)
    chunk = -(-variants // -(-variants // chunk))  # as even as the number of chunks allows
    results = []
    for start in range(0, variants, chunk):
        size = min(chunk, variants - start)
        numbers = torch.full((chunk + 1,), -1, device=tape.model.device)
        numbers[1 : size + 1] = torch.arange(start, start + size)
        hidden = run(numbers)[:, -tape.last :].flatten(0, 1)
        logits = _squeezed(tape.model.unembed(hidden).view(chunk + 1, tape.batch, tape.last, -1), tape.last)
        results.append(reduce(logits[0], logits[1 : size + 1]))
    return torch.cat(results)


def number_of_variants(edits: Sequence[Edit], first: int) -> int:
    """Number of variants of some edits. Raises ValueError if they cannot be replayed from position `first` on."""
    counts = {e.variants for e in edits} - {1} or {1}
    if not edits or len(counts) > 1:
        raise ValueError(f"edits must agree in their number of variants, not have {sorted(counts)}")
    if min(min(e.positions) for e in edits) < first:
        raise ValueError(f"an edit lies before position {first}, where the tape begins")
    return counts.pop()


@torch.no_grad()
def replay(tape: Tape, edits: Sequence[Edit], reduce: Reduce, chunk: int | None = None) -> Tensor:
    """Run every variant of some edits, all applied together: the same numbers as full edited passes.

    Args:
        edits: Edits with the same number of variants; those with a single variant are broadcast.
        reduce: Maps unedited [batch, vocabulary] and edited [variants, batch, vocabulary] logits to [variants, batch, …]; see
            `Reduce` for tapes of several last positions.
        chunk: Number of variants in one pass; by default as many as fit in memory.

    Returns:
        The reduced logits of all variants, [variants, batch, …].

    Raises:
        ValueError: If the edits differ in their number of variants, or edit a position before the tape's first.
    """
    variants = number_of_variants(edits, tape.first)
    start = min(e.layer for e in edits)

    def run(numbers: Tensor) -> Tensor:
        hidden = tape.inputs[start].repeat(len(numbers), 1, 1)
        return _run_layers(tape, hidden, start, [e.select(numbers) for e in edits])

    return _reduced(tape, variants, reduce, chunk, run)


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
    """Set one neuron at a time to a value per prompt, at `position` (default: the last); returns the reduced logits.

    Where the MLP's output joins the residual stream linearly, a neuron adds (new − old) times its value vector to the layer's
    recorded output, and only the layers above are run. Otherwise the layer itself is run again.
    """
    model = tape.model
    at = tape.length - 1 if position is None else position
    neurons, values = neurons.to(model.device), values.to(model.device).expand(len(neurons), tape.batch)

    def run_from_the_layer(numbers: Tensor) -> Tensor:
        chosen = numbers.clamp(min=0)
        mask = torch.zeros(len(numbers), 1, model.sizes.neurons, dtype=torch.bool, device=model.device)
        mask.scatter_(2, neurons[chosen][:, None, None], (numbers >= 0)[:, None, None])
        one = Edit(Site.NEURONS, layer, (at,), mask, values[chosen][:, :, None, None, None])
        return _run_layers(tape, tape.inputs[layer].repeat(len(numbers), 1, 1), layer, [one])

    def run_from_the_next_layer(numbers: Tensor) -> Tensor:
        chosen = neurons[numbers.clamp(min=0)]
        change = values[numbers.clamp(min=0)].to(old.dtype) - old[:, chosen].T
        change = change * (numbers >= 0)[:, None]
        hidden = tape.inputs[layer + 1].repeat(len(numbers), 1, 1)
        added = change[:, :, None] * value_vectors[chosen][:, None, :]
        hidden[:, at - tape.first] += added.flatten(0, 1).to(hidden)
        return _run_layers(tape, hidden, layer + 1)

    if model.architecture.post_norms:
        return _reduced(tape, len(neurons), reduce, chunk, run_from_the_layer)
    old, value_vectors = tape.neurons[layer][:, at - tape.first].to(model.device), model.value_vectors(layer)
    return _reduced(tape, len(neurons), reduce, chunk, run_from_the_next_layer)


@torch.no_grad()
def replay_residual(
    tape: Tape, layer: int, position: int, values: Float[Tensor, "batch width"], reduce: Reduce
) -> Tensor:
    """Replace the residual stream after a layer at one position, for example by that of counterfactuals (activation patching).

    Only the layers above are run. The unedited logits that `reduce` gets are those of the recorded pass.

    Args:
        tape: From `record`.
        layer: The layer whose output is replaced; EMBEDDINGS for the input of layer 0.
        position: Where it is replaced.
        values: What it is set to.
        reduce: As for `replay`.

    Returns:
        The reduced logits, [1, batch, …].

    Raises:
        ValueError: If the position lies before the tape's first.
    """
    assert tape.last == 1
    if position < tape.first:
        raise ValueError(f"position {position} lies before position {tape.first}, where the tape begins")
    model, hidden = tape.model, tape.inputs[layer + 1].clone()
    hidden[:, position - tape.first] = values.to(hidden)
    unedited, edited = tape.inputs[-1], _run_layers(tape, hidden, layer + 1)
    return reduce(model.unembed(unedited[:, -1]), model.unembed(edited[:, -1])[None])


@torch.no_grad()
def check_replay(model: Model, ids: Ids) -> float:
    """Distance of unedited replays from the model's own logits: root mean square over the vocabulary, of the worst prompt and
    position, relative to the logits' standard deviation. Raises UserError if rounding cannot explain it."""
    own = model.logits(ids)
    scale = float(own.std(-1).mean()) or 1.0
    distances = []
    for first in sorted({0, *model.positions.named().values()}):
        tape = record(model, ids, first)
        again = model.unembed(_run_layers(tape, tape.inputs[0], 0)[:, -1])
        distances.append((again - own).square().mean(-1).sqrt())
    worst = float(torch.stack(distances).max()) / scale  # NaN if any is, unlike Python's own max
    allowed = EXACT if model.full_precision else HALF
    if not worst <= allowed:
        raise UserError(
            f"An unedited replay of {model.identity.name} differs from the model's own logits by {worst:.2g} of their "
            "spread, so its results could not be trusted; try --dtype float32 or report this model's family."
        )
    return worst

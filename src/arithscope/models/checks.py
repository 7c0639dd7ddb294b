"""Self-checks of a model: each compares two ways of computing the same thing.

A model that fails one would give wrong results that look right, so a run refuses it.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from arithscope.models.engine.fast_ops import use_library_modules
from arithscope.models.engine.full_pass import FullPass
from arithscope.models.engine.replay import EXACT, HALF, layer_calls, record, replay, replay_neurons
from arithscope.models.engine.sweep import replica
from arithscope.models.hooks import capturing, edit, layer_input
from arithscope.models.memory import storage
from arithscope.models.model import Ids, Logits, Model, Site
from arithscope.prompts import Prompts
from arithscope.stats.effects import log_probability
from arithscope.stats.faithfulness import normalized_logit
from arithscope.utils.progress import Advance

NOISE = 4  # allowed multiple of the known rounding noise of the model's own logits


@dataclass(frozen=True)
class Check:
    """Result of one check; `problem` is empty if it passed."""

    name: str
    detail: str
    problem: str = ""


@dataclass(frozen=True)
class _Sample:
    """A few prompts, and the logits of the model's own pass."""

    model: Model
    ids: Ids
    answers: Int[Tensor, " batch"]
    logits: Logits
    allowed: float

    def distance(self, other: Tensor) -> float:
        """Root mean square distance to other logits for the worst prompt, in units of the logits' spread; may be NaN."""
        spread = float(self.logits.std(-1).mean()) or 1.0
        return float((other - self.logits).square().mean(-1).sqrt().max()) / spread

    def compared(self, name: str, detail: str, distance: float, problem: str) -> Check:
        """A check that a distance is small; it replaces "{}" in `detail`."""
        excess = f"{problem} by {distance:.2g} of the logits' spread, where rounding explains {self.allowed:.2g}"
        return Check(name, detail.format(f"{distance:.1e}"), "" if distance <= self.allowed else excess)


def soundness_checks(model: Model, noise: float | None = None) -> Iterator[Check]:
    """All checks that need a few passes. `noise` is the effect of rounding on the model's own logits, if known."""
    examples = model.encoder.examples()
    ids = model.encode(examples)
    answers = model.encoder.answers(examples).to(model.device)
    with torch.no_grad():
        allowed = EXACT if model.full_precision else HALF if noise is None else NOISE * noise + EXACT
        sample = _Sample(model, ids, answers, model.logits(ids), allowed)
        for check in CHECKS:
            yield (result := check(sample))
            if check is _logits and result.problem:
                return  # nothing can be compared with logits that are not finite


def self_check(model: Model, *, advance: Advance) -> list[tuple[str, str]]:
    """A unit: names and problems of failed checks."""
    return [(check.name, check.problem) for check in soundness_checks(model) if check.problem]


def tokenization_check(model: Model, prompts: Prompts) -> Check:
    """Whether the tokenizer encodes each of these prompts as the encoder's tables do."""
    if (wrong := model.encoder.first_mismatch(prompts)) is None:
        return Check("tokenisation", f"all {len(prompts):,} legal prompts are read as expected")
    problem = f"its tokenizer reads {wrong!r} differently from its neighbours; choose another --template"
    return Check("tokenisation", f"{wrong!r} is not read as expected", problem)


def float32_copy(model: Model) -> Model | None:
    """The model with weights in float32; None if that is impossible or does not fit in memory."""
    size = 4 * sum(p.numel() for p in model.hf_model.parameters())
    if model.quantization or model.offloads or len(model.devices) > 1 or size > storage(model):
        return None
    wide = copy.deepcopy(model, {id(x): x for x in (model.tokenizer, model.encoder)})
    wide.hf_model.float()
    return wide


@torch.no_grad()
def rounding_noise(model: Model, wide: Model) -> float:
    """Distance of a model's logits from those in float32, in units of their spread."""
    ids = model.encode(model.encoder.examples())
    return _Sample(wide, ids, ids[:, 0], wide.logits(ids), EXACT).distance(model.logits(ids))


def _logits(sample: _Sample) -> Check:
    """Logits are finite, and not the same for all tokens."""
    if not torch.isfinite(sample.logits).all():
        problem = "its logits are not finite; try --dtype float32, or load its weights again"
        return Check("logits", "not finite", problem)
    spread = float(sample.logits.std(-1).min())
    detail = f"finite; they spread by {spread:.2g} over the vocabulary"
    return Check("logits", detail, "" if spread > 0 else "its logits are the same for all tokens")


def _determinism(sample: _Sample) -> Check:
    again = sample.model.logits(sample.ids)
    detail = "two passes agree bit by bit" if torch.equal(again, sample.logits) else "two passes agree to {}"
    return sample.compared("determinism", detail, sample.distance(again), "its logits differ from one pass to the next")


def _library(sample: _Sample) -> Check:
    """Our fast modules against those of transformers."""
    if sample.model.offloads or sample.model.quantization:
        return Check("library", "not compared: weights are offloaded or quantised")
    plain = replica(sample.model)
    use_library_modules(plain.hf_model)
    distance = sample.distance(plain.logits(sample.ids))
    problem = "its logits differ from those of transformers' own modules"
    return sample.compared("library", "equals transformers' own modules to {}", distance, problem)


def _batches(sample: _Sample) -> Check:
    distance = sample.distance(torch.cat([sample.model.logits(row[None]) for row in sample.ids]))
    detail = "a prompt alone has the same logits as in a batch (to {})"
    return sample.compared("batches", detail, distance, "a prompt's logits depend on the other prompts in its batch")


def _padding(sample: _Sample) -> Check:
    """Prompts are never padded; but if masked tokens change the logits, attention masks do not work as they should."""
    model, (batch, length), pad = sample.model, sample.ids.shape, 3
    ids = torch.cat([sample.ids[:, -1:].expand(batch, pad), sample.ids], dim=1)
    positions = torch.arange(-pad, length, device=ids.device).expand(batch, -1)
    mask, positions = (positions >= 0).long(), positions.clamp(min=0)
    inputs = dict(input_ids=ids, attention_mask=mask, position_ids=positions)
    distance = sample.distance(model.kept_logits(model.hf_model(**inputs, use_cache=False, logits_to_keep=1))[:, 0])
    problem = "masked tokens in front of a prompt change its logits"
    return sample.compared("padding", "masked tokens in front change nothing (to {})", distance, problem)


def _bos(sample: _Sample) -> Check:
    encoder = sample.model.encoder
    token, ids = encoder.tokenizer.bos_token_id, sample.ids[0].tolist()
    if token is None:
        return Check("BOS", "this tokenizer defines none; prompts begin with their first token")
    name = encoder.tokens([token])[0]
    if ids[0] != token or ids[1:2] == [token]:
        times = "more than once" if ids[0] == token else "not at all"
        return Check("BOS", f"{name!r} {times}", f"its prompts begin with {name!r} {times}; leave it out of --prefix")
    own = encoder.tokenizer(encoder.examples().text(encoder.template)[0])["input_ids"]
    too = "adds it too" if own[:1] == [token] else "would not add it by itself"
    return Check("BOS", f"every prompt begins with one {name!r}; the tokenizer {too}")


def _attention(sample: _Sample) -> Check:
    """Attention patterns are causal distributions, and the implementation that returns them computes the same logits."""
    model, layers = sample.model, range(sample.model.sizes.layers)
    with capturing(model, attention=layers) as captured:
        distance = sample.distance(model.logits(sample.ids))
    patterns = [captured.attention[i].float() for i in layers]
    sums = max(float((pattern.sum(-1) - 1).abs().max()) for pattern in patterns)
    ahead = max(float(pattern.triu(1).abs().max()) for pattern in patterns)
    allowed = 1e-4 if model.full_precision else 0.02
    detail = f"rows sum to one (to {sums:.1e}), and no token attends to a later one"
    if not sums <= allowed:
        return Check("attention", detail, f"rows of its attention patterns do not sum to one (off by {sums:.2g})")
    if not ahead <= allowed:
        return Check("attention", detail, f"its attention is not causal: later tokens get a weight of {ahead:.2g}")
    return sample.compared("attention", detail, distance, "eager attention computes different logits")


def _components(sample: _Sample) -> Check:
    """Heads and value vectors sum to what the projections write, and attention and MLP to the layer's output."""
    model, layers = sample.model, range(sample.model.sizes.layers)
    errors = []
    with layer_calls(model) as calls, capturing(model, heads=layers, neurons=layers, residual=layers) as captured:
        model.logits(sample.ids)

    def project(site: Site, layer: int, x: Tensor) -> Tensor:
        return model.module(site, layer)(x).to(model.device).float()

    for i in layers:
        each_head, each_neuron = captured.heads[i], captured.neurons[i]
        heads, neurons = project(Site.HEADS, i, each_head.flatten(-2)), project(Site.NEURONS, i, each_neuron)
        # Sum of each head alone through the projection; the bias, which each of them adds, counts once.
        bias = project(Site.HEADS, i, torch.zeros_like(each_head[:1, :1]).flatten(-2))
        sum_of_heads = bias.expand(*each_head.shape[:2], -1).clone()
        for head in range(model.sizes.heads):
            alone = torch.zeros_like(each_head)
            alone[:, :, head] = each_head[:, :, head]
            sum_of_heads += project(Site.HEADS, i, alone.flatten(-2)) - bias
        bias = project(Site.NEURONS, i, torch.zeros_like(each_neuron[:1, :1]))
        sum_of_neurons = each_neuron.to(model.device).float() @ model.value_vectors(i).float() + bias
        sums = {"the value vectors": (sum_of_neurons, neurons), "the slices of heads": (sum_of_heads, heads)}
        if not model.architecture.post_norms:
            before, after = (x.to(model.device).float() for x in (layer_input(*calls[i]), captured.residual[i]))
            sums["attention and MLP"] = (before + heads + neurons, after)
        for name, (summed, whole) in sums.items():
            error = (summed - whole).square().mean().sqrt() / whole.square().mean().sqrt().clamp(min=1e-12)
            errors.append((float(error), f"{name} of layer {i}"))
    worst, where = _worst(errors)
    allowed = EXACT if model.full_precision else 0.05 if not model.quantization else HALF
    problem = "" if worst <= allowed else f"{where} do not add up to what it writes (off by {worst:.2g} of it)"
    return Check("components", f"heads and value vectors add up to each layer's output (to {worst:.1e})", problem)


def _centring(sample: _Sample) -> Check:
    """A constant added to all logits changes neither NL nor the probability of the answer."""
    spread = float(sample.logits.std(-1).mean())
    both = sample.logits, sample.logits + 3 * spread
    nl, nl_moved = (normalized_logit(x, sample.answers) for x in both)
    p, p_moved = (log_probability(x, sample.answers) for x in both)
    off = max(float((nl - nl_moved).abs().max()), float((p - p_moved).abs().max()))
    mean = float(sample.logits.mean(-1).abs().max()) / spread
    detail = f"logits are centred first; uncentred, their mean is up to {mean:.1g} of their spread"
    problem = "" if off <= EXACT else f"centred logits change if a constant is added to all ({off:.2g})"
    return Check("centring", detail, problem)


def _replay(sample: _Sample) -> Check:
    """Replays from every layer against full passes: unedited, with components ablated, and with a neuron's sign flipped."""
    model, ids, s = sample.model, sample.ids, sample.model.sizes
    named, last = list(model.positions.named().items()), ids.shape[1] - 1
    slow = FullPass()
    whole = slow.record(model, ids, 0)
    # A long prefix makes each recording as expensive as a full pass.
    tapes = {name: record(model, ids, at) for name, at in named[: s.layers]}
    at_last = record(model, ids, last, neurons=range(s.layers))
    errors = []
    for layer in range(s.layers):
        name, at = named[layer % len(named)]
        heads, neurons = (torch.zeros(2, n, dtype=torch.bool, device=model.device) for n in (s.heads, s.neurons))
        heads[0, layer % s.heads] = True
        neurons[1, ::2] = True
        edits = [edit(model, site, layer, x, positions=at) for site, x in zip(Site, (heads, neurons), strict=True)]
        unedited, edited = replay(tapes[name], edits, _both).unbind(-1)
        full = slow.replay(whole, edits, _both)[..., 1]
        errors += [(sample.distance(x), f"an unedited replay from layer {layer} and {name} on") for x in unedited]
        moved = edited - full + sample.logits
        errors += [(sample.distance(x), f"an edited replay at layer {layer} and {name}") for x in moved]
        active = at_last.neurons[layer][:, -1].float().abs().sum(0).argmax()
        flipped = (layer, active[None].cpu(), -at_last.neurons[layer][None, :, -1, active], _both)
        difference = replay_neurons(at_last, *flipped)[0, ..., 1] - slow.replay_neurons(whole, *flipped)[0, ..., 1]
        where = f"a replay with neuron L{layer}N{int(active)} edited"
        errors.append((sample.distance(difference + sample.logits), where))
    worst, where = _worst(errors)
    detail = "equals full passes, edited at every layer, to {} of the logits' spread"
    return sample.compared("replay", detail, worst, f"{where} differs from a full pass")


def _both(unedited: Tensor, edited: Tensor) -> Tensor:
    return torch.stack([unedited.expand_as(edited), edited], -1)


def _worst(errors: list[tuple[float, str]]) -> tuple[float, str]:
    """The largest error; NaN counts as larger than any."""
    return max(errors, key=lambda error: math.inf if math.isnan(error[0]) else error[0])


CHECKS = (_logits, _determinism, _library, _bos, _batches, _padding, _attention, _components, _centring, _replay)

"""Whether what arithscope takes for granted holds of a subject: each check compares two ways of computing the same thing.

A check that fails means that results would be wrong without looking wrong. So a run refuses such a subject.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arithscope.models.engine.fast_ops import library_modules
from arithscope.models.engine.replay import record, replay, replay_neurons
from arithscope.models.engine.replicas import replica
from arithscope.models.hooks import Activations, capturing, edit, editing
from arithscope.models.memory import storage
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts
from arithscope.stats.effects import log_probability
from arithscope.stats.faithfulness import normalized_logit
from arithscope.utils.progress import Advance

EXACT, HALF = 1e-3, 0.15  # differences that rounding can make, in float32 and in half precision, relative to the spread
NOISE = 4  # times what rounding is known to do to the model's own logits


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and, if it must not be so, why."""

    name: str
    says: str
    wrong: str = ""


@dataclass(frozen=True)
class _Examined:
    """A subject with a few prompts, and the logits that its own pass gives them."""

    model: Model
    ids: Int[Tensor, "batch length"]
    answers: Int[Tensor, " batch"]
    logits: Float[Tensor, "batch vocabulary"]
    allowed: float

    def apart(self, other: Tensor) -> float:
        """How far other logits of these prompts are from the model's own, in units of their spread over the vocabulary: root
        mean square of the worst prompt. Not a number if any of them is not."""
        spread = float(self.logits.std(-1).mean()) or 1.0
        return float((other - self.logits).square().mean(-1).sqrt().max()) / spread


def soundness(model: Model, noise: float | None = None) -> Iterator[Check]:
    """All checks that take a few passes. `noise` is what rounding does to the model's own logits, where that is known."""
    examples = model.encoder.examples()
    ids = model.encode(examples)
    with torch.no_grad():
        allowed = EXACT if _is_exact(model) else HALF if noise is None else NOISE * noise + EXACT
        seen = _Examined(model, ids, _some_answers(model, examples), model.logits(ids), allowed)
        for check in CHECKS:
            found = check(seen)
            yield found
            if check is _logits and found.wrong:
                return  # nothing can be compared with logits that are no numbers


def self_check(model: Model, *, advance: Advance) -> list[tuple[str, str]]:
    """A unit: the names of failed checks, and why they failed."""
    return [(check.name, check.wrong) for check in soundness(model) if check.wrong]


def tokenisation(model: Model, prompts: Prompts) -> Check:
    """Whether every one of these prompts is read as the tables of its encoder say."""
    wrong = model.encoder.disagreement(prompts)
    says = f"all {len(prompts):,} legal prompts are read as expected"
    if wrong is None:
        return Check("tokenisation", says)
    reason = f"its tokenizer reads {wrong!r} differently from its neighbours; choose another --template"
    return Check("tokenisation", f"{wrong!r} is not read as expected", reason)


def in_float32(model: Model) -> Model | None:
    """The same subject with weights in float32; None where that is not possible, or takes more memory than there is."""
    weights = sum(p.numel() for p in model.hf_model.parameters())
    if model.quantization or model.offloads or len(model.devices) > 1 or 4 * weights > storage(model):
        return None
    wide = copy.deepcopy(model, {id(x): x for x in (model.tokenizer, model.encoder)})
    wide.hf_model.float()
    return wide


@torch.no_grad()
def rounding_noise(model: Model, wide: Model) -> float:
    """How far the logits of a subject are from those that it has in float32, in units of their spread."""
    ids = model.encode(model.encoder.examples())
    return _Examined(wide, ids, ids[:, 0], wide.logits(ids), EXACT).apart(model.logits(ids))


def _is_exact(model: Model) -> bool:
    return torch.finfo(model.hf_model.dtype).bits >= 32 and not model.quantization


def _some_answers(model: Model, prompts: Prompts) -> Tensor:
    """A token of an answer for each prompt; the right one where there is one."""
    known = torch.from_numpy(prompts.answer).clamp(0, model.limit - 1)
    return model.encoder.answer_tokens[known].to(model.device)


def _logits(seen: _Examined) -> Check:
    """Finite, and not the same for all tokens."""
    spread = float(seen.logits.std(-1).min())
    if not torch.isfinite(seen.logits).all():
        reason = "its logits are not finite; try --dtype float32, or load its weights anew"
        return Check("logits", "not finite", reason)
    says = f"finite; they spread by {spread:.2g} over the vocabulary"
    return Check("logits", says, "" if spread > 0 else "its logits are the same for all tokens")


def _determinism(seen: _Examined) -> Check:
    again = seen.model.logits(seen.ids)
    apart = seen.apart(again)
    says = "the same pass gives the same bits" if torch.equal(again, seen.logits) else f"repeated to {apart:.1e}"
    return Check("determinism", says, _too_far(seen, apart, "its logits differ from one pass to the next"))


def _library(seen: _Examined) -> Check:
    """Against the library's modules as they are, without our own ways of computing the same."""
    if seen.model.offloads or seen.model.quantization:
        return Check("library", "not compared: weights are fetched or quantised")
    plain = replica(seen.model)
    library_modules(plain.hf_model)
    apart = seen.apart(plain.logits(seen.ids))
    wrong = _too_far(seen, apart, "its logits differ from those of transformers' own modules")
    return Check("library", f"equals transformers' own modules to {apart:.1e}", wrong)


def _batches(seen: _Examined) -> Check:
    alone = torch.cat([seen.model.logits(row[None]) for row in seen.ids])
    apart = seen.apart(alone)
    says = f"a prompt alone equals the same prompt among others to {apart:.1e}"
    return Check("batches", says, _too_far(seen, apart, "a prompt's logits depend on the prompts beside it"))


def _padding(seen: _Examined) -> Check:
    """Prompts are never padded here; but if what is masked is not left out, the mask is not what it seems."""
    model, (batch, length), pad = seen.model, seen.ids.shape, 3
    ids = torch.cat([seen.ids[:, -1:].expand(batch, pad), seen.ids], dim=1)
    mask = torch.ones_like(ids)
    mask[:, :pad] = 0
    positions = torch.arange(-pad, length, device=ids.device).clamp(min=0).expand(batch, -1)
    output = model.hf_model(
        input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=1
    )
    apart = seen.apart(model.last_logits(output))
    says = f"masked tokens in front change nothing (to {apart:.1e})"
    return Check("padding", says, _too_far(seen, apart, "masked tokens in front of a prompt change its logits"))


def _bos(seen: _Examined) -> Check:
    encoder = seen.model.encoder
    token, ids = encoder.tokenizer.bos_token_id, seen.ids[0].tolist()
    if token is None:
        return Check("BOS", "this tokenizer defines none; prompts begin with their first token")
    name = encoder.tokens([token])[0]
    if ids[0] != token or ids[1:2] == [token]:
        times = "more than once" if ids[0] == token else "not at all"
        return Check("BOS", f"{name!r} {times}", f"its prompts begin with {name!r} {times}; leave it out of --prefix")
    own = encoder.tokenizer(encoder.examples().text(encoder.template)[0])["input_ids"]
    too = "adds it too" if own[:1] == [token] else "would not add it by itself"
    return Check("BOS", f"every prompt begins with one {name!r}; the tokenizer {too}")


def _attention(seen: _Examined) -> Check:
    """Also: the implementation that shows its weights computes the same as the one in use."""
    model, layers = seen.model, range(seen.model.sizes.layers)
    with capturing(model, attention=layers) as found:
        apart = seen.apart(model.logits(seen.ids))
    sums = max(float((found.attention[i].float().sum(-1) - 1).abs().max()) for i in layers)
    ahead = max(float(found.attention[i].float().triu(1).abs().max()) for i in layers)
    allowed = 1e-4 if _is_exact(model) else 0.02
    if not sums <= allowed:
        wrong = f"rows of its attention patterns do not sum to one (off by {sums:.2g})"
    elif not ahead <= allowed:
        wrong = f"its attention looks ahead, with a weight of {ahead:.2g}"
    else:
        wrong = _too_far(seen, apart, "the attention that shows its weights computes something else")
    return Check("attention", f"rows sum to one (to {sums:.1e}), and nothing looks ahead", wrong)


def _pieces(seen: _Examined) -> Check:
    """Heads and value vectors add up to what the projections write, and that to the layer's output."""
    model, layers = seen.model, range(seen.model.sizes.layers)
    written: dict[tuple[Site, int], Tensor] = {}
    entering: list[Tensor] = []

    def watching(site: Site, layer: int) -> Callable[..., None]:
        return lambda module, args, output: written.__setitem__((site, layer), output.to(model.device))

    handles = [model.module(s, i).register_forward_hook(watching(s, i)) for s in Site for i in layers]
    handles.append(
        model.layers[0].register_forward_pre_hook(
            lambda module, args, kwargs: entering.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
    )
    try:
        with capturing(model, heads=layers, neurons=layers, residual=layers) as found:
            model.logits(seen.ids)
    finally:
        for handle in handles:
            handle.remove()
    streams = [x.to(model.device).float() for x in (entering[0], *(found.residual[i] for i in layers))]
    off = []
    for i in layers:
        heads, neurons = written[Site.HEADS, i].float(), written[Site.NEURONS, i].float()
        pieces = {
            "the value vectors": (_from_value_vectors(model, found, i), neurons),
            "the slices of heads": (_from_heads(model, found, i), heads),
        }
        if not model.architecture.post_norms:
            pieces["attention and MLP"] = (streams[i] + heads + neurons, streams[i + 1])
        for name, (summed, whole) in pieces.items():
            apart = (summed - whole).square().mean().sqrt() / whole.square().mean().sqrt().clamp(min=1e-12)
            off.append((float(apart), f"{name} of layer {i}"))
    worst, where = _worst(off)
    allowed = EXACT if _is_exact(model) else 0.05 if not model.quantization else HALF
    wrong = "" if worst <= allowed else f"{where} do not add up to what it writes (off by {worst:.2g} of it)"
    return Check("pieces", f"heads and value vectors add up to each layer's output (to {worst:.1e})", wrong)


def _from_value_vectors(model: Model, found: Activations, layer: int) -> Tensor:
    neurons = found.neurons[layer]
    silent = model.module(Site.NEURONS, layer)(torch.zeros_like(neurons[:1, :1])).to(model.device).float()
    return neurons.to(model.device).float() @ model.value_vectors(layer).float() + silent


def _from_heads(model: Model, found: Activations, layer: int) -> Tensor:
    """Each head alone through the projection, summed; what it writes without any head is in every one of them."""
    heads, project = found.heads[layer], model.module(Site.HEADS, layer)
    silent = project(torch.zeros_like(heads[:1, :1]).flatten(-2)).to(model.device).float()
    total = silent.expand(*heads.shape[:2], -1).clone()
    for i in range(model.sizes.heads):
        alone = torch.zeros_like(heads)
        alone[:, :, i] = heads[:, :, i]
        total += project(alone.flatten(-2)).to(model.device).float() - silent
    return total


def _centring(seen: _Examined) -> Check:
    """NL and the probability of the answer do not notice a number that is added to all logits."""
    spread = float(seen.logits.std(-1).mean())
    moved = seen.logits + 3 * spread
    nl, nl_moved = (normalized_logit(x, seen.answers) for x in (seen.logits, moved))
    p, p_moved = (log_probability(x, seen.answers) for x in (seen.logits, moved))
    off = max(float((nl - nl_moved).abs().max()), float((p - p_moved).abs().max()))
    mean = float(seen.logits.mean(-1).abs().max()) / spread
    says = f"logits are centred first; uncentred, their mean is up to {mean:.1g} of their spread"
    return Check("centring", says, "" if off <= EXACT else f"centred logits notice what is added to all ({off:.2g})")


def _replay(seen: _Examined) -> Check:
    """At every layer: the unedited replay from there, one with a head or half of the neurons silenced at one of the named
    positions, and one with a single neuron turned around at the last; each against a full pass with the same edit."""
    model, (batch, length) = seen.model, seen.ids.shape
    named, n_heads, n_neurons = list(model.positions.named().items()), model.sizes.heads, model.sizes.neurons
    off = []
    for layer in range(model.sizes.layers):
        name, at = named[layer % len(named)]
        heads, neurons = (torch.zeros(2, n, dtype=torch.bool, device=model.device) for n in (n_heads, n_neurons))
        heads[0, layer % n_heads] = True
        neurons[1, ::2] = True
        edits = [
            edit(model, Site.HEADS, layer, heads, positions=at),
            edit(model, Site.NEURONS, layer, neurons, positions=at),
        ]
        unedited, edited = replay(record(model, seen.ids, at), edits, _both).unbind(-1)
        with editing(model, edits, batch):
            full = model.logits(seen.ids.repeat(2, 1)).view(2, batch, -1)
        off += [(seen.apart(x), f"an unedited replay from layer {layer} and {name} on") for x in unedited]
        off += [(seen.apart(x), f"an edited replay at layer {layer} and {name}") for x in edited - full + seen.logits]
        tape = record(model, seen.ids, length - 1, neurons=[layer])
        active = tape.neurons[layer][:, -1].float().abs().sum(0).argmax()
        value = -tape.neurons[layer][:, -1, active]
        one = replay_neurons(tape, layer, active[None].cpu(), value[None], lambda before, after: after)[0]
        turned = edit(model, Site.NEURONS, layer, [int(active)], positions=length - 1, values=value[:, None, None])
        with editing(model, [turned], batch):
            full = model.logits(seen.ids)
        off.append((seen.apart(one - full + seen.logits), f"a replay with neuron L{layer}N{int(active)} edited"))
    worst, where = _worst(off)
    wrong = _too_far(seen, worst, f"{where} differs from a full pass")
    return Check("replay", f"equals full passes, edited at every layer, to {worst:.1e} of the logits' spread", wrong)


def _both(before: Tensor, after: Tensor) -> Tensor:
    """Of each variant the unedited logits and the edited ones, whether variants come together or one at a time."""
    return torch.stack([before.expand_as(after), after], -1)


def _worst(off: list[tuple[float, str]]) -> tuple[float, str]:
    """The largest difference and where it is; one that is not a number is larger than any."""
    return max(off, key=lambda one: math.inf if math.isnan(one[0]) else one[0])


def _too_far(seen: _Examined, apart: float, what: str) -> str:
    if apart <= seen.allowed:
        return ""
    return f"{what} by {apart:.2g} of the logits' spread, where rounding explains {seen.allowed:.2g}"


CHECKS: tuple[Callable[[_Examined], Check], ...] = (
    _logits,
    _determinism,
    _library,
    _bos,
    _batches,
    _padding,
    _attention,
    _pieces,
    _centring,
    _replay,
)

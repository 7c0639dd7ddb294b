"""Models whose parts lie in several places, and all that must be the same of them as of a model on one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from torch import Tensor

from arithscope.prompts import legal_prompts, random_source, sample, square
from arithscope.subject.contributions import logit_contributions
from arithscope.subject.edits import Activations, capturing, cutting, edit, editing, gradients
from arithscope.subject.linearise import linearised
from arithscope.subject.load import LoadOptions, load
from arithscope.subject.replay import record, replay, replay_neurons
from arithscope.subject.subject import Site, Subject
from arithscope.subject.sweep import mean_activations, sweep

Place = str | int | torch.device


@cache
def plain(name: str) -> Subject:
    """A subject on the CPU."""
    return load(name, options=LoadOptions(device="cpu"))


@cache
def wanted(name: str, what: Any) -> dict[str, Tensor]:
    """What it says of one thing."""
    return what(plain(name))


def places(subject: Subject, of_layer: Callable[[int], Place], rest: Place) -> dict[str, Place]:
    """A device map: a place for each layer, and one for the embedding, the final norm and the head."""
    layers = subject.architecture.layers
    base = layers.rpartition(".")[0]
    ends = [f"{base}.{name}" for name, _ in subject.model.get_submodule(base).named_children()]
    where = {f"{layers}.{i}": of_layer(i) for i in range(subject.sizes.layers)}
    return {**{name: rest for name in (*ends, head(subject)) if name != layers}, **where}


def head(subject: Subject) -> str:
    """Its name, which for one family depends on the version of transformers."""
    last = subject.model.get_output_embeddings()
    [name] = [name for name, module in subject.model.named_modules() if module is last]
    return name


def dispatched(subject: Subject, where: dict[str, Place], main: str | torch.device) -> Subject:
    """The same subject, spread by accelerate alone, with hooks whatever the map says."""
    model = dispatch_model(
        subject.model, where, main_device=main, skip_keys=subject.model._skip_keys_device_placement, force_hooks=True
    )
    return Subject(model, subject.tokenizer, subject.identity, subject.encoder.template)


def some_ids(subject: Subject, n: int = 6) -> Tensor:
    top = min(300, subject.limit - 1)
    return subject.encode(sample(legal_prompts("+-", top, subject.limit), n, random_source(0, "ids")))


def by_layer(seen: Activations) -> dict[str, Tensor]:
    return {
        f"{site} {layer}": x
        for site in ("heads", "neurons", "residual", "attention")
        for layer, x in getattr(seen, site).items()
    }


@torch.no_grad()
def passes(subject: Subject) -> dict[str, Tensor]:
    """Logits and activations: untouched, edited in several layers, and with positions cut off."""
    ids, layers, last = some_ids(subject), range(subject.sizes.layers), subject.positions.last
    with capturing(subject, heads=layers, neurons=layers, residual=layers, attention=layers) as seen:
        found = {"eager logits": subject.logits(ids)}
    found |= by_layer(seen) | {"logits": subject.logits(ids), "embeddings": subject.embed(ids)}
    edits = [edit(subject, Site.HEADS, i, [0, 2], positions=[last - 1, last], values=0.1) for i in layers]
    patch = seen.neurons[1].roll(1, 0)[:, -1:]
    edits += [edit(subject, Site.NEURONS, 1, positions=last, values=patch)]
    with editing(subject, edits, len(ids)), capturing(subject, neurons=layers) as edited:
        found["edited logits"] = subject.logits(ids)
    found |= {f"edited {name}": x for name, x in by_layer(edited).items()}
    with cutting(subject, layers, last, [0, 1]):
        found["cut"] = subject.logits(ids)
    return found


@torch.no_grad()
def replays(subject: Subject) -> dict[str, Tensor]:
    """Logits of many variants: of heads and neurons in several layers at once, and of single neurons in each layer."""
    ids, layers, positions = some_ids(subject), range(subject.sizes.layers), subject.positions
    with capturing(subject, heads=layers, neurons=layers) as other:
        subject.logits(ids.roll(1, 0))
    found: dict[str, Tensor] = {}
    one_head = torch.eye(subject.sizes.heads, dtype=torch.bool)
    for first in (positions.op1, positions.last):
        fixed = [edit(subject, Site.HEADS, i, [1], positions=first, values=0.0) for i in (0, len(layers) - 1)]
        tape = record(subject, ids, first, neurons=layers, edits=fixed)
        found |= {f"tape {first} {i}": x for i, x in enumerate((tape.logits, *tape.inputs))}
        for i in layers:
            at = other.heads[i][:, first : first + 1]
            edits = [
                edit(subject, Site.HEADS, i, one_head, positions=first, values=at),
                edit(subject, Site.NEURONS, len(layers) - 1, [3, 4], positions=positions.last, values=0.5),
            ]
            found[f"heads {first} {i}"] = replay(tape, edits, _edited)
            which = torch.tensor([0, 5, 17])
            values = other.neurons[i][:, first, which.to(other.neurons[i].device)].T
            found[f"neurons {first} {i}"] = replay_neurons(tape, i, which, values, _edited, first)
    return found


def _edited(before: Tensor, after: Tensor) -> Tensor:
    return after - before


def sweeps(subject: Subject) -> dict[str, Tensor]:
    layers, prompts = range(subject.sizes.layers), square("+-", 6)
    means = mean_activations(subject, prompts)
    found = {"mean heads": means.heads, "mean neurons": means.neurons}
    logits = torch.zeros(len(prompts), subject.sizes.vocabulary)
    residual = torch.zeros(len(layers), len(prompts), subject.sizes.width)
    for block in sweep(subject, prompts, neurons=[0], residual=layers):
        logits[block.rows] = block.logits.cpu()
        for i in layers:
            residual[i, block.rows] = block.seen.residual[i].cpu()
    return {**found, "swept logits": logits, "swept residual": residual}


@torch.no_grad()
def weights(subject: Subject) -> dict[str, Tensor]:
    """What is read off weights, and the parts of a logit."""
    ids = some_ids(subject)
    tokens = subject.logits(ids).argmax(-1)
    vectors = {f"value vectors {i}": subject.value_vectors(i) for i in range(subject.sizes.layers)}
    found = {**vectors, "lens": subject.logit_lens(vectors["value vectors 1"][:9])}
    parts = logit_contributions(subject, ids, tokens)
    found |= {name: x for name, x in vars(parts).items() if isinstance(x, Tensor)}
    return {**found, "left over": parts.left_over, "direction": subject.lens_direction(tokens)}


def _measures(logits: Tensor) -> Tensor:
    return torch.stack([logits[:, 3], logits.logsumexp(-1)])


def slopes(subject: Subject) -> dict[str, Tensor]:
    """Gradients: plain ones, from given embeddings, and of the linearised model."""
    ids, layers = some_ids(subject), range(subject.sizes.layers)
    with torch.no_grad():
        between = torch.lerp(subject.embed(ids), subject.embed(ids.roll(1, 0)), 0.3)
    found: dict[str, Tensor] = {}
    sites: dict[str, Any] = dict(heads=layers, neurons=layers, residual=layers)
    for name, start in (("plain", None), ("between", between)):
        seen, slope = gradients(subject, ids, _measures, **sites, embeddings=start)
        found |= {f"{name} {at}": x for at, x in by_layer(seen).items()}
        found |= {f"{name} slope {at}": x for at, x in by_layer(slope).items()}
    with linearised(subject):
        _, slope = gradients(subject, ids, _measures, neurons=layers)
    return found | {f"linear slope {at}": x for at, x in by_layer(slope).items()}


EVERYTHING: tuple[Callable[[Subject], dict[str, Tensor]], ...] = (passes, replays, sweeps, weights, slopes)


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    """Within a tolerance of each one's size."""
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        difference = float((found[name].cpu() - want.cpu()).abs().max())
        assert difference <= tolerance * max(1.0, float(want.abs().max())), f"{name} differs by {difference}"


def assert_alike(ours: Any, theirs: Any, at: str = "", tolerance: float = 1e-3) -> None:
    """Of summaries: the same but for the noise of other batches."""
    assert type(ours) is type(theirs), at
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), at
        for key in ours:
            assert_alike(ours[key], theirs[key], f"{at}/{key}", tolerance)
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance, nan_ok=True), at
    else:
        assert ours == theirs, at

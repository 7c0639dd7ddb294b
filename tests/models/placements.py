"""Models spread over several devices, and everything about them that must equal a model on one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from accelerate import dispatch_model
from torch import Tensor

from arithscope.models.engine.replay import record, replay, replay_neurons
from arithscope.models.engine.sweep import mean_activations, sweep
from arithscope.models.hooks import Activations, blocking_attention, capturing, edit, editing, gradients, linearized
from arithscope.models.load import LoadOptions, load
from arithscope.models.logit_attribution import direct_logit_attribution
from arithscope.models.model import Model, Site
from arithscope.prompts import legal_prompts, operand_grid, random_source, sample

Device = str | int | torch.device


@cache
def plain(name: str) -> Model:
    """A model on the CPU."""
    return load(name, options=LoadOptions(device="cpu"))


@cache
def wanted(name: str, what: Any) -> dict[str, Tensor]:
    """The results of one function for a model on the CPU."""
    return what(plain(name))


def places(model: Model, of_layer: Callable[[int], Device], rest: Device) -> dict[str, Device]:
    """A device map: a device for each layer, and one for the embedding, the final norm and the head."""
    layers = model.architecture.layers
    base = layers.rpartition(".")[0]
    ends = [f"{base}.{name}" for name, _ in model.hf_model.get_submodule(base).named_children()]
    where = {f"{layers}.{i}": of_layer(i) for i in range(model.sizes.layers)}
    return {**{name: rest for name in (*ends, head(model)) if name != layers}, **where}


def head(model: Model) -> str:
    """Name of the unembedding, which for one family depends on the version of transformers."""
    last = model.hf_model.get_output_embeddings()
    [name] = [name for name, module in model.hf_model.named_modules() if module is last]
    return name


def dispatched(model: Model, where: dict[str, Device], main: str | torch.device) -> Model:
    """The same model, dispatched by accelerate itself, always with hooks."""
    hf_model = dispatch_model(
        model.hf_model, where, main_device=main, skip_keys=model.hf_model._skip_keys_device_placement, force_hooks=True
    )
    return Model(hf_model, model.tokenizer, model.identity, model.encoder.template)


def some_ids(model: Model, n: int = 6) -> Tensor:
    top = min(300, model.limit - 1)
    return model.encode(sample(legal_prompts("+-", top, model.limit), n, random_source(0, "ids")))


def by_layer(seen: Activations) -> dict[str, Tensor]:
    return {
        f"{site} {layer}": x
        for site in ("heads", "neurons", "residual", "attention")
        for layer, x in getattr(seen, site).items()
    }


@torch.no_grad()
def passes(model: Model) -> dict[str, Tensor]:
    """Logits and activations: plain, edited in several layers, and with attention blocked."""
    ids, layers, last = some_ids(model), range(model.sizes.layers), model.positions.final
    with capturing(model, heads=layers, neurons=layers, residual=layers, attention=layers) as seen:
        found = {"eager logits": model.logits(ids)}
    found |= by_layer(seen) | {"logits": model.logits(ids), "embeddings": model.embed(ids)}
    edits = [edit(model, Site.HEADS, i, [0, 2], positions=[last - 1, last], values=0.1) for i in layers]
    patch = seen.neurons[1].roll(1, 0)[:, -1:]
    edits += [edit(model, Site.NEURONS, 1, positions=last, values=patch)]
    with editing(model, edits, len(ids)), capturing(model, neurons=layers) as edited:
        found["edited logits"] = model.logits(ids)
    found |= {f"edited {name}": x for name, x in by_layer(edited).items()}
    with blocking_attention(model, layers, last, [0, 1]):
        found["blocked attention"] = model.logits(ids)
    return found


@torch.no_grad()
def replays(model: Model) -> dict[str, Tensor]:
    """Logits of many variants: of heads and neurons in several layers at once, and of single neurons in each layer."""
    ids, layers, positions = some_ids(model), range(model.sizes.layers), model.positions
    with capturing(model, heads=layers, neurons=layers) as other:
        model.logits(ids.roll(1, 0))
    found: dict[str, Tensor] = {}
    one_head = torch.eye(model.sizes.heads, dtype=torch.bool)
    for first in (positions.op1, positions.final):
        fixed = [edit(model, Site.HEADS, i, [1], positions=first, values=0.0) for i in (0, len(layers) - 1)]
        tape = record(model, ids, first, neurons=layers, edits=fixed)
        found |= {f"tape {first} {i}": x for i, x in enumerate((tape.logits, *tape.inputs))}
        for i in layers:
            at = other.heads[i][:, first : first + 1]
            edits = [
                edit(model, Site.HEADS, i, one_head, positions=first, values=at),
                edit(model, Site.NEURONS, len(layers) - 1, [3, 4], positions=positions.final, values=0.5),
            ]
            found[f"heads {first} {i}"] = replay(tape, edits, _edited)
            which = torch.tensor([0, 5, 17])
            values = other.neurons[i][:, first, which.to(other.neurons[i].device)].T
            found[f"neurons {first} {i}"] = replay_neurons(tape, i, which, values, _edited, first)
    return found


def _edited(before: Tensor, after: Tensor) -> Tensor:
    return after - before


def sweeps(model: Model) -> dict[str, Tensor]:
    layers, prompts = range(model.sizes.layers), operand_grid("+-", 6)
    means = mean_activations(model, prompts)
    found = {"mean heads": means.heads, "mean neurons": means.neurons}
    logits = torch.zeros(len(prompts), model.sizes.vocabulary)
    residual = torch.zeros(len(layers), len(prompts), model.sizes.width)
    for block in sweep(model, prompts, neurons=[0], residual=layers):
        logits[block.rows] = block.logits.cpu()
        for i in layers:
            residual[i, block.rows] = block.activations.residual[i].cpu()
    return {**found, "swept logits": logits, "swept residual": residual}


@torch.no_grad()
def weights(model: Model) -> dict[str, Tensor]:
    """Everything that is read off weights, and direct logit attribution."""
    ids = some_ids(model)
    tokens = model.logits(ids).argmax(-1)
    vectors = {f"value vectors {i}": model.value_vectors(i) for i in range(model.sizes.layers)}
    found = {**vectors, "lens": model.logit_lens(vectors["value vectors 1"][:9])}
    parts = direct_logit_attribution(model, ids, tokens)
    found |= {name: x for name, x in vars(parts).items() if isinstance(x, Tensor)}
    return {**found, "unexplained": parts.unexplained, "direction": model.logit_lens_direction(tokens)}


def _measures(logits: Tensor) -> Tensor:
    return torch.stack([logits[:, 3], logits.logsumexp(-1)])


def slopes(model: Model) -> dict[str, Tensor]:
    """Gradients: plain ones, from given embeddings, and of the linearised model."""
    ids, layers = some_ids(model), range(model.sizes.layers)
    with torch.no_grad():
        between = torch.lerp(model.embed(ids), model.embed(ids.roll(1, 0)), 0.3)
    found: dict[str, Tensor] = {}
    sites: dict[str, Any] = dict(heads=layers, neurons=layers, residual=layers)
    for name, start in (("plain", None), ("between", between)):
        seen, slope = gradients(model, ids, _measures, **sites, embeddings=start)
        found |= {f"{name} {at}": x for at, x in by_layer(seen).items()}
        found |= {f"{name} slope {at}": x for at, x in by_layer(slope).items()}
    with linearized(model):
        _, slope = gradients(model, ids, _measures, neurons=layers)
    return found | {f"linear slope {at}": x for at, x in by_layer(slope).items()}


EVERYTHING: tuple[Callable[[Model], dict[str, Tensor]], ...] = (passes, replays, sweeps, weights, slopes)


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    """Within a tolerance relative to the largest entry."""
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        difference = float((found[name].cpu() - want.cpu()).abs().max())
        assert difference <= tolerance * max(1.0, float(want.abs().max())), f"{name} differs by {difference}"

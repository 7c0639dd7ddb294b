"""Stages that sweep over the operand square: some of its prompts are asked again, one whole prompt at a time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.common.linear_probes import EPOCHS
from arithscope.experiments.common.samples import batches, probe_split
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.patterns import LARGEST, TOP_TOKENS, ActivationMaps
from arithscope.experiments.probe import ALL, Probe, accuracy_table, chances, tested_probes
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import Prompts, legal_prompts, operand_grid
from arithscope.results.asking import ask
from arithscope.verify.compare import Noise, Tally
from arithscope.verify.inputs import Inputs, some_of

PROMPTS = 200  # that are asked again
WHOLE_SQUARE = 4000  # prompts: means over no more are taken anew over all of them
STANDARD_ERRORS = 5.0  # that a mean over a sample may be away, over all components of a layer, at a position
PATTERN_NEURONS = 32
SUMS = Noise("of sums over prompts", 1e-6, 1e-9)
FLOAT16 = 2.0**-10  # of a pattern's activation: as they are stored


def check_means(inputs: Inputs, stored: MeanActivations, tally: Tally) -> None:
    """Answers to some prompts. Means at op1 and operator, where few different things can have been read. Those behind are taken
    over all prompts if there are few; else a sample's mean must be as near as such a mean should be."""
    model, noise = inputs.model, tally.noise
    prompts = operand_grid(stored.operators, stored.max_operand)
    tally.same("operators", stored.operators, list(model.encoder.operators))
    tally.same("max_operand", stored.max_operand, inputs.settings.max_operand)
    rows = some_of(inputs.chooser("means"), len(prompts), PROMPTS)
    asked = ask(model, prompts[rows])
    tally.did(f"the answers to {len(rows)} prompts")
    legal = prompts[rows].legal(model.limit)
    p = np.where(legal, asked.p_answer, np.nan)
    tally.close("p_answer", stored.p_answer[rows], p, noise, lambda i: str(asked.prompt[i]))
    sure = _sure(model, prompts[rows], noise.tie)
    tally.table(
        "answers",
        pd.DataFrame({"predicted": stored.predicted[rows][sure]}),
        asked[["predicted"]][sure].astype(np.int32),
    )
    at = model.positions
    if len(prompts) <= WHOLE_SQUARE:
        tally.did("the mean activations at all positions")
        _same_means(tally, model, stored, prompts, range(at.op1, model.encoder.length))
        return
    beginnings = prompts[prompts.op2 == 0]
    tally.did("the mean activations at op1 and operator, and those behind on a sample")
    _same_means(tally, model, stored, beginnings, range(at.op1, at.op2))
    _near_means(tally, model, stored, prompts[rows], range(at.op2, model.encoder.length))


def _same_means(tally: Tally, model: Model, stored: MeanActivations, prompts: Prompts, at: range) -> None:
    for name, mean, _ in _moments(model, prompts, at):
        kept = getattr(stored, name)[:, at.start : at.stop]
        for layer, (a, b) in enumerate(zip(kept, mean, strict=True)):
            scale = np.abs(b).mean() * tally.noise.relative
            tally.close(f"mean {name} of layer {layer}", a, b, tally.noise, more=scale)


def _near_means(tally: Tally, model: Model, stored: MeanActivations, prompts: Prompts, at: range) -> None:
    sampling = Noise("of a sample of prompts, in its standard errors", 0.0, STANDARD_ERRORS)
    for name, mean, variance in _moments(model, prompts, at):
        kept = getattr(stored, name)[:, at.start : at.stop]
        axes = tuple(range(2, mean.ndim))
        away = np.square(kept - mean).sum(axes) / np.maximum(variance.sum(axes) / len(prompts), 1e-30)
        tally.close(f"mean {name}", np.zeros_like(away), np.sqrt(away), sampling)


@torch.no_grad()
def _moments(model: Model, prompts: Prompts, at: range) -> list[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Mean and variance of heads and of neurons at some positions: [layers, positions, …] each."""
    layers = range(model.sizes.layers)

    def sums(x: torch.Tensor) -> torch.Tensor:
        kept = x[:, at.start : at.stop].double()
        return torch.stack([kept.sum(0), kept.square().sum(0)]).cpu()

    totals: dict[str, torch.Tensor] = {}
    for _, batch in batches(model, prompts, 0):
        with capturing(model, heads=layers, neurons=layers, keep=sums) as seen:
            model.logits(model.encode(batch))
        for name, found in (("heads", seen.heads), ("neurons", seen.neurons)):
            every = torch.stack([found[i] for i in layers], dim=1)
            totals[name] = totals[name] + every if name in totals else every
    moments = []
    for name, (first, second) in totals.items():
        mean = first / len(prompts)
        moments.append((name, mean.numpy(), (second / len(prompts) - mean**2).numpy()))
    return moments


@torch.no_grad()
def _sure(model: Model, prompts: Prompts, tie: float) -> NDArray[np.bool_]:
    """Where the first token is clearly ahead of the second."""
    found = np.empty(len(prompts), dtype=np.bool_)
    for rows, batch in batches(model, prompts, 0):
        logits = model.logits(model.encode(batch))
        first, second = logits.topk(2, dim=-1).values.T
        found[rows] = (first - second >= tie * (first - logits.mean(-1))).cpu().numpy()
    return found


def check_probe(inputs: Inputs, stored: Probe, tally: Tally) -> None:
    """Two probes are trained again: one at the last position, and one elsewhere."""
    model, s, random = inputs.model, inputs.settings, inputs.chooser("probe")
    prompts, training = probe_split(inputs["accuracy"], s.sizes, s.seed)
    positions = [p for p in model.positions.named() if p != "last"]
    chosen = [("last", int(random.integers(model.sizes.layers)))]
    chosen.append((str(random.choice(positions)), int(random.integers(model.sizes.layers))))
    tested = prompts[training:]
    # A training amplifies the last digits: of the test prompts, a few near a border may fall to the other side.
    flips = max(2 / max(1, len(tested)), 0.01 if tally.noise.relative <= 1e-3 else 0.05)
    noise = Noise(f"a few test prompts after {EPOCHS} epochs of training", 0.0, flips)
    for position, layer in chosen:
        right = tested_probes(model, prompts, training, position, [layer], s.seed, advance=lambda n: None)
        every_layer = accuracy_table(tested, [position], np.repeat(right, layer + 1, axis=0)[None], s.seed)
        table = every_layer[every_layer.layer == layer].reset_index(drop=True)
        few = np.maximum(2 / table.n - flips, 0.0)  # of an operator with few prompts one flip is much
        tally.rows("accuracy", stored.table, table.assign(allowed=few), ["operator", "position", "layer"], noise)
    tally.did(f"the probes {' and '.join(f'behind layer {layer} at {position}' for position, layer in chosen)}")
    tally.same("chance", stored.chance, chances(prompts[:training], tested))
    tally.same("training_prompts", stored.training_prompts, training)
    rows = stored.table[(stored.table.operator == ALL) & (stored.table.position == "last")]
    last = rows.sort_values("layer").value.to_numpy()
    tally.same("best_layer", stored.best_layer, int(last.argmax()))
    tally.same("first_answer_layer", stored.first_answer_layer, int(np.argmax(last >= last.max() / 2)))


def check_patterns(inputs: Inputs, stored: ActivationMaps, tally: Tally) -> None:
    """Some neurons of each operator on some prompts; their value vectors' logits; and what their patterns tell."""
    model, noise = inputs.model, tally.noise
    top = inputs["topk"].top.rename(columns={"value": "effect"}).reset_index(drop=True)
    listed = ["operator", "layer", "neuron", "rank", "effect"]
    tally.table("neurons", stored.neurons[listed], top[listed])
    tally.same("max_operand", stored.max_operand, inputs.settings.max_operand)
    total = 0
    for operator in stored.operators:
        random, rows = inputs.chooser("patterns", operator), stored.rows(operator)
        places = rows.start + some_of(random, rows.stop - rows.start, PATTERN_NEURONS)
        prompts = operand_grid(operator, stored.max_operand)
        prompts = prompts[some_of(random, len(prompts), PROMPTS)]
        mine = stored.neurons.iloc[places]
        seen = _activations(model, prompts, mine.layer.to_numpy(), mine.neuron.to_numpy())
        kept = np.asarray(stored.activations[places][:, prompts.op1, prompts.op2], dtype=np.float64)
        scale = np.abs(seen).max(1, keepdims=True) * (noise.relative + FLOAT16)
        tally.close("activations", kept, seen, noise, more=scale)
        written = np.stack([_written(model, int(i), int(n)) for i, n in zip(mine.layer, mine.neuron, strict=True)])
        logits = np.asarray(stored.logits[places])
        tally.close("logits", logits, written, noise, more=np.abs(written).max(1, keepdims=True) * noise.relative)
        tally.rows("neurons", stored.neurons, _told(model, stored, places), listed[:3], SUMS)
        total += len(places)
    tally.did(
        f"{total} neurons on {PROMPTS} prompts of their operator, their value vectors, and what their patterns tell"
    )


@torch.no_grad()
def _activations(
    model: Model, prompts: Prompts, layers: NDArray[np.int64], neurons: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[neurons, prompts] at the last position."""
    found = np.empty((len(neurons), len(prompts)))
    for rows, batch in batches(model, prompts, 0):
        with capturing(model, neurons=sorted(set(layers.tolist())), keep=lambda x: x[:, -1].float().cpu()) as seen:
            model.logits(model.encode(batch))
        for i, (layer, neuron) in enumerate(zip(layers.tolist(), neurons.tolist(), strict=True)):
            found[i, rows] = seen.neurons[layer][:, neuron].clamp(-LARGEST, LARGEST).numpy()
    return found


@torch.no_grad()
def _written(model: Model, layer: int, neuron: int) -> NDArray[np.float64]:
    """The lens's logits of all numbers, number by number."""
    vector = model.value_vectors(layer)[neuron].float()
    return (model.logit_lens_direction(model.encoder.answer_tokens) @ vector).double().cpu().numpy()


def _told(model: Model, stored: ActivationMaps, places: NDArray[np.int64]) -> pd.DataFrame:
    """What the patterns of some neurons of an operator tell, from their definitions."""
    rows = []
    for place in places:
        row = stored.neurons.iloc[place]
        prompts = legal_prompts(str(row.operator), stored.max_operand, model.limit)
        active = np.asarray(stored.activations[place], dtype=np.float64)[prompts.op1, prompts.op2]
        logits = np.asarray(stored.logits[place], dtype=np.float64)
        codes = {"op1": prompts.op1, "op2": prompts.op2, "result": prompts.answer}
        told = {name: _share_told(active, code) for name, code in codes.items()}
        told["alignment"] = _correlation(active, logits[prompts.answer])
        told["direct"] = bool(told["result"] > max(told["op1"], told["op2"]) and told["alignment"] > 0)
        named = {name: row[name] for name in ("operator", "layer", "neuron")}
        rows.append({**named, **told, "tokens": np.argsort(-logits, kind="stable")[:TOP_TOKENS].tolist()})
    return pd.DataFrame(rows)


def _share_told(values: NDArray[np.float64], code: NDArray[np.int64]) -> float:
    """The correlation ratio, corrected for the number of groups: what is left around their means, a degree of freedom each."""
    if np.ptp(values) == 0:
        return 0.0
    counts = np.bincount(code)
    left = values - (np.bincount(code, values) / np.maximum(counts, 1))[code]
    groups = int((counts > 0).sum())
    around = values - values.mean()
    return 1 - float(left @ left) / max(len(values) - groups, 1) / (float(around @ around) / (len(values) - 1))


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else 0.0

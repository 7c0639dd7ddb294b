"""How much replay saves on this machine with this model: the exact effect of single neurons, computed in several ways.

    one by one        a full pass for every neuron and prompt
    TransformerLens   a full pass over all prompts for every neuron, as its users patch; where it is installed
    batched           full passes over as many neurons × prompts as fit
    replay            only what the edit can reach

All ways must agree before anything is timed. Each is timed on as many neurons as it manages in its share of the time;
where those are few, replay is rated too low, since an unedited variant leads each of its chunks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.models.engine.replay import Reduce, record, replay_neurons
from arithscope.models.flops import first_layer_run, row_operations
from arithscope.models.hooks import Edit, capturing, editing
from arithscope.models.memory import rows_that_fit
from arithscope.models.model import Model, Site
from arithscope.models.transformer_lens import Lens, NoLens
from arithscope.pipeline.runner import device_name
from arithscope.prompts import OPERATORS, counterfactuals, legal_prompts, random_source, sample
from arithscope.stats.effects import effect
from arithscope.utils.progress import Progress

PROMPTS, SECONDS = 50, 45.0
REPEATS = 5  # of which the median counts
LAYERS = 3  # measured unless others are asked for
CHECKED = 2  # neurons whose logits must agree
ALONE = 4  # prompts, where each takes a pass of its own
ONE_BY_ONE, LENS, BATCHED, REPLAY = "one by one", "TransformerLens", "batched", "replay"
EXACT_TOLERANCE, HALF_TOLERANCE = 1e-2, 0.25  # of how far the edit itself moves the logits

Way = Callable[[Tensor], Tensor]  # neurons → their effects


@dataclass(frozen=True)
class LayerRates:
    """Neurons × prompts per second for neurons of one layer, by way; and how fast replay computed."""

    layer: int
    rates: dict[str, float]
    tflops: float  # 10¹² operations a second, in the layers that were replayed and the unembedding

    def ratio(self, way: str) -> float:
        return self.rates[REPLAY] / self.rates[way]


@dataclass(frozen=True)
class Bench:
    model: str
    device: str
    dtype: str
    torch: str
    arithscope: str
    prompts: int
    layers: tuple[LayerRates, ...]
    lens: str  # why TransformerLens is not among the ways; empty if it is
    upper_half: tuple[int, int]  # first and last layer of what is estimated
    estimates: dict[str, float]  # seconds for all neurons of these layers on PROMPTS prompts of each operator, by way

    @property
    def ways(self) -> list[str]:
        return list(self.estimates)

    def as_json(self) -> dict[str, Any]:
        layers = [
            {**asdict(row), "replay_over": {way: row.ratio(way) for way in self.ways if way != REPLAY}}
            for row in self.layers
        ]
        return {**asdict(self), "layers": layers}


class Task:
    """Patch single neurons of a layer at the last position with a counterfactual's activation."""

    def __init__(self, model: Model, prompts: int, layer: int):
        pool = legal_prompts("+", min(300, model.limit - 1), model.limit)
        chosen = sample(pool, prompts, random_source(0, "benchmark"))
        others = counterfactuals(chosen, pool, random_source(0, "benchmark counterfactuals"))
        self.model, self.layer, self.last = model, layer, model.positions.last
        self.ids, self.answer, self.other = model.encode(chosen), model.answers(chosen), model.answers(others)
        with torch.no_grad(), capturing(model, neurons=[layer], keep=lambda x: x[:, -1].clone()) as seen:
            model.logits(model.encode(others))
        self.values = seen.neurons[layer].T.to(model.device)  # [neurons, prompts]
        self.tape = record(model, self.ids, self.last, neurons=[layer])
        self.before = self.tape.logits  # replay brings its own, from the same batch

    def effect(self, before: Tensor, after: Tensor) -> Tensor:
        prompts = before.shape[0]
        return effect(before, after, self.answer[:prompts], self.other[:prompts])

    def replayed(self, neurons: Tensor, values: Tensor, reduce: Reduce) -> Tensor:
        return replay_neurons(self.tape, self.layer, neurons, values, reduce)

    @torch.no_grad()
    def batched(self, neurons: Tensor, values: Tensor, reduce: Reduce) -> Tensor:
        model, prompts = self.model, len(self.ids)
        size = max(1, rows_that_fit(model, model.encoder.length, model.encoder.length) // prompts)
        results = []
        for part, new in zip(neurons.split(size), values.split(size), strict=True):
            entries = torch.nn.functional.one_hot(part, model.sizes.neurons).bool()[:, None]
            with editing(model, [self._edit(entries, new[:, :, None, None, None])], prompts):
                after = model.logits(self.ids.repeat_study(len(part), 1))
            results.append(reduce(self.before, after.view(len(part), prompts, -1)))
        return torch.cat(results)

    @torch.no_grad()
    def one_by_one(self, neurons: Tensor, values: Tensor, reduce: Reduce) -> Tensor:
        """On the first prompts only: how long it takes does not depend on the prompt."""
        ids, rows = self.ids[:ALONE], []
        for neuron, new in zip(neurons, values, strict=True):
            entries = torch.nn.functional.one_hot(neuron, self.model.sizes.neurons).bool()[None, None]
            after = []
            for row, value in zip(ids, new, strict=False):
                with editing(self.model, [self._edit(entries, value.view(1, 1, 1, 1, 1))], 1):
                    after.append(self.model.logits(row[None]))
            rows.append(reduce(self.before[:ALONE], torch.cat(after)[None]))
        return torch.cat(rows)

    def in_lens(self, lens: Lens, neurons: Tensor, values: Tensor, reduce: Reduce) -> Tensor:
        pairs = zip(neurons.tolist(), values, strict=True)
        return torch.cat(
            [reduce(self.before, lens.logits_with(self.ids, self.layer, n, new)[None]) for n, new in pairs]
        )

    def _edit(self, entries: Tensor, values: Tensor) -> Edit:
        return Edit(Site.NEURONS, self.layer, (self.last,), entries, values)

    def disagreement(self, way: Callable[[Tensor, Tensor, Reduce], Tensor]) -> float:
        """How far a way's logits are from the replay's, as a share of how far the edit moves them.

        For this a few neurons are set so high that each adds as much to the residual stream as there is of it. A
        counterfactual's activation may change so little that, in half precision, a way that edits nothing would pass.
        """
        neurons = torch.arange(min(CHECKED, self.model.sizes.neurons), device=self.model.device)
        size = self.tape.inputs[self.layer + 1][:, -1].float().norm(dim=-1).to(self.model.device)
        unit = self.model.value_vectors(self.layer)[neurons].float().norm(dim=-1).to(self.model.device)
        values = (size / unit.clamp(min=1e-6)[:, None]).to(self.values.dtype)
        ours, theirs = (f(neurons, values, lambda before, after: after).cpu() for f in (self.replayed, way))
        ours = ours[:, : theirs.shape[1]]
        moved = ours - self.before[: theirs.shape[1]].cpu()
        return float((ours - theirs).abs().max() / moved.abs().max())


def bench(
    model: Model,
    prompts: int = PROMPTS,
    layers: Sequence[int] | None = None,
    seconds: float = SECONDS,
    *,
    progress: Progress,
) -> Bench:
    """Measure some layers, by default a few from the middle to the last, in about so many seconds (longer if two passes of
    each way already take that)."""
    depth = model.sizes.layers
    chosen = _spread(depth) if layers is None else sorted(set(layers))
    _check(model, prompts, chosen, seconds)
    lens: Lens | str
    try:
        lens = Lens(model)
    except NoLens as reason:
        lens = str(reason)
    rows = []
    with progress.task("bench", len(chosen)) as advance:
        for layer in chosen:
            deadline = time.perf_counter() + seconds / len(chosen)
            task = Task(model, prompts, layer)
            ways, lens = _agreeing_ways(task, lens)
            rows.append(_layer_rates(task, ways, deadline))
            advance(1)
    upper = range(depth // 2, depth)
    return Bench(
        model=str(model),
        device=device_name(model),
        dtype=model.dtype_name,
        torch=torch.__version__,
        arithscope=__version__,
        prompts=len(task.ids),
        layers=tuple(rows),
        lens=lens if isinstance(lens, str) else "",
        upper_half=(upper.start, upper.stop - 1),
        estimates=estimates(rows, upper, model.sizes.neurons * PROMPTS * len(OPERATORS)),
    )


def _spread(depth: int) -> list[int]:
    return sorted({round(layer) for layer in np.linspace(depth // 2, depth - 1, LAYERS)})


def _check(model: Model, prompts: int, layers: Sequence[int], seconds: float) -> None:
    length, depth = model.encoder.length, model.sizes.layers
    most = rows_that_fit(model, length, length)
    if not 1 <= prompts <= most:
        raise UserError(f"{prompts} prompts cannot be measured; choose --prompts from 1 to {most}.")
    outside = [layer for layer in layers if not 0 <= layer < depth]
    if outside or not layers:
        said = f"There is no layer {outside[0]}" if outside else "No layer was named"
        raise UserError(f"{said}; choose --layers from 0 to {depth - 1}, with commas between.")
    if not seconds > 0:
        raise UserError(f"Nothing can be measured in {seconds:g} seconds; choose --seconds above 0.")


def _agreeing_ways(task: Task, lens: Lens | str) -> tuple[dict[str, Way], Lens | str]:
    """All ways that there are, slowest first, once they agree; and TransformerLens, or why it is left out."""
    exact = torch.finfo(task.model.hf_model.dtype).bits >= 32 and not task.model.quantization
    allowed = EXACT_TOLERANCE if exact else HALF_TOLERANCE
    for name, way in ((BATCHED, task.batched), (ONE_BY_ONE, task.one_by_one)):
        difference = task.disagreement(way)
        if not difference <= allowed:
            raise UserError(
                f"With neurons of layer {task.layer} edited, {name} and replay differ by {difference:.2g} of what the edit "
                "changes, so there is nothing to compare; try --dtype float32 or report this model's family."
            )
    ways: dict[str, Way] = {ONE_BY_ONE: lambda n: task.one_by_one(n, task.values[n], task.effect)}
    if isinstance(lens, Lens):
        in_lens = partial(task.in_lens, lens)
        try:
            difference = task.disagreement(in_lens)
        except NoLens as reason:
            lens = str(reason)
        else:
            if difference <= allowed:
                ways[LENS] = lambda n: in_lens(n, task.values[n], task.effect)
            else:
                lens = f"its logits differ from ours by {difference:.2g} of what an edit of layer {task.layer} changes"
    ways[BATCHED] = lambda n: task.batched(n, task.values[n], task.effect)
    ways[REPLAY] = lambda n: task.replayed(n, task.values[n], task.effect)
    return ways, lens


def _layer_rates(task: Task, ways: dict[str, Way], deadline: float) -> LayerRates:
    """Medians of several rounds, each on so many neurons that all of it is done by the deadline; of one at the least."""
    model, left = task.model, max(0.0, deadline - time.perf_counter())
    share = left / len(ways) / (REPEATS + 3)  # three for finding the sizes
    samples = {name: _sample_size(way, model, share) for name, way in ways.items()}
    timed: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        started = time.perf_counter()
        for name, way in ways.items():
            spent, prompts = _timed(way, torch.arange(samples[name], device=model.device))
            timed[name].append(samples[name] * prompts / spent)
        if 2 * time.perf_counter() - started > deadline:  # another round would end after it
            break
    rates = {name: statistics.median(values) for name, values in timed.items()}
    operations = row_operations(model, first_layer_run(model, task.layer))
    return LayerRates(task.layer, rates, rates[REPLAY] * operations / 1e12)


def _sample_size(way: Way, model: Model, wanted: float) -> int:
    """How many neurons a way manages in so many seconds."""
    n, most = 1, model.sizes.neurons
    while True:
        some = torch.arange(n, device=model.device)
        spent, _ = _timed(way, some)
        if spent >= wanted / 2:  # perhaps for what is prepared only once
            spent, _ = _timed(way, some)
        if n == most or spent >= wanted / 2:
            return n
        n = min(most, max(n + 1, int(n * min(8.0, 0.8 * wanted / spent))))


def _timed(way: Way, neurons: Tensor) -> tuple[float, int]:
    """Seconds, and the number of prompts that each neuron was measured on."""
    started = time.perf_counter()
    found = way(neurons).cpu()  # which waits for the device
    return time.perf_counter() - started, found.shape[1]


def estimates(rows: Sequence[LayerRates], layers: range, pairs: int) -> dict[str, float]:
    """Seconds that so many pairs of neuron and prompt in each of some layers take, by way.

    A pair's time is a straight line in the layer for replay, and next to constant for the others; between measured layers it is
    interpolated, beyond them it is the nearest one's.
    """
    measured = [row.layer for row in rows]
    return {
        way: pairs * float(np.interp(list(layers), measured, [1 / row.rates[way] for row in rows]).sum())
        for way in rows[-1].rates  # TransformerLens may have been left out on the way
    }

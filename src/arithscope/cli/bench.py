"""`arithscope bench`: how much faster replay computes exact effects of single neurons than full forward passes.

Single neurons of a layer are patched at the last position with a counterfactual's activation, by each of these methods:

    one by one        a full pass for every neuron and prompt
    TransformerLens   a full pass over all prompts for every neuron, with run_with_hooks; if it is installed
    batched           full passes over as many neurons × prompts as fit into memory
    replay            only the part of the model that the edit can reach

All methods must give the same logits before they are timed. Each is timed on as many neurons as fit into its share of the
time. If those are few, replay is underrated, because each of its chunks also contains an unedited variant.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.models.engine.replay import Reduce, record, replay_neurons
from arithscope.models.hooks import Edit, capturing, editing
from arithscope.models.memory import first_replayed_layer, flops_per_position, rows_that_fit
from arithscope.models.model import Model, Site
from arithscope.models.transformer_lens import TransformerLensModel, TransformerLensUnavailable
from arithscope.pipeline.runner import device_name
from arithscope.prompts import OPERATORS, counterfactuals, legal_prompts, random_source, sample
from arithscope.report.terminal import bare_table
from arithscope.stats.effects import effect
from arithscope.utils.progress import Progress

PROMPTS, SECONDS = 50, 45.0
REPEATS = 5  # timings per method, of which the median counts
LAYERS = 3  # number of layers measured by default
CHECKED = 2  # neurons whose logits are compared between methods
ALONE = 4  # prompts used by the method one by one; each takes the same time
ONE_BY_ONE, LENS, BATCHED, REPLAY = "one by one", "TransformerLens", "batched", "replay"
EXACT_TOLERANCE, HALF_TOLERANCE = 1e-2, 0.25  # relative to how far the edit moves the logits

Method = Callable[[Tensor, Tensor, Reduce], Tensor]  # (neurons, activations, reduction of logits) → [neurons, prompts]
Result = dict[str, Any]
Lens = TransformerLensModel | str  # or the reason why there is none


class Task:
    """Activation patching of single neurons of one layer, at the last position."""

    def __init__(self, model: Model, prompts: int, layer: int):
        pool = legal_prompts("+", min(300, model.limit - 1), model.limit)
        clean = sample(pool, prompts, random_source(0, "benchmark"))
        corrupted = counterfactuals(clean, pool, random_source(0, "benchmark counterfactuals"))
        self.model, self.layer, self.last = model, layer, model.positions.final
        self.ids, self.answer, self.other = model.encode(clean), model.answers(clean), model.answers(corrupted)
        with torch.no_grad(), capturing(model, neurons=[layer], keep=lambda x: x[:, -1].clone()) as seen:
            model.logits(model.encode(corrupted))
        self.values = seen.neurons[layer].T.to(model.device)  # [neurons, prompts]
        self.tape = record(model, self.ids, self.last, neurons=[layer])
        self.before = self.tape.logits
        self.replayed: Method = partial(replay_neurons, self.tape, layer)

    def effect(self, before: Tensor, after: Tensor) -> Tensor:
        return effect(before, after, self.answer[: len(before)], self.other[: len(before)])

    def batched(self, neurons: Tensor, values: Tensor, reduce: Reduce) -> Tensor:
        length = self.model.encoder.length
        size = max(1, rows_that_fit(self.model, length, length) // len(self.ids))
        chunks = zip(neurons.split(size), values.split(size), strict=True)
        return torch.cat([reduce(self.before, self._full_pass(n, new, self.ids)) for n, new in chunks])

    def one_by_one(self, neurons: Tensor, values: Tensor, reduce: Reduce) -> Tensor:
        results = []
        for neuron, new in zip(neurons.split(1), values.split(1), strict=True):
            prompts = zip(new[:, :ALONE].split(1, dim=1), self.ids[:ALONE].split(1), strict=True)
            after = torch.cat([self._full_pass(neuron, value, ids) for value, ids in prompts], dim=1)
            results.append(reduce(self.before[:ALONE], after))
        return torch.cat(results)

    def in_lens(self, lens: TransformerLensModel, neurons: Tensor, values: Tensor, reduce: Reduce) -> Tensor:
        pairs = zip(neurons.tolist(), values, strict=True)
        logits = (lens.logits_with(self.ids, self.layer, neuron, new) for neuron, new in pairs)
        return torch.cat([reduce(self.before, after[None]) for after in logits])

    @torch.no_grad()
    def _full_pass(self, neurons: Tensor, values: Tensor, ids: Tensor) -> Tensor:
        """Patched logits of all neurons × prompts from one forward pass, [neurons, prompts, vocabulary]."""
        entries = torch.nn.functional.one_hot(neurons, self.model.sizes.neurons).bool()[:, None]
        edit = Edit(Site.NEURONS, self.layer, (self.last,), entries, values[:, :, None, None, None])
        with editing(self.model, [edit], len(ids)):
            return self.model.logits(ids.repeat(len(neurons), 1)).view(len(neurons), len(ids), -1)

    def disagreement(self, method: Method) -> float:
        """Largest difference between the logits of a method and of replay, relative to how far the edit moves them."""
        # Large activations, each of which adds as much to the residual stream as it already holds: with those of a
        # counterfactual, a method that edits nothing might pass in half precision.
        device = self.model.device
        neurons = torch.arange(min(CHECKED, self.model.sizes.neurons), device=device)
        stream = self.tape.inputs[self.layer + 1][:, -1].float().norm(dim=-1).to(device)
        unit = self.model.value_vectors(self.layer)[neurons].float().norm(dim=-1).to(device)
        values = (stream / unit.clamp(min=1e-6)[:, None]).to(self.values.dtype)
        ours, theirs = (m(neurons, values, lambda before, after: after).cpu() for m in (self.replayed, method))
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
) -> Result:
    """Measure all methods on some layers, by default a few from the middle to the last, in about `seconds`.

    Returns what `--json` writes. `layers` has for each layer the `rates` (neurons × prompts per second) by method, the rate of
    replay as a multiple of the others (`replay_over`) and in 10¹² operations per second (`tflops`). `lens` says why
    TransformerLens was not measured. `estimates` has the seconds for all neurons of the layers `upper_half`.
    """
    depth, length = model.sizes.layers, model.encoder.length
    most = rows_that_fit(model, length, length)
    default = {round(layer) for layer in np.linspace(depth // 2, depth - 1, LAYERS)}
    chosen = sorted(default if layers is None else set(layers))
    if not 1 <= prompts <= most:
        raise UserError(f"{prompts} prompts cannot be measured; choose --prompts from 1 to {most}.")
    outside = [layer for layer in chosen if not 0 <= layer < depth]
    if outside or not chosen:
        problem = f"There is no layer {outside[0]}" if outside else "No layer was named"
        raise UserError(f"{problem}; choose --layers from 0 to {depth - 1}, separated by commas.")
    if not seconds > 0:
        raise UserError(f"Nothing can be measured in {seconds:g} seconds; choose --seconds above 0.")
    lens: Lens
    try:
        lens = TransformerLensModel(model)
    except TransformerLensUnavailable as reason:
        lens = str(reason)
    rows = []
    with progress.task("bench", len(chosen)) as advance:
        for layer in chosen:
            task = Task(model, prompts, layer)
            methods, lens = _agreeing_methods(task, lens)
            rows.append(_layer_rates(task, methods, seconds / len(chosen)))
            advance(1)
    upper = range(depth // 2, depth)
    about = {"model": str(model), "device": device_name(model), "dtype": model.dtype_name, "prompts": len(task.ids)}
    versions = {"torch": torch.__version__, "arithscope": __version__}
    times = estimates(rows, upper, model.sizes.neurons * PROMPTS * len(OPERATORS))
    skipped = lens if isinstance(lens, str) else ""
    return about | versions | dict(layers=rows, lens=skipped, upper_half=[upper.start, upper.stop - 1], estimates=times)


def layer_numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UserError(f"{text!r} names no layers; write numbers separated by commas, as in 16,24,31.") from None


def _agreeing_methods(task: Task, lens: Lens) -> tuple[dict[str, Method], Lens]:
    """All methods, slowest first, and TransformerLens or the reason to leave it out. Raises UserError if our own disagree."""
    exact = torch.finfo(task.model.hf_model.dtype).bits >= 32 and not task.model.quantization
    tolerance = EXACT_TOLERANCE if exact else HALF_TOLERANCE
    methods: dict[str, Method] = {ONE_BY_ONE: task.one_by_one, BATCHED: task.batched, REPLAY: task.replayed}
    for name in (BATCHED, ONE_BY_ONE):
        if not (difference := task.disagreement(methods[name])) <= tolerance:
            raise UserError(
                f"With neurons of layer {task.layer} edited, {name} and replay differ by {difference:.2g} of what the edit "
                "changes, so there is nothing to compare; try --dtype float32 or report this model's family."
            )
    if isinstance(lens, str):
        return methods, lens
    in_lens = partial(task.in_lens, lens)
    try:
        difference = task.disagreement(in_lens)
    except TransformerLensUnavailable as reason:
        return methods, str(reason)
    if not difference <= tolerance:
        return methods, f"its logits differ from ours by {difference:.2g} of what an edit of layer {task.layer} changes"
    return {ONE_BY_ONE: task.one_by_one, LENS: in_lens, **methods}, lens


def _layer_rates(task: Task, methods: Mapping[str, Method], seconds: float) -> Result:
    rates = {name: _rate(task, method, seconds / len(methods)) for name, method in methods.items()}
    tflops = rates[REPLAY] * flops_per_position(task.model, first_replayed_layer(task.model, task.layer)) / 1e12
    multiples = {name: rates[REPLAY] / rate for name, rate in rates.items() if name != REPLAY}
    return {"layer": task.layer, "rates": rates, "tflops": tflops, "replay_over": multiples}


def _rate(task: Task, method: Method, seconds: float) -> float:
    """Neurons × prompts per second, measured in about `seconds` on a number of neurons that is doubled until it is enough."""
    n = 1
    _timed(task, method, n)  # warm up
    while n < task.model.sizes.neurons and _timed(task, method, n)[0] < seconds / (2 * REPEATS + 4):
        n = min(2 * n, task.model.sizes.neurons)
    return statistics.median(n * prompts / took for took, prompts in (_timed(task, method, n) for _ in range(REPEATS)))


def _timed(task: Task, method: Method, n: int) -> tuple[float, int]:
    """Seconds for the first n neurons, and the number of prompts that each was measured on."""
    neurons = torch.arange(n, device=task.model.device)
    started = time.perf_counter()
    effects = method(neurons, task.values[neurons], task.effect).cpu()  # waits for the device
    return time.perf_counter() - started, effects.shape[1]


def estimates(rows: Sequence[Result], layers: range, pairs: int) -> dict[str, float]:
    """Seconds for `pairs` neuron-prompt pairs in each of `layers`, by method. The time of a pair is linear in the layer for
    replay and nearly constant for the others, so it is interpolated between measured layers, and constant beyond them."""
    measured = [row["layer"] for row in rows]
    return {
        method: pairs * float(np.interp(list(layers), measured, [1 / row["rates"][method] for row in rows]).sum())
        for method in rows[-1]["rates"]  # TransformerLens may have been left out on the way
    }


def bench_report(result: Result) -> Iterator[Any]:
    """Lines and a table for the terminal."""
    yield f"{result['model']}, torch {result['torch']}, {result['device']}"
    yield f"Exact effects of single neurons on {result['prompts']} prompts; neurons × prompts per second, and replay ÷ others:"
    methods = list(result["estimates"])
    others = [method for method in methods if method != REPLAY]
    titles = {m: m.replace("one by", "one\nby").replace("TransformerLens", "Transf.\nLens") for m in methods}
    table = bare_table()
    for title in ("layer", *titles.values(), *(f"÷ {titles[method]}" for method in others), "TFLOP/s"):
        table.add_column(title, justify="right")
    for row in result["layers"]:
        rates = (f"{row['rates'][m]:,.0f}" for m in methods)
        multiples = (f"{row['replay_over'][m]:,.1f}" for m in others)
        table.add_row(str(row["layer"]), *rates, *multiples, f"{row['tflops']:.3g}")
    yield table
    yield "TFLOP/s: 10¹² floating-point operations per second in the replayed layers, counted from their matrices' shapes."
    if result["lens"]:
        yield f"{LENS} is left out: {result['lens']}."
    first, last = result["upper_half"]
    times = ", ".join(f"{duration(seconds)} ({method})" for method, seconds in result["estimates"].items())
    yield f"All neurons of layers {first} to {last}, {PROMPTS} prompts of {len(OPERATORS)} operators, would take {times}."


def duration(seconds: float) -> str:
    """A time in the largest unit of which it has at least 1.5."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} seconds"

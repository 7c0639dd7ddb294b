"""How much faster the circuit stages are than the obvious way: three tasks, each computed in both ways in one process.

    localize    every head and MLP patched at every position     plain: a full pass over all prompts for each
    circuit     nested and random sets of heads, mean-ablated    plain: a full pass over all prompts for each set
    probe       linear probes of all layers at one position      plain: one layer after the other

Both ways must give the same numbers before they are timed; times are medians of several runs, in turn.

    python -m benchmarks.circuit [--model tiny-llama] [--prompts 100] [--device cpu] [--record NAME]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from arithscope.experiments.common.ablation import ablated_scores, mean_ablation, nested_sets, score_reducer
from arithscope.experiments.localize import component_effects, effect_reducer
from arithscope.experiments.probe import Examples, initial_probes, read_states, train
from arithscope.models.engine.sweep import Means, mean_activations
from arithscope.models.hooks import Edit, capturing, edit, editing
from arithscope.models.load import LoadOptions, load
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts, counterfactuals, legal_prompts, random_source, sample
from benchmarks.record import Table, record, record_option

REPEATS = 3
CIRCUITS, PROBE_PROMPTS, TRAINING = 100, 400, 320


def silent(units: int) -> None:
    pass


@dataclass(frozen=True)
class Task:
    model: Model
    prompts: Prompts
    counterfactuals: Prompts
    means: Means
    sets: Tensor  # of heads to keep, [circuits, layers, heads]
    examples: Examples

    def amount(self, name: str) -> str:
        s = self.model.sizes
        patches = s.layers * (s.heads + 1) * len(self.model.positions.named())
        done = {"localize": f"{patches} patches", "circuit": f"{len(self.sets)} sets of heads"}
        return f"{name}: {done.get(name, f'{s.layers} layers at one position')}"

    def localize(self) -> Tensor:
        layers, named = range(self.model.sizes.layers), self.model.positions.named().values()
        given = self.model, self.prompts, self.counterfactuals
        return torch.from_numpy(np.stack([component_effects(*given, p, layers, advance=silent) for p in named]))

    @torch.no_grad()
    def localize_plainly(self) -> Tensor:
        model, s = self.model, self.model.sizes
        ids, named, layers = model.encode(self.prompts), list(model.positions.named().values()), range(s.layers)
        with capturing(model, heads=layers, neurons=layers) as seen:
            model.logits(model.encode(self.counterfactuals))
        reduce, before = effect_reducer(model, self.prompts, self.counterfactuals, silent), model.logits(ids)

        def patched(site: Site, layer: int, which: list[int] | None, position: int) -> Tensor:
            source = seen.heads[layer] if site is Site.HEADS else seen.neurons[layer]
            values = source[:, position : position + 1]
            with editing(model, [edit(model, site, layer, which, positions=position, values=values)], len(ids)):
                return reduce(before, model.logits(ids)[None])[0]

        rows = [
            torch.stack(
                [
                    *(patched(Site.HEADS, layer, [head], position) for head in range(s.heads)),
                    patched(Site.NEURONS, layer, None, position),
                ]
            )
            for position in named
            for layer in layers
        ]
        return torch.stack(rows).view(len(named), s.layers, s.heads + 1, len(ids), -1).cpu()

    def circuit(self) -> Tensor:
        edits = mean_ablation(self.model, self.means, self.sets)
        return torch.from_numpy(ablated_scores(self.model, self.prompts, edits, silent))

    @torch.no_grad()
    def circuit_plainly(self) -> Tensor:
        model, ids = self.model, self.model.encode(self.prompts)
        reduce = score_reducer(model, self.prompts, silent)
        found = []
        for kept in self.sets:
            edits: list[Edit] = mean_ablation(model, self.means, kept[None])
            with editing(model, edits, len(ids)):
                logits = model.logits(ids)
            found.append(reduce(logits, logits[None])[0])
        return torch.stack(found).cpu()

    def probe(self, layers: range | None = None) -> Tensor:
        layers = range(self.model.sizes.layers) if layers is None else layers
        some = Examples(self.examples.states[list(layers)], self.examples.of_prompt, self.examples.answer)
        start = initial_probes(layers, self.model.sizes.width, self.model.limit, 0, "last")
        return train(start, some, TRAINING, 0, "last", silent).matrix.cpu()

    def probe_plainly(self) -> Tensor:
        return torch.cat([self.probe(range(layer, layer + 1)) for layer in range(self.model.sizes.layers)])


def prepare(model: Model, prompts: int) -> Task:
    pool = legal_prompts("+-*/", 300, model.limit)
    chosen = sample(pool, prompts, random_source(0, "benchmark"))
    others = counterfactuals(chosen, pool, random_source(0, "benchmark counterfactuals"))
    s = model.sizes
    random = random_source(0, "benchmark heads")
    orders = np.stack([random.permutation(s.layers * s.heads) for _ in range(10)])
    sets = nested_sets(orders, np.linspace(0, s.layers * s.heads, CIRCUITS // 10).astype(int).tolist())
    more = sample(pool, PROBE_PROMPTS, random_source(0, "benchmark probes"))
    [examples] = read_states(model, more, ["last"], range(s.layers))
    return Task(
        model, chosen, others, mean_activations(model, chosen), sets.unflatten(1, (s.layers, s.heads)), examples
    )


def seconds(function: Callable[[], Tensor]) -> float:
    started = time.perf_counter()
    function()  # its result is on the CPU, so the device has finished
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--device", default="auto")
    record_option(parser)
    arguments = parser.parse_args()
    model = load(arguments.model, options=LoadOptions(device=arguments.device))
    print(f"{model}\ntorch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads")
    task = prepare(model, arguments.prompts)
    print(f"{'work':10} {'plain s':>9} {'arithscope s':>13} {'ratio':>7}")
    rows = []
    for name, fast, plain in (
        ("localize", task.localize, task.localize_plainly),
        ("circuit", task.circuit, task.circuit_plainly),
        ("probe", task.probe, task.probe_plainly),
    ):
        torch.testing.assert_close(fast().double(), plain().double(), rtol=1e-2, atol=1e-3)
        timed = [(seconds(plain), seconds(fast)) for _ in range(REPEATS)]
        slow, quick = (statistics.median(times) for times in zip(*timed, strict=True))
        print(f"{name:10} {slow:9.2f} {quick:13.2f} {slow / quick:7.1f}")
        rows.append([task.amount(name), slow, quick, slow / quick])
    if arguments.record:
        notes = [f"{model}; {arguments.prompts} prompts; seconds, medians of {REPEATS}"]
        record(arguments.record, {"stages": Table(["work", "plain", "stage", "ratio"], rows)}, notes)


if __name__ == "__main__":
    main()

"""How much faster replay is: the exact effect of single neurons, computed in three ways in one process.

    one by one   a full forward pass for every neuron and prompt
    batched      full forward passes over (neurons × prompts) rows
    replay       only what the edit can reach

The slower ways are timed on a sample of the neurons, and all three are given as neurons × prompts per second. Each way
is run several times in turn, and the medians are compared. Effects are checked to agree before anything is timed.

    python benchmarks/replay.py [--subject tiny-llama] [--prompts 50] [--layers 2] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from arithscope.measures import effect
from arithscope.prompts import counterfactuals, legal_prompts, random_source, sample
from arithscope.subject.edits import Edit, capturing, editing
from arithscope.subject.load import LoadOptions, load
from arithscope.subject.memory import rows_that_fit
from arithscope.subject.replay import Tape, record, replay_neurons
from arithscope.subject.subject import Site, Subject

REPEATS = 5


class Task:
    """Patch single neurons of a layer at the last position with a counterfactual's activation."""

    def __init__(self, subject: Subject, prompts: int, layer: int):
        pool = legal_prompts("+", 300, subject.limit)
        chosen = sample(pool, prompts, random_source(0, "benchmark"))
        others = counterfactuals(chosen, pool, random_source(0, "benchmark counterfactuals"))
        self.subject, self.layer, self.last = subject, layer, subject.positions.last
        self.ids, self.answer, self.other = subject.encode(chosen), subject.answers(chosen), subject.answers(others)
        with torch.no_grad(), capturing(subject, neurons=[layer], keep=lambda x: x[:, -1]) as seen:
            subject.logits(subject.encode(others))
        self.values = seen.neurons[layer].T  # [neurons, prompts]
        self.tape: Tape = record(subject, self.ids, self.last, neurons=[layer])

    def effect(self, before: Tensor, after: Tensor) -> Tensor:
        return effect(before, after, self.answer, self.other)

    def replayed(self, neurons: Tensor) -> Tensor:
        return replay_neurons(self.tape, self.layer, neurons, self.values[neurons], self.effect)

    @torch.no_grad()
    def batched(self, neurons: Tensor) -> Tensor:
        subject, prompts = self.subject, len(self.ids)
        size = max(1, rows_that_fit(subject, subject.encoder.length, subject.encoder.length) // prompts)
        before, results = subject.logits(self.ids), []
        for part in neurons.split(size):
            entries = torch.nn.functional.one_hot(part, subject.sizes.neurons).bool()[:, None]
            change = Edit(Site.NEURONS, self.layer, (self.last,), entries, self.values[part][:, :, None, None, None])
            with editing(subject, [change], prompts):
                after = subject.logits(self.ids.repeat(len(part), 1))
            results.append(self.effect(before, after.view(len(part), prompts, -1)))
        return torch.cat(results)

    @torch.no_grad()
    def one_by_one(self, neurons: Tensor) -> Tensor:
        subject, rows = self.subject, []
        before = [subject.logits(self.ids[b : b + 1]) for b in range(len(self.ids))]
        for neuron in neurons.tolist():
            entries = torch.zeros(1, 1, subject.sizes.neurons, dtype=torch.bool, device=subject.device)
            entries[..., neuron] = True
            row = []
            for b in range(len(self.ids)):
                value = self.values[neuron, b].view(1, 1, 1, 1, 1)
                with editing(subject, [Edit(Site.NEURONS, self.layer, (self.last,), entries, value)], 1):
                    after = subject.logits(self.ids[b : b + 1])
                row.append(effect(before[b], after, self.answer[b : b + 1], self.other[b : b + 1]))
            rows.append(torch.cat(row))
        return torch.stack(rows)


def seconds(function: Callable[[Tensor], Tensor], neurons: Tensor) -> float:
    cuda = neurons.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    function(neurons)
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", default="tiny-llama")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--layers", type=int, default=2, help="how many of the last layers to measure")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    subject = load(arguments.subject, options=LoadOptions(device=arguments.device))
    threads = torch.get_num_threads()
    print(f"{subject}\ntorch {torch.__version__}, {platform.machine()}, {threads} threads, {arguments.prompts} prompts")
    print(
        f"{'layer':>5} {'one by one/s':>13} {'batched/s':>12} {'replay/s':>12} {'÷ one by one':>13} {'÷ batched':>10}"
    )
    rows = []
    for layer in range(subject.sizes.layers - arguments.layers, subject.sizes.layers):
        task = Task(subject, arguments.prompts, layer)
        everything = torch.arange(subject.sizes.neurons, device=subject.device)
        some, few = everything[: max(8, len(everything) // 8)], everything[:2]
        replayed, batched, single = task.replayed(some), task.batched(some), task.one_by_one(few)
        for a, b in ((replayed, batched), (replayed[: len(few)], single)):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        ways = {
            "one_by_one": (task.one_by_one, few),
            "batched": (task.batched, some),
            "replay": (task.replayed, everything),
        }
        timed: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(REPEATS):
            for name, (function, neurons) in ways.items():
                timed[name].append(len(neurons) * arguments.prompts / seconds(function, neurons))
        rate = {name: statistics.median(values) for name, values in timed.items()}
        ratio = [rate["replay"] / rate[name] for name in ("one_by_one", "batched")]
        print(
            f"{layer:5} {rate['one_by_one']:13,.0f} {rate['batched']:12,.0f} {rate['replay']:12,.0f} "
            f"{ratio[0]:13.1f} {ratio[1]:10.1f}"
        )
        rows.append({"layer": layer, **rate, "over_one_by_one": ratio[0], "over_batched": ratio[1]})
    if arguments.json:
        arguments.json.write_text(json.dumps({"subject": repr(subject), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""How cost grows with layers, width, prompts and neurons: random models of the Llama family, one size changed at a time.

    effects    exact effects of all neurons of the upper half of the layers
    sweep      a pass over a block of the operand grid
    localize   every head and MLP patched at every position

Next to each time are the operations that the formulas in docs/performance.md give. With --record a figure is drawn too, into
docs/images; --draw draws it again from a result file.

    python -m benchmarks.growth [--device cuda] [--record growth-cpu]
    python -m benchmarks.growth --draw growth-gpu
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from arithscope.experiments.localize import component_effects
from arithscope.experiments.neurons import neuron_effects
from arithscope.figures.style import finish, new_figure, styled
from arithscope.models.engine.sweep import sweep
from arithscope.models.load import DTYPES, pick_device
from arithscope.models.memory import first_replayed_layer, flops_per_position
from arithscope.models.model import Identity, Model
from arithscope.models.untrained import number_tokenizer, untrained_model
from arithscope.prompts import Prompts, counterfactuals, legal_prompts, random_source, sample
from benchmarks.record import ROOT, Table, record, record_option, result_path

REPEATS = 3
SECOND_OPERANDS = 300  # of each first operand in a sweep
STAGES = ("effects", "sweep", "localize")
COLOURS = dict(zip(STAGES, ("#0072B2", "#009E73", "#D55E00"), strict=True))


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    prompts: int  # and first operands of the sweep
    neurons: int  # in one MLP
    heads: int


@dataclass(frozen=True)
class Plan:
    """A shape, and the sizes that each of its dimensions takes while the others stay as they are."""

    base: Shape
    sides: dict[str, tuple[int, ...]]

    def shapes(self) -> list[tuple[str, Shape]]:
        return [(side, replace(self.base, **{side: n})) for side, sizes in self.sides.items() for n in sizes]


SMALL = Plan(
    Shape(layers=6, width=128, prompts=16, neurons=512, heads=4),
    {
        "layers": (2, 4, 8, 16),
        "width": (64, 128, 256, 512),
        "prompts": (8, 16, 32, 64),
        "neurons": (256, 512, 1024, 2048),
    },
)
LARGE = Plan(
    Shape(layers=8, width=2048, prompts=50, neurons=8192, heads=16),
    {
        "layers": (2, 4, 8, 16),
        "width": (512, 1024, 2048, 4096),
        "prompts": (25, 50, 100, 200),
        "neurons": (2048, 4096, 8192, 16384),
    },
)


def random_model(shape: Shape, device: torch.device, dtype: torch.dtype) -> Model:
    tokenizer = number_tokenizer(1000)
    config = dict(
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        intermediate_size=shape.neurons,
        max_position_embeddings=64,
    )
    with device:  # weights are drawn there: for a large model that takes minutes on a CPU
        hf_model = untrained_model("llama", config, tokenizer)
    return Model(hf_model.to(dtype), tokenizer, Identity("random weights", "", "random", "numbers"))


@dataclass(frozen=True)
class PatchingTask:
    """The three stages on one model."""

    model: Model
    prompts: Prompts
    counterfactuals: Prompts
    operand_grid: Prompts

    @property
    def upper(self) -> range:
        depth = self.model.sizes.layers
        return range(depth // 2, depth)

    def effects(self) -> None:
        everything = np.tile(np.arange(self.model.sizes.neurons), (len(self.upper), 1))
        last = self.model.positions.final
        neuron_effects(
            self.model,
            self.prompts,
            self.counterfactuals,
            self.upper,
            everything,
            last,
            advance=lambda units: None,
        )

    def sweep(self) -> None:
        for block in sweep(self.model, self.operand_grid):
            block.logits.argmax(-1).cpu()

    def localize(self) -> None:
        layers = range(self.model.sizes.layers)
        for position in self.model.positions.named().values():
            component_effects(
                self.model, self.prompts, self.counterfactuals, position, layers, advance=lambda units: None
            )

    def operations(self, stage: str) -> int:
        """Operations by the formulas in docs/performance.md: a pass has rows, each with a tail of positions and one
        unembedding."""
        s, length = self.model.sizes, self.model.encoder.length
        unembedding = flops_per_position(self.model, s.layers)

        def passes(rows: int, tail: int, start: int) -> int:
            return rows * (tail * (flops_per_position(self.model, start) - unembedding) + unembedding)

        if stage == "effects":
            rows = (s.neurons + 1) * len(self.prompts)
            return sum(passes(rows, 1, first_replayed_layer(self.model, layer)) for layer in self.upper)
        first = self.model.positions.op2
        if stage == "sweep":
            beginnings = len(np.unique(self.operand_grid.op1)) * first * (flops_per_position(self.model) - unembedding)
            return beginnings + passes(len(self.operand_grid), length - first, 0)
        rows = (s.heads + 2) * len(self.prompts)  # every head, the MLP, and the unedited variant
        tails = [length - position for position in self.model.positions.named().values()]
        return sum(passes(rows, tail, layer) for tail in tails for layer in range(s.layers))


def patching_task(model: Model, prompts: int) -> PatchingTask:
    pool = legal_prompts("+", 300, model.limit)
    chosen = sample(pool, prompts, random_source(0, "growth"))
    others = counterfactuals(chosen, pool, random_source(0, "growth counterfactuals"))
    op1, op2 = (x.ravel() for x in np.indices((prompts, SECOND_OPERANDS)))
    return PatchingTask(model, chosen, others, Prompts(op1, np.zeros_like(op1), op2))


def seconds(function: Callable[[], None]) -> float:
    """Seconds of the median run. Every stage ends with its numbers on the CPU, so the device has finished."""
    function()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measure(plan: Plan, device: torch.device, dtype: torch.dtype) -> dict[str, Table]:
    rows: list[list[Any]] = []
    for side, shape in plan.shapes():
        task = patching_task(random_model(shape, device, dtype), shape.prompts)
        times = [seconds(getattr(task, stage)) for stage in STAGES]
        operations = [task.operations(stage) / 1e12 for stage in STAGES]
        rows.append([side, getattr(shape, side), *times, *operations])
        print(f"{side:8} {getattr(shape, side):6} " + " ".join(f"{t:8.2f} s" for t in times), flush=True)
    columns = ["grows", "to", *(f"{stage}, s" for stage in STAGES), *(f"{stage}, 10¹² operations" for stage in STAGES)]
    return {"times": Table(columns, rows), "exponents": Table(*exponents(rows))}


def exponents(rows: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
    """The powers with which time and operations grow, from the second largest size of each dimension to the largest."""
    found = []
    for side in dict.fromkeys(row[0] for row in rows):
        *_, before, after = (row for row in rows if row[0] == side)
        found.append(
            [side, *(log(b / a) / log(after[1] / before[1]) for a, b in zip(before[2:], after[2:], strict=True))]
        )
    return ["grows", *(f"{stage}, time" for stage in STAGES), *(f"{stage}, operations" for stage in STAGES)], found


@styled
def growth_figure(rows: list[list[Any]], machine: str) -> Figure:
    """A panel for each dimension: measured times, and what operations alone predict from the time at the largest size."""
    sides = list(dict.fromkeys(row[0] for row in rows))
    figure, [panels] = new_figure(3.2 * len(sides), 3.6, 1, len(sides), sharey=True)
    for panel, side in zip(panels, sides, strict=True):
        own = np.array([row[1:] for row in rows if row[0] == side], dtype=float)
        for i, (stage, colour) in enumerate(COLOURS.items()):
            times, operations = own[:, 1 + i], own[:, 1 + len(STAGES) + i]
            panel.plot(own[:, 0], times, "o-", color=colour, label=stage)
            panel.plot(own[:, 0], times[-1] * operations / operations[-1], ":", color=colour)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(own[:, 0], [f"{int(x):,}" for x in own[:, 0]])
        panel.minorticks_off()
        panel.set_xlabel(side)
    panels[0].set_ylabel("seconds")
    panels[0].legend()
    caption = f"Medians on {machine}. Dotted: operations alone, through the largest size; above it, fixed costs show."
    finish(figure, "How cost grows, one size at a time", caption)
    return figure


def draw(name: str) -> Path:
    result = json.loads(result_path(name).read_text(encoding="utf-8"))
    path = ROOT / "docs" / "images" / f"{name}.png"
    growth_figure(result["tables"]["times"]["rows"], result["machine"]).savefig(path, dpi=110)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="on a GPU models are larger and in bfloat16")
    parser.add_argument("--draw", metavar="NAME", help="measure nothing; draw the figure of this result file")
    record_option(parser)
    arguments = parser.parse_args()
    if arguments.draw:
        draw(arguments.draw)
        return
    device = pick_device(arguments.device)
    plan, dtype = (LARGE, "bfloat16") if device.type == "cuda" else (SMALL, "float32")
    tables = measure(plan, device, DTYPES[dtype])
    if arguments.record:
        sizes = ", ".join(f"{n:,} {side}" for side, n in asdict(plan.base).items())
        record(arguments.record, tables, [f"random models, {sizes} but for what grows; {dtype}; medians of {REPEATS}"])
        draw(arguments.record)


if __name__ == "__main__":
    main()

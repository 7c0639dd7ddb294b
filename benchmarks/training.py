"""How long a step of training takes on this machine's CPU: in three ways.

single precision, fused attention      what PyTorch does by default
half precision, fused attention        bfloat16, if the CPU has instructions for it
half precision, plain attention        what `arithscope train` does

python -m benchmarks.training [RECIPE …] [--record training-cpu]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import torch

from arithscope.models.sources import FOLDER, RECIPE, embedded_names
from arithscope.training.loop import Training
from arithscope.training.recipe import read_recipe
from benchmarks.record import Table, record, record_option

STEPS = 6
WAYS = {
    "single precision, fused attention": ("sdpa", False),
    "half precision, fused attention": ("sdpa", True),
    "half precision, plain attention": ("eager", True),
}


def seconds_per_step(recipe: Path) -> list[float]:
    """Medians for each way, over steps taken in turns. Families without fused attention use plain attention always."""
    training = Training(read_recipe(recipe), torch.device("cpu"))
    half, fused = training.half_precision, training.model._supports_sdpa
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for step in range(1 + STEPS):
        for way, (attention, reduced) in WAYS.items():
            training.model.set_attn_implementation(attention if fused else "eager")
            training.half_precision = half and reduced
            started = time.perf_counter()
            training.step(step)
            times[way].append(time.perf_counter() - started)
    return [median(found[1:]) for found in times.values()]  # the first step is slower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", type=Path, nargs="*", metavar="RECIPE", help="default: of the embedded models")
    record_option(parser)
    arguments = parser.parse_args()
    recipes = arguments.recipes or [FOLDER / name / RECIPE for name in embedded_names()]
    rows = []
    for path in recipes:
        seconds = seconds_per_step(path)
        rows.append([read_recipe(path).name, *(float(f"{s:.3g}") for s in seconds), round(seconds[0] / seconds[-1], 2)])
        print(*rows[-1])
    if arguments.record:
        table = Table(["recipe", *(f"{way}, seconds" for way in WAYS), "first ÷ last"], rows)
        record(arguments.record, {"steps": table}, [f"seconds for a step, medians of {STEPS}"])


if __name__ == "__main__":
    main()

"""How much faster replay is: what `arithscope bench` measures, kept as a result file.

python -m benchmarks.replay [--subject tiny-llama] [--prompts 50] [--layers 4,5] [--seconds 45] [--device cpu] [--record NAME]
"""

from __future__ import annotations

import argparse

from benchmarks.record import Table, record, record_option
from rich.console import Console

from arithscope.cli.bench import (
    BATCHED,
    LENS,
    ONE_BY_ONE,
    PROMPTS,
    REPLAY,
    SECONDS,
    Bench,
    bench,
    bench_report,
    layer_numbers,
)
from arithscope.models.load import LoadOptions, load
from arithscope.utils.progress import Silent


def tables(found: Bench) -> dict[str, Table]:
    ways = [way for way in (ONE_BY_ONE, LENS, BATCHED, REPLAY) if way in found.ways]
    ratios = [f"replay ÷ {way}" for way in ways if way != REPLAY]
    rows = [
        [row.layer, *(row.rates[way] for way in ways), *(row.ratio(way) for way in ways if way != REPLAY), row.tflops]
        for row in found.layers
    ]
    first, last = found.upper_half
    all_of_them = f"seconds for all neurons of layers {first} to {last}, {PROMPTS} prompts of 4 operators"
    return {
        "rates": Table(["layer", *ways, *ratios, "TFLOP/s"], rows),
        "estimates": Table(["way", all_of_them], [[way, found.estimates[way]] for way in ways]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--layers", type=layer_numbers)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--device", default="auto")
    record_option(parser)
    arguments = parser.parse_args()
    model = load(arguments.model, options=LoadOptions(device=arguments.device))
    found = bench(model, arguments.prompts, arguments.layers, arguments.seconds, progress=Silent())
    for part in bench_report(found):
        Console(highlight=False, markup=False, soft_wrap=True).print(part)
    if arguments.record:
        notes = [f"{found.model}; neurons × prompts per second, {found.prompts} prompts, medians"]
        record(arguments.record, tables(found), notes)


if __name__ == "__main__":
    main()

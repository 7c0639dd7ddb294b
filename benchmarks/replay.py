"""How much faster replay is: what `arithscope bench` measures, kept as a result file.

python -m benchmarks.replay [--model tiny-llama] [--prompts 50] [--layers 4,5] [--seconds 45] [--device cpu] [--record NAME]
"""

from __future__ import annotations

import argparse

from rich.console import Console

from arithscope.cli.bench import (
    BATCHED,
    LENS,
    ONE_BY_ONE,
    PROMPTS,
    REPLAY,
    SECONDS,
    Result,
    bench,
    bench_report,
    layer_numbers,
)
from arithscope.models.load import LoadOptions, load
from arithscope.utils.progress import Silent
from benchmarks.record import Table, record, record_option


def tables(result: Result) -> dict[str, Table]:
    methods = [method for method in (ONE_BY_ONE, LENS, BATCHED, REPLAY) if method in result["estimates"]]
    others = [method for method in methods if method != REPLAY]
    rows = [
        [row["layer"], *(row["rates"][m] for m in methods), *(row["replay_over"][m] for m in others), row["tflops"]]
        for row in result["layers"]
    ]
    first, last = result["upper_half"]
    all_of_them = f"seconds for all neurons of layers {first} to {last}, {PROMPTS} prompts of 4 operators"
    return {
        "rates": Table(["layer", *methods, *(f"replay ÷ {method}" for method in others), "TFLOP/s"], rows),
        "estimates": Table(["way", all_of_them], [[method, result["estimates"][method]] for method in methods]),
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
    result = bench(model, arguments.prompts, arguments.layers, arguments.seconds, progress=Silent())
    for part in bench_report(result):
        Console(highlight=False, markup=False, soft_wrap=True).print(part)
    if arguments.record:
        notes = [f"{result['model']}; neurons × prompts per second, {result['prompts']} prompts, medians"]
        record(arguments.record, tables(result), notes)


if __name__ == "__main__":
    main()

"""How accurate models are that read digits, with two operands of two digits: after several trainings of one recipe.

python -m benchmarks.digits MODEL … [--record NAME]

MODEL is a folder that `arithscope train` wrote. All legal prompts; those with a chain, in which one carry or borrow causes
the next, apart from the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from arithscope.figures.style import SIGNS
from arithscope.models.load import load
from arithscope.models.sources import RECIPE
from arithscope.prompts import legal_prompts
from arithscope.training.batches import Writer
from arithscope.training.evaluation import predict
from arithscope.training.pairs import digits, longest_chain
from arithscope.training.recipe import read_recipe
from benchmarks.record import Table, record, record_option

LENGTH = 2  # digits of both operands


def accuracies(folder: Path) -> dict[str, tuple[int, float]]:
    """For each operator, and where there are chains also with and without one: how many prompts, and the accuracy."""
    data = read_recipe(folder / RECIPE).data
    model, writer, found = load(str(folder)).hf_model, Writer(data), {}
    for operator in data.seen:
        prompts = legal_prompts(operator, 10**LENGTH - 1, data.numbers)
        prompts = prompts[np.flatnonzero((digits(prompts.op1) == LENGTH) & (digits(prompts.op2) == LENGTH))]
        right = predict(model, writer, prompts)[0].numpy()
        found[SIGNS[operator]] = len(prompts), float(right.mean())
        chained = longest_chain(operator, prompts) > 1 if operator in "+-" else np.zeros(len(prompts), dtype=bool)
        if chained.any():
            for what, of in (("without", ~chained), ("with", chained)):
                found[f"{SIGNS[operator]} {what} a chain"] = int(of.sum()), float(right[of].mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    record_option(parser)
    arguments = parser.parse_args()
    by_model = {folder.name: accuracies(folder) for folder in arguments.models}
    first = next(iter(by_model.values()))
    rows = [[what, size, *(found[what][1] for found in by_model.values())] for what, (size, _) in first.items()]
    for row in rows:
        print(*row)
    if arguments.record:
        record(arguments.record, {"accuracy": Table(["", "prompts", *by_model], rows)})


if __name__ == "__main__":
    main()

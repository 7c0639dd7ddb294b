"""How well neurons ranked by effects in bfloat16 agree with the ranking in float32, on models that have learnt arithmetic.

Prompts, counterfactuals and neurons (those of the later half of the layers) are the same in both precisions. For comparison,
the agreement of two halves of the prompts in float32: how much a ranking depends on the prompts it was measured on.

    python -m benchmarks.precision [--device cuda] [--prompts 50] [--record NAME]
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from arithscope.experiments.accuracy import measure_accuracy
from arithscope.experiments.common.ranking import rank_agreement
from arithscope.experiments.neurons import neuron_effects
from arithscope.models.load import LoadOptions, load
from arithscope.models.model import Model
from arithscope.models.sources import embedded_names
from arithscope.prompts import OPERATORS, Prompts, counterfactuals, legal_prompts, random_source, sample
from arithscope.stats.effects import EFFECTS
from benchmarks.record import Table, record, record_option

BEST = 5  # per cent of each layer's neurons


def samples(model: Model, prompts: int) -> dict[str, tuple[Prompts, Prompts]]:
    """Some correct prompts of each operator, and their counterfactuals."""
    tried = sample(legal_prompts(OPERATORS, 300, model.limit), 8000, random_source(0, "precision"))
    found = measure_accuracy(model, tried)
    chosen = {o: sample(found.correct(o), prompts, random_source(0, "precision", o)) for o in OPERATORS}
    pool = found.correct()
    return {o: (p, counterfactuals(p, pool, random_source(0, "others", o))) for o, p in chosen.items()}


def agreement(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float]:
    correlation, shared = rank_agreement(a, b, [BEST])
    return correlation, shared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompts", type=int, default=50)
    record_option(parser)
    arguments = parser.parse_args()
    rows = []
    for name in embedded_names():
        exact, half = (load(name, options=LoadOptions(arguments.device, d)) for d in ("float32", "bfloat16"))
        layers = range(exact.sizes.layers // 2, exact.sizes.layers)
        everything = np.tile(np.arange(exact.sizes.neurons), (len(layers), 1))
        for operator, (prompts, others) in samples(exact, arguments.prompts).items():
            last = exact.positions.final
            found = [
                neuron_effects(s, prompts, others, layers, everything, last, advance=lambda n: None)
                for s in (exact, half)
            ]
            for i, measure in enumerate(EFFECTS):
                full, rounded = (x[..., i].astype(np.float64) for x in found)
                middle = full.shape[2] // 2
                halves = full[:, :, :middle].mean(2), full[:, :, middle:].mean(2)
                rows.append([name, operator, measure, *agreement(full.mean(2), rounded.mean(2)), *agreement(*halves)])
                print(rows[-1], flush=True)
    columns = ["model", "operator", "effect by", "rank correlation", f"best {BEST} % shared"]
    columns += ["rank correlation of halves", f"best {BEST} % shared by halves"]
    if arguments.record:
        record(arguments.record, {"ranks": Table(columns, rows)})


if __name__ == "__main__":
    main()

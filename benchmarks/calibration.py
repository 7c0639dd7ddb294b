"""How far matches can be trusted: the share of noise that is classified, and of planted rules that are found.

    noise     maps in which there is nothing to find, with the value vectors of tiny-llama, as of gated MLPs and of others:
              random activations, and tiny-llama's own maps with the prompts of each permuted; shares classified, raw and
              calibrated, and share of neurons with p ≤ .05
    recall    planted heuristics of every kind beside as many maps of noise: share found after calibration, by
              signal-to-noise ratio

The activation maps are those of the tests (tests/heuristics/planted.py), on the full operand grid.

    python -m benchmarks.calibration [--max-operand 300] [--neurons 500] [--each 20] [--record NAME]
"""

from __future__ import annotations

import argparse
from itertools import product
from statistics import mean
from typing import Any

import torch

from arithscope.figures.style import SIGNS
from arithscope.heuristics.catalogue import catalogue
from arithscope.prompts import OPERATORS
from benchmarks.record import Table, record, record_option
from tests.heuristics.planted import LIMIT, classified, noise, permuted_maps, real_value_vectors, recall, shares

PERMUTATIONS = 32
RATIOS = (1, 2, 3, 4, 5, 6)
MAPS = ("random activations", "real maps, prompts permuted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-operand", type=int, default=300)
    parser.add_argument("--neurons", type=int, default=500, help="maps in which there is nothing to find")
    parser.add_argument("--each", type=int, default=20, help="planted heuristics of each kind")
    record_option(parser)
    arguments = parser.parse_args()
    most = arguments.max_operand
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, operands 0…{most}, {PERMUTATIONS} permutations"
    )
    tables = {"noise": noise_table(most, arguments.neurons), **recall_tables(most, arguments.each)}
    if arguments.record:
        planted = f"{arguments.each} planted heuristics of each kind and number, as of gated MLPs"
        notes = [f"operands 0…{most}, {PERMUTATIONS} permutations, {arguments.neurons} maps of noise, {planted}"]
        record(arguments.record, tables, notes)


def noise_table(most: int, n: int) -> Table:
    print(f"{'noise':8} {'maps':26} {'MLPs':10} {'raw':>6} {'calibrated':>11} {'p ≤ .05':>8}")
    rows: list[list[Any]] = []
    for operator in OPERATORS:
        sets = catalogue(operator, most, LIMIT)
        for name, gated in product(MAPS, (False, True)):
            random = name == MAPS[0]
            maps = noise(n, most, real_value_vectors(), gated) if random else permuted_maps(n, operator, most, gated)
            found = classified(maps, sets, PERMUTATIONS)
            raw, calibrated = shares(found, n)
            small, kind = float((found.neurons.p <= 0.05).mean()), "gated" if gated else "not gated"
            print(f"{operator:8} {name:26} {kind:10} {raw:6.3f} {calibrated:11.3f} {small:8.3f}", flush=True)
            rows.append([SIGNS[operator], name, kind, raw, calibrated, small])
    return Table(["operator", "activation maps", "MLPs", "raw", "calibrated", "p ≤ .05"], rows)


def recall_tables(most: int, each: int) -> dict[str, Table]:
    """Recall by operator; and by kind, averaged over operators and over the numbers that heuristics are about."""
    print("recall " + " ".join(f"{f'SNR {ratio}':>6}" for ratio in RATIOS))
    by_operator: list[list[Any]] = []
    by_kind: dict[str, list[Any]] = {}
    for operator in OPERATORS:
        sets = catalogue(operator, most, LIMIT)
        found = {ratio: recall(sets, most, ratio, each, PERMUTATIONS) for ratio in RATIOS}
        for kind in found[RATIOS[0]]:
            shown = [found[ratio][kind] for ratio in RATIOS]
            print(f"{operator:6} {' '.join(f'{x:6.2f}' for x in shown)}  {kind}", flush=True)
            by_kind.setdefault(kind.split(" of ")[0], []).append(shown)
        by_operator.append([SIGNS[operator], *(found[ratio]["all"] for ratio in RATIOS)])
    del by_kind["all"]
    kinds = [[kind, *map(mean, zip(*rows, strict=True))] for kind, rows in by_kind.items()]
    columns = ["", *map(str, RATIOS)]
    return {"recall": Table(columns, by_operator), "recall-by-kind": Table(columns, kinds)}


if __name__ == "__main__":
    main()

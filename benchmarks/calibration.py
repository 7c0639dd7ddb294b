"""How far matches can be trusted: noise that is classified, and planted rules that are found.

    noise     500 patterns of noise, alone and with the value vectors of tiny-llama: shares classified, raw and calibrated
    recall    planted heuristics of every kind beside as much noise: share found after calibration, by signal-to-noise ratio

The patterns are those of the tests (tests/heuristics/planted.py), on the full square.

    python benchmarks/calibration.py [--max-operand 300] [--each 20]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from arithscope.heuristics.catalogue import catalogue
from arithscope.prompts import OPERATORS

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.heuristics.planted import LIMIT, classified, noise, real_value_vectors, recall, shares

PERMUTATIONS = 32
RATIOS = (1, 2, 3, 4, 5, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-operand", type=int, default=300)
    parser.add_argument("--each", type=int, default=20, help="planted heuristics of each kind")
    arguments = parser.parse_args()
    most = arguments.max_operand
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, operands 0…{most}, {PERMUTATIONS} permutations"
    )
    print(f"{'noise':8} {'value vectors':14} {'raw':>6} {'calibrated':>11} {'p ≤ .05':>8}")
    for operator in OPERATORS:
        sets = catalogue(operator, most, LIMIT)
        for name, logits in (("none", None), ("real", real_value_vectors())):
            found = classified(noise(500, most, logits), sets, PERMUTATIONS)
            raw, calibrated = shares(found, 500)
            print(
                f"{operator:8} {name:14} {raw:6.3f} {calibrated:11.3f} {(found.neurons.p <= 0.05).mean():8.3f}",
                flush=True,
            )
    print("recall " + " ".join(f"{f'SNR {ratio}':>6}" for ratio in RATIOS))
    for operator in OPERATORS:
        sets = catalogue(operator, most, LIMIT)
        found = {ratio: recall(sets, most, ratio, arguments.each, PERMUTATIONS) for ratio in RATIOS}
        for kind in found[RATIOS[0]]:
            shown = " ".join(f"{found[ratio][kind]:6.2f}" for ratio in RATIOS)
            print(f"{operator:6} {shown}  {kind}", flush=True)


if __name__ == "__main__":
    main()

"""How fast neurons are classified, compared with the obvious way, and how much memory that takes.

throughput    neurons of each operator against every heuristic, by counting and by a loop over pairs that sorts and
              intersects for each; both must give the same scores
all           all neurons × four operators, without and with calibration

python -m benchmarks.classify [--neurons 3200] [--device cpu] [--only throughput,all] [--record NAME]
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from arithscope.figures.style import SIGNS
from arithscope.heuristics.catalogue import Catalogue, catalogue
from arithscope.heuristics.neuron_matching import NeuronBatch, calibrated_matches, match_neurons
from arithscope.heuristics.overlaps import count_overlaps, top_prompts
from arithscope.models.load import load
from arithscope.prompts import OPERATORS
from benchmarks.record import Table, record, record_option

MAX_OPERAND, LIMIT = 300, 1000
MANY = 32  # neurons of each operator that are counted together; the loop over pairs takes one
PERMUTATIONS = 32


def silent(units: int) -> None:
    pass


def some_neurons(n: int, seed: int = 0) -> NeuronBatch:
    """Activation maps of noise with waves in it, and the value vectors of tiny-llama, repeated."""
    random = np.random.default_rng(seed)
    model = load("tiny-llama")
    with torch.no_grad():
        lens = torch.cat([model.logit_lens(model.value_vectors(layer)) for layer in range(2, 6)])
    logits = lens[:, model.encoder.answer_tokens].cpu().numpy()
    a, b = np.indices((MAX_OPERAND + 1, MAX_OPERAND + 1), dtype=np.float32)
    activations = np.empty((n, MAX_OPERAND + 1, MAX_OPERAND + 1), dtype=np.float16)
    for row in activations:
        waves = random.uniform(0, 0.5, 3)
        field = np.sin(waves[0] * a) + np.sin(waves[1] * b) + np.sin(waves[2] * (a + b))
        row[:] = field + random.standard_normal(a.shape, dtype=np.float32)
    return NeuronBatch(activations, logits[np.arange(n) % len(logits)])


def pair_by_pair(neurons: NeuronBatch, sets: Catalogue) -> list[NDArray[np.float64]]:
    """Scores of every heuristic of both classes: for each pair, sort the prompts, take the top k and intersect."""
    activations, on_answer = (x.cpu().numpy() for x in neurons.on_prompts(range(len(neurons)), sets))
    found = []
    for side, direct in ((sets.indirect, False), (sets.direct, True)):
        scores = np.empty((len(neurons), len(side.heuristics)))
        for i, (a, on) in enumerate(zip(activations, on_answer, strict=True)):
            for j, heuristic in enumerate(side.heuristics):
                members = np.flatnonzero(heuristic.holds(sets.prompts))
                values = (a * on,) if direct else (a, -a)
                tops = [np.argsort(-v, kind="stable")[: len(members)] for v in values]
                scores[i, j] = max(len(np.intersect1d(members, top)) for top in tops) / len(members)
        found.append(scores)
    return found


def by_counting(neurons: NeuronBatch, sets: Catalogue) -> list[NDArray[np.float64]]:
    a, on = neurons.on_prompts(range(len(neurons)), sets)
    indirect = torch.maximum(*(count_overlaps(top_prompts(x), sets.indirect) for x in (a, -a)))
    direct = count_overlaps(top_prompts(a * on), sets.direct)
    return [(x / side.sizes).double().cpu().numpy() for x, side in ((indirect, sets.indirect), (direct, sets.direct))]


def seconds(function: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started


def throughput(device: str) -> Table:
    rows = []
    print(f"{'operator':>8} {'heuristics':>10} {'loop: pairs/s':>14} {'counting: pairs/s':>18} {'ratio':>8}")
    for operator in OPERATORS:
        sets = catalogue(operator, MAX_OPERAND, LIMIT, device=device)
        heuristics = len(sets.indirect.heuristics) + len(sets.direct.heuristics)
        one, many = some_neurons(1), some_neurons(MANY)
        for ours, theirs in zip(by_counting(one, sets), pair_by_pair(one, sets), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
        slow = heuristics / seconds(pair_by_pair, one, sets)
        by_counting(many, sets)
        fast = heuristics * len(many) / seconds(by_counting, many, sets)
        print(f"{operator:>8} {heuristics:10,} {slow:14,.0f} {fast:18,.0f} {fast / slow:8,.0f}")
        rows.append([SIGNS[operator], heuristics, slow, fast, fast / slow])
    return Table(["operator", "heuristics", "pair by pair", "counting", "ratio"], rows)


def everything(n: int, device: str) -> Table:
    neurons = some_neurons(n)
    names = [f"n{i}" for i in range(n)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = {"classify": 0.0, "with calibration": 0.0}
    for operator in OPERATORS:
        sets = catalogue(operator, MAX_OPERAND, LIMIT, device=device)
        plain = seconds(match_neurons, neurons, sets, 0, 0, names, silent)
        full = seconds(calibrated_matches, neurons, sets, PERMUTATIONS, 0, names, silent)
        total["classify"] += plain
        total["with calibration"] += full
        print(f"{operator}: {n} neurons, {plain:.1f} s; with {PERMUTATIONS} permutations each {full:.1f} s", flush=True)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    print(f"all: {total['classify']:.1f} s, with calibration {total['with calibration']:.1f} s; "
          f"{more:.2f} GiB on top of {neurons.activations.nbytes / 2**30:.2f} GiB of activation maps")  # fmt: skip
    on_device = None if device == "cpu" else torch.cuda.max_memory_allocated() / 2**30
    if on_device is not None:
        print(f"on the device at most {on_device:.2f} GiB")
    return Table(
        ["neurons", "seconds", "seconds, with calibration", "GiB beyond the maps", "GiB on the GPU"],
        [[n, total["classify"], total["with calibration"], more, on_device]],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neurons", type=int, default=3200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="throughput,all")
    record_option(parser)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads, {arguments.device}")
    tables = {}
    if "throughput" in arguments.only:
        tables["throughput"] = throughput(arguments.device)
    if "all" in arguments.only:
        tables["all"] = everything(arguments.neurons, arguments.device)
    if arguments.record:
        record(
            arguments.record, tables, [f"pairs per second; calibration with {PERMUTATIONS} permutations of each neuron"]
        )


if __name__ == "__main__":
    main()

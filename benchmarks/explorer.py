"""How quickly the explorer answers for a neuron's page when a run has as many neurons as one of Llama-3-8B.

The run is made up: 4 operators × 16 layers × 200 top neurons with activation maps over the full operand grid, effects of all
14,336 neurons of these layers, and the maps and matches of a real run's neurons, repeated. This measures the server, the disk
and the tables, whose speed does not depend on the numbers.

    python -m benchmarks.explorer runs/tiny-llama [--record NAME]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.lib.format import open_memmap

import arithscope
from arithscope.experiments.patterns import ActivationMaps
from arithscope.pipeline.store import open_for_writing
from arithscope.results.run import Run
from arithscope.stats.effects import EFFECTS
from benchmarks.record import Table, record, record_option
from tests.explorer.client import serving

OPERATORS, LAYERS, TOP, WIDTH = ("+", "-", "*", "/"), range(16, 32), 200, 14336
PAGE, MAP, TABLE = "a neuron's page", "its activation map", "a page of the table, filtered and sorted"


def large_run(source: Run, folder: Path) -> None:
    """Write a run folder of that size, made from a real run."""
    random = np.random.default_rng(0)
    who = pd.DataFrame(
        [
            (operator, layer, neuron, rank)
            for operator in OPERATORS
            for layer in LAYERS
            for rank, neuron in enumerate(random.permutation(WIDTH)[:TOP])
        ],
        columns=["operator", "layer", "neuron", "rank"],
    )
    n_source = len(source.patterns.neurons)
    by_operator = {o: np.arange(n_source)[source.patterns.rows(o)] for o in OPERATORS}
    # The row of the source's activation maps for each row of `who`.
    taken = np.concatenate([np.resize(by_operator[o], len(LAYERS) * TOP) for o in OPERATORS])
    own = source.patterns.neurons.iloc[taken].reset_index(drop=True)
    patterns = own.assign(**{name: who[name] for name in who.columns})
    place = ["operator", "layer", "neuron"]
    pairs = who[place].assign(source=taken)
    known = source.patterns.neurons[place].assign(source=np.arange(n_source))

    def spread(table: pd.DataFrame) -> pd.DataFrame:
        named = table.merge(known, on=place).drop(columns=place)
        return pairs.merge(named, on="source").drop(columns="source")

    n = len(OPERATORS) * len(LAYERS) * WIDTH
    grid = pd.MultiIndex.from_product([OPERATORS, LAYERS, range(WIDTH), EFFECTS], names=[*place, "measure"]).to_frame(
        index=False
    )
    values = random.standard_normal(n * len(EFFECTS))
    effects = grid.assign(method="exact", value=values, low=values - 1, high=values + 1, n=50)
    effects = effects.assign(median=values, mean_abs=np.abs(values), std=1.0)
    c = source.classify
    size = source.patterns.activations.shape[1]
    # Together the maps are larger than memory should hold, so they are written through a mapped file.
    shape = (len(taken), size, size)
    activations = open_memmap(folder.with_suffix(".npy"), "w+", dtype=np.float16, shape=shape)
    for rows in np.array_split(np.arange(len(taken)), 64):
        activations[rows] = source.patterns.activations[taken[rows]]
    results = {
        "neurons": replace(source.neurons, effects=effects, first_layer=dict.fromkeys(OPERATORS, LAYERS.start)),
        "classify": replace(c, matches=spread(c.matches), best=spread(c.best), neurons=spread(c.neurons)),
        "patterns": ActivationMaps(patterns, activations, source.patterns.logits[taken], source.patterns.studied),
    }
    keys = dict.fromkeys(results, "made up")
    model = source.manifest["model"]
    model = {**model, "sizes": {**model["sizes"], "layers": LAYERS.stop, "neurons": WIDTH}}
    with open_for_writing(folder, model, source.configuration, keys) as run:
        for name, result in results.items():
            run.write(name, result, 0.0)


def anonymous_memory() -> float:
    """GB of memory of this process, without the pages of mapped files."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1e6


def timed(address: str) -> tuple[float, int]:
    started = time.perf_counter()
    with urllib.request.urlopen(address) as response:
        size = len(response.read())
    return 1e3 * (time.perf_counter() - started), size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a complete run with all operators")
    parser.add_argument("--pages", type=int, default=200)
    record_option(parser)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        large_run(arithscope.open(arguments.run), folder / "run")
        tables = measure(folder / "run", arguments.pages)
    finally:
        shutil.rmtree(folder)
    if arguments.record:
        record(
            arguments.record,
            tables,
            [f"a made-up run as large as one of Llama-3-8B, {arguments.pages} requests of each kind"],
        )


def measure(path: Path, pages: int) -> dict[str, Table]:
    stored = np.load(path / "patterns" / "activations.npy", mmap_mode="r")
    top = pd.read_parquet(path / "patterns" / "neurons.parquet")
    print(f"{len(stored):,} neurons with activation maps, {stored.nbytes / 1e9:.1f} GB")
    before = anonymous_memory()
    with serving([path]) as address:
        api = f"{address}api/runs"
        first, _ = timed(api)
        run = json.load(urllib.request.urlopen(api))["runs"][0]["name"]
        chosen = top.sample(pages, random_state=1)
        kinds: dict[str, list[float]] = {PAGE: [], MAP: [], TABLE: []}
        timed(f"{api}/{run}/neurons/{top.layer[0]}/{top.neuron[0]}?operator=%2B")
        for row in chosen.itertuples():
            sign = {"+": "%2B", "-": "-", "*": "*", "/": "/"}[str(row.operator)]
            at = f"{api}/{run}/neurons/{row.layer}/{row.neuron}"
            kinds[PAGE].append(timed(f"{at}?operator={sign}")[0])
            kinds[MAP].append(timed(f"{at}/activation_map?operator={sign}")[0])
            kinds[TABLE].append(timed(f"{api}/{run}/neurons?operator={sign}&layer={row.layer}&sort=score")[0])
        memory = anonymous_memory() - before
    print(f"opening the run {first / 1e3:.1f} s; memory without mapped files {memory:.2f} GB")
    rows = [[n, float(np.median(x)), float(np.quantile(x, 0.95)), max(x)] for n, x in kinds.items()]
    for name, *found in rows:
        print(f"{name:10} " + " ".join(f"{x:6.0f}" for x in found) + " ms (median, 95 %, slowest)")
    size = ["neurons with maps", "GB of activation maps", "seconds to open", "GB of memory without mapped files"]
    return {
        "size": Table(size, [[len(stored), stored.nbytes / 1e9, first / 1e3, memory]]),
        "requests": Table(["request", "median ms", "95 % ms", "slowest ms"], rows),
    }


if __name__ == "__main__":
    main()

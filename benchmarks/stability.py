"""How stable the key numbers of a study are, read from a run folder with the stage `stability`.

python -m arithscope run tiny-llama --preset paper --out RUN
python -m benchmarks.stability RUN --record stability
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from arithscope.experiments.stability import CHOICES, HALVES, SEEDS, Stability
from arithscope.pipeline.store import RunFolder
from benchmarks.record import Table, record, record_option


def tables(found: Stability) -> dict[str, Table]:
    """numbers: a row for each key number and operator. choices: how far the choices for each operator agree."""
    columns = ["value", "low", "high", "half_1", "half_2", "seeds_low", "seeds_high", "largest"]
    names = {(row.experiment, row.measure): row.short for row in found.key_numbers}
    numbers = [
        [names[row["experiment"], row["measure"]], row["operator"], *(_plain(row[c]) for c in columns)]
        for row in found.table.to_dict("records")
    ]
    means = found.choices.groupby(["choice", "operator", "between"], sort=False).value.mean()
    pairs = [(c, o) for c in CHOICES for o in dict.fromkeys(found.choices[found.choices.choice == c].operator)]
    choices = [[c, o, *(_plain(means.get((c, o, way))) for way in (HALVES, SEEDS))] for c, o in pairs]
    return {
        "numbers": Table(["number", "operator", *(c.replace("_", " ") for c in columns)], numbers),
        "choices": Table(["choice", "operator", "between halves", "between seeds"], choices),
    }


def _plain(value: Any) -> float | None:
    return None if pd.isna(value) else round(float(value), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder with the stage stability")
    record_option(parser)
    arguments = parser.parse_args()
    run = RunFolder(arguments.run)
    found = tables(run.read(Stability))
    for table in found.values():
        print(pd.DataFrame(table.rows, columns=table.columns).to_string(index=False))
    if arguments.record:
        model, settings = run.manifest["model"], run.manifest["configuration"]
        seconds = sum(entry.get("seconds", 0) for entry in run.manifest["stages"].values())
        study = f"{model['name']}, preset {settings['preset']}, seed {settings['seed']}"
        note = f"{study}; the run without repetitions {seconds:.0f} s"
        record(arguments.record, found, [note, f"studied on {model['device']}"])


if __name__ == "__main__":
    main()

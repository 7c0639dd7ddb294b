"""How stable the key numbers of studies are, read from run folders with the stage `stability`.

python -m arithscope run tiny-llama --preset paper --out RUN
python -m benchmarks.stability RUN … --record stability

A table of key numbers for each run, and two with a column for each: the range of key numbers over seeds for + and −,
and the agreement of choices.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from arithscope.experiments.stability import CHOICES, HALVES, SEEDS, Stability
from arithscope.figures.style import SIGNS
from arithscope.pipeline.store import RunFolder
from arithscope.report.formatting import NOTHING, number
from benchmarks.key_numbers import print_and_record
from benchmarks.record import Table, record_option

COLUMNS = ["value", "low", "high", "half_1", "half_2", "seeds_low", "seeds_high", "largest"]


def names_of(found: Stability) -> dict[tuple[str, str], str]:
    return {(row.experiment, row.measure): row.short for row in found.key_numbers}


def numbers(found: Stability) -> Table:
    """A row for each key number and operator."""
    names = names_of(found)
    rows = [
        [names[row["experiment"], row["measure"]], _sign(row["operator"]), *(_plain(row[c]) for c in COLUMNS)]
        for row in found.table.to_dict("records")
    ]
    return Table(["number", "operator", *(c.replace("_", " ") for c in COLUMNS)], rows)


def seeds(studies: Mapping[str, Stability]) -> Table:
    """The range of each key number over a study's own seed and the others, + and − in a cell for each study."""
    ranges = {
        (names_of(found)[row["experiment"], row["measure"]], study, row["operator"]): _range(row)
        for study, found in studies.items()
        for row in found.table[found.table.operator.isin(["+", "-"])].to_dict("records")
    }
    rows = [
        [name, *(", ".join(ranges.get((name, study, o), NOTHING) for o in "+-") for study in studies)]
        for name in dict.fromkeys(name for name, _, _ in ranges)
    ]
    return Table(["+, − over three seeds", *studies], rows)


def _range(row: Mapping[Any, Any]) -> str:
    ends = row["seeds_low"], row["seeds_high"]
    counts = pd.isna(row["low"]) and all(float(end).is_integer() for end in ends)  # heads, layers: no interval
    shown = dict.fromkeys(f"{end:.0f}" if counts else number(end) for end in ends)
    return "–".join(shown)


def choices(studies: Mapping[str, Stability]) -> Table:
    """A row for each choice and operator: how far two halves of the prompts agree, and two seeds, for each study."""
    columns = {(study, between): f"{study}, {between}" for study in studies for between in (HALVES, SEEDS)}
    agreement = pd.concat({study: found.choices for study, found in studies.items()}, names=["study"])
    means = agreement.groupby(["choice", "operator", "study", "between"], sort=False).value.mean()
    pairs = sorted(dict.fromkeys((c, o) for c, o, _, _ in means.index), key=lambda pair: CHOICES.index(pair[0]))
    rows = [[c, _sign(o), *(_plain(means.get((c, o, *which))) for which in columns)] for c, o in pairs]
    return Table(["choice", "operator", *columns.values()], rows)


def tables(studies: Mapping[str, Stability]) -> dict[str, Table]:
    each = {study: numbers(found) for study, found in studies.items()}
    return {**each, "seeds": seeds(studies), "choices": choices(studies)}


def _sign(operator: str) -> str:
    return SIGNS.get(operator, operator)


def _plain(value: Any) -> float | None:
    return None if pd.isna(value) else round(float(value), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders with the stage stability")
    record_option(parser)
    arguments = parser.parse_args()
    runs = {path.name: RunFolder(path) for path in arguments.runs}
    print_and_record(
        tables({name: run.read(Stability) for name, run in runs.items()}), [*runs.values()], arguments.record
    )


if __name__ == "__main__":
    main()

"""The key numbers of runs, as their reports show them, read from run folders.

python -m arithscope run MODEL --out RUN
python -m benchmarks.key_numbers RUN … --record NAME
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from arithscope.experiments.common.key_numbers import KEY_NUMBERS, key_number_entries
from arithscope.figures.style import SIGNS
from arithscope.pipeline.store import RunFolder
from arithscope.prompts import OPERATORS
from arithscope.report.formatting import as_mean, number, with_interval
from benchmarks.record import Table, record, record_option


def table(run: RunFolder) -> Table:
    """A row for each key number that the run has: by operator, then overall."""
    rows = []
    for key_number in KEY_NUMBERS:
        entries = key_number_entries(key_number, run.summary, list(OPERATORS))
        if any(entry is not None for entry in entries):
            rows.append([key_number.short, *map(text_of, entries)])
    return Table(["", *(SIGNS[o] for o in OPERATORS), "all operators"], rows)


def text_of(entry: Any) -> str | None:
    """An entry of a summary: a mean with its interval, a number, or a list of names."""
    if entry is None:
        return None
    if isinstance(entry, dict):
        return with_interval(as_mean(entry))
    if isinstance(entry, list):
        return " ".join(entry) or "none"
    return f"{entry:,}" if isinstance(entry, int) else number(entry)


def print_and_record(tables: dict[str, Table], runs: list[RunFolder], name: str | None) -> None:
    """Print tables made from runs; if there is a name, also record them, with the runs' settings and devices."""
    for title, found in tables.items():
        print(title)
        print(pd.DataFrame(found.rows, columns=found.columns).to_string(index=False, na_rep="–"))
    if name:
        notes = sorted({settings_of(run) for run in runs})
        notes += sorted({f"studied on {run.manifest['model']['device']}" for run in runs})
        record(name, tables, notes)


def settings_of(run: RunFolder) -> str:
    """The preset, what a run chose differently for its neurons, and the seed."""
    configuration = run.manifest["configuration"]
    chosen = {"answer layers by": "answer_layers", "neurons ranked by": "rank", "plateau of": "plateau"}
    others = [f"{words} {configuration[key]}" for words, key in chosen.items() if configuration[key]]
    if configuration["neurons"] != "exact":
        others.append(f"effects of neurons by {configuration['neurons']}")
    return ", ".join([f"preset {configuration['preset']}", *others, f"seed {configuration['seed']}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders of different models")
    record_option(parser)
    arguments = parser.parse_args()
    runs = [RunFolder(path) for path in arguments.runs]
    print_and_record({str(run.manifest["model"]["name"]): table(run) for run in runs}, runs, arguments.record)


if __name__ == "__main__":
    main()

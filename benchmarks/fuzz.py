"""Everything that a user can hand to arithscope, generated: how many inputs were tried, and what became of them.

    python -m benchmarks.fuzz --record fuzz

Runs the tests in tests/fuzz, and those of the explorer's requests, with all of their inputs. They fail at the first traceback,
hang or wrong accept; what is recorded is of a run without any.
"""

from __future__ import annotations

import argparse
import sys

import pytest
from benchmarks.record import ROOT, Table, record, record_option
from tests.fuzz.effort import TALLIES

TESTS = ("tests/fuzz", "tests/explorer/test_api_properties.py")
NOTES = [
    "Refused: with one sentence and, on the command line, exit code 2. Every input either was refused so, or did "
    "what an independent reading of it says.",
    "Found on the way, and mended: a prompt of a few thousand spaces took minutes to refuse; heuristics with the "
    "divisor 0, with ends in the wrong order, with numbers beyond 64 bits or with digits of other scripts were "
    "accepted or ended in a traceback.",
    "Paths in the home of an unknown user, longer than the system allows, empty, or that are no text ended in a "
    "traceback or were taken for the present folder, as did host names that are too long; devices such as cpu:7 "
    "were accepted, and by the explorer any device.",
    "Recipes with rates that are no numbers, names with slashes, unsupported families, seeds beyond 64 bits, "
    "endless nesting, nothing to train on or more layers than fit into any memory were accepted, or ended in a "
    "traceback after a folder was made.",
    "Configurations of models that the library cannot build ended in a traceback before the library's own errors "
    "were caught; one number in a file could ask for any amount of memory; a tokenizer with more tokens than the "
    "model, weights that are not finite, an index that points to files elsewhere, and GGUF files whose weights are not "
    "of the sizes that they say were accepted.",
    "Manifests, records, summaries, tables and arrays of runs that are signed but not what this version writes "
    "ended in a traceback in reports, the explorer and resumed runs; a resumed run now computes such a stage "
    "again.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record_option(parser)
    options = parser.parse_args()
    failed = pytest.main(["-q", "-m", "slow", *(str(ROOT / tests) for tests in TESTS)])
    if failed:
        sys.exit(int(failed))
    rows = [[name, t.tried, t.accepted, t.tried - t.accepted] for name, t in TALLIES.items()]
    rows.append(["all", *(sum(row[i] for row in rows) for i in (1, 2, 3))])
    for row in rows:
        print(*row)
    if options.record:
        record(options.record, {"inputs": Table(["target", "tried", "accepted", "refused"], rows)}, NOTES)


if __name__ == "__main__":
    main()

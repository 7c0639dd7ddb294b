"""Fuzzing of everything that a user can pass to arithscope: how many inputs were tried, accepted and refused.

    python -m benchmarks.fuzz --record fuzz

Runs the tests in tests/fuzz, and those of the explorer's requests, with all of their inputs. They fail at the first traceback,
hang or wrongly accepted input; numbers are recorded only if none fails.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import pytest

from benchmarks.record import ROOT, Table, record, record_option
from tests.fuzz.effort import TALLIES

TESTS = ("tests/fuzz", "tests/explorer/test_api_properties.py")
NOTES = ["refused: with one sentence and, on the command line, exit code 2"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record_option(parser)
    options = parser.parse_args()
    failed = pytest.main(["-q", "-m", "slow", *(str(ROOT / tests) for tests in TESTS)])
    if failed:
        sys.exit(int(failed))
    rows: list[list[Any]] = [[name, t.tried, t.accepted, t.tried - t.accepted] for name, t in TALLIES.items()]
    rows.append(["all", *(sum(row[i] for row in rows) for i in (1, 2, 3))])
    for row in rows:
        print(*row)
    if options.record:
        record(options.record, {"inputs": Table(["target", "tried", "accepted", "refused"], rows)}, NOTES)


if __name__ == "__main__":
    main()

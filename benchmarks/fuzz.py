"""Fuzzing of everything that a user can pass to arithscope: how many inputs were tried, accepted and refused.

    python -m benchmarks.fuzz --record fuzz

Runs the tests in tests/fuzz, and those of the explorer's requests, with all of their inputs, in as many processes as there are
cores. They fail at the first traceback, hang or wrongly accepted input; numbers are recorded only if none fails.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from typing import Any

import pytest

from benchmarks.record import ROOT, Table, record, record_option
from tests.fuzz.effort import INPUTS, TALLIES

TESTS = ("tests/fuzz", "tests/explorer/test_api_properties.py")
NOTES = ["refused: with one sentence and, on the command line, exit code 2"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record_option(parser)
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as lines:
        os.environ[TALLIES] = lines.name
        failed = pytest.main(["-q", "-m", "slow", "-n", str(os.cpu_count()), *(str(ROOT / tests) for tests in TESTS)])
        if failed:
            sys.exit(int(failed))
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for target, tried, accepted in map(json.loads, lines):
            counts[target].update(tried=tried, accepted=accepted)
    targets = [target for target in INPUTS if target in counts]
    rows: list[list[Any]] = [
        [t, c["tried"], c["accepted"], c["tried"] - c["accepted"]] for t in targets for c in [counts[t]]
    ]
    rows.append(["all", *(sum(row[i] for row in rows) for i in (1, 2, 3))])
    for row in rows:
        print(*row)
    if options.record:
        record(options.record, {"inputs": Table(["target", "tried", "accepted", "refused"], rows)}, NOTES)


if __name__ == "__main__":
    main()

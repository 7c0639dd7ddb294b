"""How long a whole run takes: `arithscope run` of an embedded subject into a folder that is thrown away, by stage; and how long
importing the package and asking for help take.

python -m benchmarks.whole_run [--subject tiny-llama] [--record NAME]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import Table, record, record_option

REPEATS = 5
START = {"import arithscope": ["-c", "import arithscope"], "arithscope --help": ["-m", "arithscope", "--help"]}


def started(arguments: list[str]) -> float:
    """Seconds of a Python of its own, the median of some."""
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", default="tiny-llama")
    record_option(parser)
    arguments = parser.parse_args()
    start = [[name, started(words)] for name, words in START.items()]
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        command = [sys.executable, "-m", "arithscope", "run", arguments.subject, "--out", f"{folder}/run"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        whole = time.perf_counter() - begun
        stages = json.loads(Path(folder, "run", "manifest.json").read_text(encoding="utf-8"))["stages"]
    rows = [[name, entry["seconds"]] for name, entry in stages.items() if entry["status"] == "done"]
    rows.append(["start, figures, report", whole - sum(seconds for _, seconds in rows)])
    rows.append(["all", whole])
    for name, seconds in [*start, *rows]:
        print(f"{name:24} {seconds:7.1f} s")
    if arguments.record:
        note = f"{arguments.subject}, quick preset, all operators; figures are drawn beside the stages"
        tables = {"stages": Table(["stage", "seconds"], rows), "start": Table(["what", "seconds"], start)}
        record(arguments.record, tables, [note])


if __name__ == "__main__":
    main()

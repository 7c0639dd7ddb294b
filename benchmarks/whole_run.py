"""How long a whole run takes, by stage: `arithscope run` of an embedded model into a temporary folder; and how long
`import arithscope` and `arithscope --help` take.

python -m benchmarks.whole_run [--model tiny-llama] [--runs 3] [--record NAME]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.record import Table, record, record_option

STARTS = 5
START = {"import arithscope": ["-c", "import arithscope"], "arithscope --help": ["-m", "arithscope", "--help"]}


def seconds_of(words: list[str]) -> float:
    """Seconds that a new Python process takes with these arguments."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def one_run(model: str) -> dict[str, float]:
    """Seconds of each stage, of all stages, of the rest, and of everything."""
    with tempfile.TemporaryDirectory() as folder:
        whole = seconds_of(["-m", "arithscope", "run", model, "--out", f"{folder}/run"])
        stages = json.loads(Path(folder, "run", "manifest.json").read_text(encoding="utf-8"))["stages"]
    seconds = {name: entry["seconds"] for name, entry in stages.items() if entry["status"] == "done"}
    in_stages = sum(seconds.values())
    return {**seconds, "all stages": in_stages, "start, figures, report": whole - in_stages, "all": whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--runs", type=int, default=3)
    record_option(parser)
    arguments = parser.parse_args()
    start = [[name, median(seconds_of(words) for _ in range(STARTS))] for name, words in START.items()]
    runs = [one_run(arguments.model) for _ in range(arguments.runs)]
    rows = [[name, *(pick(run[name] for run in runs) for pick in (median, min, max))] for name in runs[0]]
    for name, *seconds in [*start, *rows]:
        print(f"{name:24} {'  '.join(f'{x:7.1f} s' for x in seconds)}")
    if arguments.record:
        note = f"{arguments.model}, quick preset, all operators, {len(runs)} runs; figures are drawn during the stages"
        stages = Table(["stage", "seconds, median", "least", "most"], rows)
        record(arguments.record, {"stages": stages, "start": Table(["what", "seconds"], start)}, [note])


if __name__ == "__main__":
    main()

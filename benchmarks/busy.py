"""How long commands take while other processes keep the cores busy, relative to one thread: with threads that sleep while they
wait (what the command line sets), and with threads that spin (torch's default).

python -m benchmarks.busy [--runs 3] [--record NAME]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.record import Table, record, record_option

COMMANDS = {
    "doctor": ["doctor"],
    "run": ["run", "--max-operand", "30", "--operators", "+", "--stages", "classify", "--out", "FOLDER"],
}
WITHOUT_SETTING = "from arithscope.cli.app import main; main()"  # the entry point sets OMP_WAIT_POLICY, this does not
WAYS = {
    "sleeping": (["-m", "arithscope"], {}),
    "spinning": (["-c", WITHOUT_SETTING], {}),
    "one thread": (["-m", "arithscope"], {"OMP_NUM_THREADS": "1"}),
}


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def seconds_of(command: str, way: str) -> float:
    start, variables = WAYS[way]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    with tempfile.TemporaryDirectory() as folder:
        words = [f"{folder}/run" if word == "FOLDER" else word for word in COMMANDS[command]]
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, *start, *words],
            env=clean | variables,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    record_option(parser)
    arguments = parser.parse_args()
    cores, rows = os.cpu_count() or 1, []
    for command in COMMANDS:
        for busy in (0, cores):
            with busy_processes(busy):
                rounds = [{way: seconds_of(command, way) for way in WAYS} for _ in range(arguments.runs)]
            one = median(each["one thread"] for each in rounds)
            ratios = [median(each[way] / each["one thread"] for each in rounds) for way in ("sleeping", "spinning")]
            rows.append([command, busy, one, *ratios])
            relative = f"sleeping × {ratios[0]:.2f}   spinning × {ratios[1]:.2f}"
            print(f"{command:8} {busy:3} busy processes   one thread {one:6.1f} s   {relative}", flush=True)
    if arguments.record:
        note = f"tiny-llama, {arguments.runs} rounds; in each, all three ways one after the other"
        columns = [
            "command",
            "busy processes",
            "seconds, one thread",
            "ratio, threads that sleep",
            "ratio, threads that spin",
        ]
        record(arguments.record, {"busy": Table(columns, rows)}, [note])


if __name__ == "__main__":
    main()

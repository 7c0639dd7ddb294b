"""How long a whole run takes: `arithscope run` of an embedded subject into a folder that is thrown away, by stage.

python -m benchmarks.whole_run [--subject tiny-llama] [--record NAME]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import Table, record, record_option


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", default="tiny-llama")
    record_option(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        command = [sys.executable, "-m", "arithscope", "run", arguments.subject, "--out", f"{folder}/run"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        whole = time.perf_counter() - started
        stages = json.loads(Path(folder, "run", "manifest.json").read_text(encoding="utf-8"))["stages"]
    rows = [[name, entry["seconds"]] for name, entry in stages.items() if entry["status"] == "done"]
    rows.append(["start, figures, report", whole - sum(seconds for _, seconds in rows)])
    rows.append(["all", whole])
    for name, seconds in rows:
        print(f"{name:24} {seconds:7.1f} s")
    if arguments.record:
        note = f"{arguments.subject}, quick preset, all operators; figures are drawn beside the stages"
        record(arguments.record, {"stages": Table(["stage", "seconds"], rows)}, [note])


if __name__ == "__main__":
    main()

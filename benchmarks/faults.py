"""Every fault that the tests inject, at every point: how many cases end with the same result, and how many in one sentence.

    python -m benchmarks.faults [--every 1] [--record NAME]

`--every 5` tries only every fifth point.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import run_stages
from arithscope.settings import Settings
from arithscope.utils import out_of_memory as memory
from arithscope.utils.progress import Silent
from benchmarks.record import Table, record, record_option
from tests.approximate import assert_close
from tests.conftest import saved, smaller
from tests.families import small
from tests.faults import FAULTS, KILL, REFUSALS, SIGNALS, Case, at_every_point, records, snapshot
from tests.hand_built import copy_and_add
from tests.pipeline.test_damaged_files import DAMAGES
from tests.training.test_loop import RECIPE
from tests.utils.test_out_of_memory import memory_for

COLUMNS = ["fault", "where", "cases", "same result afterwards", "explained in a sentence", "failed"]
Row = list[str | int]


def at_points(scratch: Path, every: int) -> Iterator[Row]:
    """Faults at every change on disk, in four commands."""
    model = saved(small("llama", "sdpa"), scratch / "model")
    recipe = scratch / "toy.toml"
    recipe.write_text(RECIPE.replace("steps = 60", "steps = 4").replace("checkpoints = 3", "checkpoints = 2"))
    runs = [scratch / "a", scratch / "b"]
    for folder in runs:
        run_stages(small("llama", "sdpa"), Settings(("+",), 3), folder, ["accuracy"], Silent())
    options = ["--max-operand", "2", "--operators", "+", "--stages", "means", "--out", "OUT"]
    commands: dict[str, tuple[list[str | Path], Sequence[str], Path | None]] = {
        "run": (["run", model, *options], FAULTS, None),
        "report": (["report", "OUT"], (KILL, "disk full"), runs[0]),
        "compare": (["compare", *runs, "--out", "OUT"], (KILL, "disk full"), None),
        "train": (["train", recipe, "--device", "cpu", "--out", "OUT"], (KILL, "disk full"), None),
    }
    for name, (command, faults, before) in commands.items():
        found = at_every_point(command, scratch / name, faults, [model] if name == "run" else [], before, every)
        for fault in faults:
            yield _counted(fault, f"each change on disk, {name}", [case for case in found if case.fault == fault])


def _counted(fault: str, where: str, found: Sequence[Case]) -> Row:
    for case in found:
        if not case.survived:
            print(case, flush=True)
    explained = sum(
        (case.fault in REFUSALS and case.refused_with_a_sentence)
        or (case.fault in SIGNALS and case.stopped_with_a_sentence)
        for case in found
    )
    same = sum(case.same_after and case.kept and case.whole for case in found)
    return [fault, where, len(found), same, explained, sum(not case.survived for case in found)]


def damaged(scratch: Path) -> Iterator[Row]:
    """Each file of two stages, damaged in six ways; the same run computes that stage again and no other."""
    model, settings, whole = small("llama", "sdpa"), Settings(("+",), 3), scratch / "whole"
    run_stages(model, settings, whole, ["accuracy"], Silent())
    files = sorted(p.relative_to(whole) for p in whole.glob("*/*") if p.is_file())
    for name, damage in DAMAGES.items():
        same = 0
        for file in files:
            folder = Path(shutil.copytree(whole, scratch / "damaged"))
            before = records(folder)
            damage(folder / file)
            run_stages(model, settings, folder, ["accuracy"], Silent())
            others = {stage: text for stage, text in records(folder).items() if stage != file.parts[0]}
            same += snapshot(folder) == snapshot(whole) and others.items() <= before.items()
            shutil.rmtree(folder)
        yield [f"stage file {name}", "each file of two stages", len(files), same, 0, len(files) - same]


def out_of_memory(scratch: Path) -> Iterator[Row]:
    """Each stage that runs the model, with memory for a third of the rows of its largest pass."""
    model, settings = copy_and_add(), smaller(("+",), 6, topk=8, neurons="atp")
    tried = same = 0
    for stage in (s for s in all_stages() if not s.on_request):
        memory._chunks = memory._Chunks()
        rows: list[int] = []
        with memory_for(np.inf, model, rows):
            much = run_stages(model, settings, scratch / "much", [stage.name], Silent())
        most = max(rows, default=0)
        with memory_for(max(2, most // 3), model, []):
            little = run_stages(model, settings, scratch / "little", [stage.name], Silent())
        if most > 2:
            tried += 1
            found, wanted = (vars(folder.read(stage.result)) for folder in (little, much))
            try:
                assert_close(found, wanted, stage.name)
                same += 1
            except AssertionError as error:
                print(error, flush=True)
    yield ["out of memory", "each stage that runs the model", tried, same, 0, tried - same]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    record_option(parser)
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for found in (damaged(scratch), at_points(scratch, arguments.every), out_of_memory(scratch)):
            for row in found:
                rows.append(row)
                print(*row, sep=", ", flush=True)
    if arguments.record:
        notes = [] if arguments.every == 1 else [f"Every {arguments.every}th point was tried."]
        record(arguments.record, {"faults": Table(COLUMNS, rows)}, notes)


if __name__ == "__main__":
    main()

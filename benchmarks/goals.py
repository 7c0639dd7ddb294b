"""Aims beside what was measured: one table, made from the result files.

python -m benchmarks.goals
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.record import Table, record
from benchmarks.tables import read_result

NAME = "goals"


@dataclass(frozen=True)
class Goal:
    """A number in a table of a result file, by its row and column. It should be at most `most`, or at least `least`."""

    what: str
    result: str
    key: str
    row: Any
    column: str
    most: float | None = None
    least: float | None = None
    divided_by: float = 1.0


LLAMA = "Llama-3-8B's shape: "
GOALS = [
    Goal(f"{LLAMA}exact effects of 229,376 neurons, 50 prompts × 4 operators, minutes", "large-8b", "single-neurons",
         "the same by the stage `neurons`, minutes (measured)", "value", most=7),
    Goal(f"{LLAMA}10¹² operations a second in the replayed layers", "large-8b", "single-neurons",
         "in the replayed layers, TFLOP/s", "value", least=500),
    Goal(f"{LLAMA}one neuron at a time ÷ that", "large-8b", "single-neurons", "one at a time ÷ stage", "value", least=40),
    Goal(f"{LLAMA}means over 362,404 prompts, seconds", "large-8b", "stages", "means", "all operators", most=40),
    Goal(f"{LLAMA}localize, 100 prompts × 4 operators, seconds", "large-8b", "stages", "localize", "all operators", most=120),
    Goal(f"{LLAMA}patterns of 200 neurons × 16 layers, seconds", "large-8b", "stages", "patterns", "all operators", most=40),
    Goal("classification of 3,200 neurons × 4 operators, seconds", "classify-gpu", "all", 3200, "seconds", most=10),
    Goal("the same with calibration, seconds", "classify-gpu", "all", 3200, "seconds, with calibration", most=120),
    Goal(f"{LLAMA}the paper preset, all stages but stability, minutes", "large-8b", "stages", "all together",
         "all operators", most=20, divided_by=60),
    Goal(f"{LLAMA}the same held to 24 GB, minutes", "large-8b-24gb", "stages", "all together", "all operators",
         divided_by=60),
    Goal("quick preset of tiny-llama on 2 cores, work of all stages, minutes", "run-whole-cpu", "stages", "all stages",
         "seconds, median", most=3, divided_by=60),
    Goal("the same with start, figures and report, minutes", "run-whole-cpu", "stages", "all", "seconds, median", most=3,
         divided_by=60),
    Goal("import of the package, seconds", "run-whole-cpu", "start", "import arithscope", "seconds", most=1),
    Goal("`arithscope --help`, seconds", "run-whole-cpu", "start", "arithscope --help", "seconds", most=0.5),
]  # fmt: skip


def number(goal: Goal) -> float:
    table = read_result(goal.result)["tables"][goal.key]
    [row] = [row for row in table["rows"] if row[0] == goal.row]
    return float(row[table["columns"].index(goal.column)]) / goal.divided_by


def wanted(goal: Goal) -> str:
    if goal.least is not None:
        return f"at least {goal.least:g}"
    return "to end" if goal.most is None else f"at most {goal.most:g}"


def reached(goal: Goal, value: float) -> str:
    return "yes" if (goal.most is None or value <= goal.most) and (goal.least is None or value >= goal.least) else "no"


def table() -> Table:
    found = [(goal, number(goal)) for goal in GOALS]
    rows = [[goal.what, wanted(goal), value, reached(goal, value), goal.result] for goal, value in found]
    return Table(["what", "aim", "measured", "reached", "result file"], rows)


if __name__ == "__main__":
    record(NAME, {"goals": table()}, measured_on="the machine of each result file")

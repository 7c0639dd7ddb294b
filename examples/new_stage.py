"""A stage of one's own: does a model give a+b and b+a the same answer? It is stored, resumed and summed up like any other."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import arithscope
from arithscope.experiments.common.result import Result, by_operator, summary_table
from arithscope.pipeline.registry import STAGES, Stage
from arithscope.pipeline.runner import run
from arithscope.prompts import random_source
from arithscope.stats.intervals import bootstrap_mean
from arithscope.utils.progress import Silent


@dataclass(frozen=True, repr=False)
class Commutes(Result):
    table: pd.DataFrame  # operator, measure, value, low, high, n

    def summary(self) -> dict[str, Any]:
        return by_operator(self.table)


def commutes(model: Any, settings: Any, results: dict[str, Any], progress: Any, executor: Any) -> Commutes:
    rows = results["accuracy"].prompts.query("operator == '+'")
    pairs = rows.merge(rows, left_on=["op1", "op2"], right_on=["op2", "op1"]).query("op1_x < op2_x")
    same = bootstrap_mean(pairs.predicted_x == pairs.predicted_y, random_source(settings.seed, "commutes"))
    return Commutes(summary_table({"+": {"same_answer": same}}))


stage = Stage("commutes", Commutes, needs=("accuracy",), reads=("seed",), compute=commutes)
model, settings = arithscope.load("tiny-gptj"), arithscope.Settings(("+",), max_operand=30)
folder = run(model, settings, Path("runs/commutes"), ["commutes"], Silent(), known=[*STAGES, stage])
print(folder.read("commutes", Commutes).table)

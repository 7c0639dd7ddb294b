"""A new stage: does a model give a+b and b+a the same answer? It is stored, resumed and summarised like any other."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

import arithscope
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common import schema
from arithscope.experiments.common.result import Result, by_operator, summary_table
from arithscope.experiments.common.stage import Context, stage
from arithscope.stats.intervals import share_of


@dataclass(frozen=True, repr=False)
class Symmetry(Result):
    """Whether the order of the operands matters."""

    table: pd.DataFrame = schema.table("Share of pairs that get the same answer.", *schema.SUMMARY_TABLE)

    def summary(self) -> dict[str, Any]:
        return by_operator(self.table)


@stage(needs=(Accuracy,))
def symmetry(ctx: Context) -> Symmetry:
    """Share of pairs a+b, b+a that get the same answer."""
    rows = ctx.results[Accuracy].prompts.query("operator == '+'")
    pairs = rows.merge(rows, left_on=["op1", "op2"], right_on=["op2", "op1"]).query("op1_x < op2_x")
    same = share_of(pairs.predicted_x == pairs.predicted_y)
    return Symmetry(summary_table({"+": {"same_answer": same}}))


if __name__ == "__main__":
    run = arithscope.run("tiny-gptj", "runs/symmetry", ["symmetry"], operators="+", max_operand=30)
    print(run.symmetry.table)

"""Accuracy on all legal prompts, and with it the correct prompts that every later experiment draws from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.experiments.common.answers import Answers
from arithscope.experiments.common.result import Result, by_operator, table_of
from arithscope.experiments.means import MeanActivations
from arithscope.models.engine.sweep import sweep
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, Template, operand_grid, operator_indices, random_source
from arithscope.stats.measures import Mean, bootstrap_mean
from arithscope.utils.progress import Progress, Silent


@dataclass(frozen=True, repr=False)
class Accuracy(Result):
    """prompts: every legal prompt with the model's answer. `predicted` is −1 where the model's token is no number.
    table: per operator, and averaged over operators, with intervals: `accuracy`, `p_answer` (the mean probability of the
    answer) and `p_answer_correct` (the same over correct prompts)."""

    prompts: pd.DataFrame  # operator, op1, op2, answer, predicted, correct, p_answer
    table: pd.DataFrame  # operator, measure, value, low, high, n

    def summary(self) -> dict[str, Any]:
        return by_operator(self.table)

    @property
    def operators(self) -> tuple[str, ...]:
        present = set(self.prompts.operator)
        return tuple(o for o in OPERATORS if o in present)

    def correct(self, operator: str | None = None) -> Prompts:
        """The correct prompts, of one operator or of all."""
        rows = self.prompts[self.prompts.correct]
        return as_prompts(rows if operator is None else rows[rows.operator == operator])

    def rows(self, prompts: Prompts) -> pd.DataFrame:
        """What is known of some legal prompts, in their order."""
        wanted = {"operator": np.array(OPERATORS)[prompts.operator], "op1": prompts.op1, "op2": prompts.op2}
        return pd.DataFrame(wanted).merge(self.prompts, how="left", on=list(wanted), validate="many_to_one")


def as_prompts(rows: pd.DataFrame) -> Prompts:
    """A table with the columns operator, op1 and op2 as prompts."""
    indices = rows.operator.map({o: i for i, o in enumerate(OPERATORS)})
    return Prompts(*(np.asarray(column, dtype=np.int64) for column in (rows.op1, indices, rows.op2)))


def accuracy(model: Model, prompts: Prompts, seed: int = 0, progress: Progress | None = None) -> Accuracy:
    """Ask the model some legal prompts: all of an operator, say, or a sample of one's own."""
    legal = prompts.legal(model.limit)
    if not legal.all():
        raise UserError(
            f"{prompts[~legal][:1].text(Template())[0]} is not a legal prompt: operands and answer must be numbers from 0 to "
            f"{model.limit - 1}; choose prompts with `legal_prompts`."
        )
    answers = Answers(model, prompts)
    with (progress or Silent()).task("accuracy", len(prompts)) as advance:
        for block in sweep(model, prompts, progress=advance):
            answers.see(block.rows, block.logits)
    return _tabulated(prompts, answers.predicted, answers.p_answer, seed)


def accuracy_from(means: MeanActivations, operators: Sequence[str], limit: int, seed: int, half: int = 0) -> Accuracy:
    """The same from the sweep that mean activations were taken from, which asked all of them; of one half of the prompts, or
    of all (0)."""
    prompts = operand_grid(means.operators, means.max_operand)
    kept = np.flatnonzero(prompts.legal(limit) & np.isin(prompts.operator, operator_indices(operators)))
    if half:
        kept = kept[in_half(prompts[kept], half, seed)]
    return _tabulated(prompts[kept], means.predicted[kept], means.p_answer[kept], seed)


def in_half(prompts: Prompts, half: int, seed: int) -> NDArray[np.bool_]:
    """Which prompts are in the first or second half: those of each operator are halved at random."""
    kept = np.zeros(len(prompts), dtype=bool)
    for operator in np.unique(prompts.operator):
        rows = np.flatnonzero(prompts.operator == operator)
        order = random_source(seed, "half", OPERATORS[operator]).permutation(rows)
        kept[order[: len(order) // 2] if half == 1 else order[len(order) // 2 :]] = True
    return kept


def _tabulated(prompts: Prompts, predicted: NDArray[np.int32], p_answer: NDArray[np.float32], seed: int) -> Accuracy:
    frame = pd.DataFrame(
        {
            "operator": np.array(OPERATORS)[prompts.operator],
            "op1": prompts.op1.astype(np.int32),
            "op2": prompts.op2.astype(np.int32),
            "answer": prompts.answer.astype(np.int32),
            "predicted": predicted,
            "correct": predicted == prompts.answer,
            "p_answer": p_answer,
        }
    )
    return Accuracy(frame, _table(frame, seed))


def _table(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    measured: dict[str, dict[str, Mean]] = {}
    for operator, group in frame.groupby("operator", sort=False):
        values = {
            "accuracy": group.correct,
            "p_answer": group.p_answer,
            "p_answer_correct": group.p_answer[group.correct],
        }
        measured[str(operator)] = {
            name: bootstrap_mean(x, random=random_source(seed, "accuracy", name, str(operator)))
            for name, x in values.items()
        }
    return table_of(measured)

"""Accuracy on all legal prompts; every later experiment samples from the correct ones (Appendix H)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.experiments.common import schema
from arithscope.experiments.common.result import AVERAGE, Result, mean_rows, summary_table
from arithscope.experiments.common.stage import Context, stage
from arithscope.experiments.means import Answers, MeanActivations
from arithscope.models.model import Model
from arithscope.prompts import (
    OPERATORS,
    Place,
    Prompts,
    Stratum,
    Template,
    operator_indices,
    random_source,
    stratum_from_json,
    whole_numbers,
)
from arithscope.stats.intervals import Mean, share_of, unit_mean
from arithscope.utils.progress import Progress, Silent


@dataclass(frozen=True, repr=False)
class Accuracy(Result):
    """Measures: `accuracy`; `p_answer`, the mean probability of the right answer; `p_answer_correct`, over correct prompts;
    `baseline`, the accuracy of always giving the operator's most frequent answer (half of all quotients are 0); and
    `accuracy_over_prompts`, the average in which prompts, not operators, weigh the same, as in the paper."""

    prompts: pd.DataFrame = schema.table(
        "Every legal prompt with the model's answer.",
        *schema.PROMPT_KEY,
        schema.number("answer", "the right answer"),
        schema.number(
            "predicted", "the model's answer, or value of the token asked for; −1 if its token is not a number"
        ),
        schema.boolean("correct", "whether that is right"),
        schema.boolean("whole", "whether the whole answer is right: the same, or right at every answer step"),
        schema.number("p_answer", "probability of the right answer"),
        unique=True,
    )
    table: pd.DataFrame = schema.table("Accuracy and probability by operator, and their average.")
    studied: dict[str, Any] = schema.value(schema.STUDIED)

    @property
    def stratum(self) -> Stratum:
        return stratum_from_json(self.studied)

    @property
    def operators(self) -> tuple[str, ...]:
        present = set(self.prompts.operator)
        return tuple(o for o in OPERATORS if o in present)

    def correct(self, operator: str | None = None) -> Prompts:
        """The correct prompts, of one operator or of all."""
        return self._where(self.prompts.correct, operator)

    def whole(self, operator: str | None = None) -> Prompts:
        """The prompts whose whole answer is right."""
        return self._where(self.prompts.whole, operator)

    def correct_in_part(self, operator: str) -> Prompts:
        """The correct prompts of an operator whose answer is wrong at another step; none where numbers are whole."""
        return self._where(self.prompts.correct & ~self.prompts.whole, operator)

    def _where(self, mask: "pd.Series[bool]", operator: str | None) -> Prompts:
        rows = self.prompts[mask]
        return as_prompts(rows if operator is None else rows[rows.operator == operator], self.stratum.asked)

    def rows(self, prompts: Prompts) -> pd.DataFrame:
        """Rows of `prompts` for the given legal prompts, in their order."""
        keys = {"operator": np.array(OPERATORS)[prompts.operator], "op1": prompts.op1, "op2": prompts.op2}
        return pd.DataFrame(keys).merge(self.prompts, how="left", on=list(keys), validate="many_to_one")


def as_prompts(rows: pd.DataFrame, asked: Place) -> Prompts:
    """Prompts from a table with the columns operator, op1 and op2."""
    indices = rows.operator.map({o: i for i, o in enumerate(OPERATORS)})
    op1, operator, op2 = (np.asarray(column, dtype=np.int64) for column in (rows.op1, indices, rows.op2))
    return Prompts(op1, operator, op2, asked)


@stage(needs=(MeanActivations,), reads=("operators", "seed", "half"), paper="App. H")
def accuracy(ctx: Context) -> Accuracy:
    """Accuracy of the model on all legal prompts, by operator."""
    return accuracy_of(ctx.results[MeanActivations], ctx.settings.operators, ctx.settings.half, ctx.settings.seed)


def accuracy_of(means: MeanActivations, operators: Sequence[str], half: int = 0, seed: int = 0) -> Accuracy:
    """Accuracy of answers that were found together with mean activations, of all legal prompts or of a half of them."""
    prompts = means.prompts
    studied = np.isin(prompts.operator, operator_indices(operators))
    rows = np.flatnonzero(means.stratum.legal(prompts) & studied)
    if half:
        rows = rows[in_half(prompts[rows], half, seed)]
    found = means.predicted[rows], means.p_answer[rows], means.whole[rows]
    return _tabulate(prompts[rows], *found, means.stratum)


def measure_accuracy(model: Model, prompts: Prompts, progress: Progress | None = None) -> Accuracy:
    """Accuracy on some legal prompts: all of an operator, or a sample of your own.

    Raises:
        UserError: If a prompt is not legal.
    """
    legal = model.encoder.legal(prompts)
    stratum = model.encoder.stratum or whole_numbers(model.limit - 1, model.limit)
    if not legal.all():
        if not stratum.whole:
            problem = f"is not a prompt of operands {stratum.described()}"
            raise UserError(f"{prompts[~legal][:1].text(Template())[0]} {problem}; choose prompts of that layout.")
        raise UserError(
            f"{prompts[~legal][:1].text(Template())[0]} is not a legal prompt: operands and answer must be numbers from 0 to "
            f"{model.limit - 1}; choose prompts with `legal_prompts`."
        )
    answers = Answers(model, prompts)
    with (progress or Silent()).task("accuracy", len(prompts)) as advance:
        for block in model.engine.sweep(model, prompts, progress=advance):
            answers.observe(block.rows, block.logits)
    right = answers.predicted == prompts.result
    return _tabulate(prompts, answers.predicted, answers.p_answer, right, stratum)


def in_half(prompts: Prompts, half: int, seed: int) -> NDArray[np.bool_]:
    """Mask of the prompts in the first or second half; each operator's prompts are halved at random."""
    chosen = np.zeros(len(prompts), dtype=bool)
    for operator in np.unique(prompts.operator):
        rows = np.flatnonzero(prompts.operator == operator)
        order = random_source(seed, "half", OPERATORS[operator]).permutation(rows)
        chosen[order[: len(order) // 2] if half == 1 else order[len(order) // 2 :]] = True
    return chosen


def _tabulate(
    prompts: Prompts,
    predicted: NDArray[np.int32],
    p_answer: NDArray[np.float32],
    whole: NDArray[np.bool_],
    stratum: Stratum,
) -> Accuracy:
    kind = np.int32 if stratum.answers[1] < 2**31 else np.int64
    numbers = {name: getattr(prompts, name).astype(kind) for name in ("op1", "op2", "answer")}
    frame = pd.DataFrame({"operator": np.array(OPERATORS)[prompts.operator], **numbers, "predicted": predicted})
    frame = frame.assign(correct=predicted == prompts.result, whole=whole, p_answer=p_answer)
    measured: dict[str, dict[str, Mean]] = {}
    for operator, rows in frame.groupby("operator", sort=False):
        most_frequent = pd.Series(stratum.asked.of(rows.answer.to_numpy())).value_counts(normalize=True)
        values = {"accuracy": rows.correct, "p_answer": rows.p_answer, "p_answer_correct": rows.p_answer[rows.correct]}
        measured[str(operator)] = {name: unit_mean(x) for name, x in values.items()}
        measured[str(operator)]["baseline"] = Mean(most_frequent.max(), nan, nan, len(rows))
    over_prompts = mean_rows({"accuracy_over_prompts": share_of(frame.correct)}, operator=AVERAGE)
    table = pd.concat([summary_table(measured), pd.DataFrame(over_prompts)], ignore_index=True)
    return Accuracy(frame, table, stratum.as_json())

"""Answers of several tokens, in one sweep for all answer steps.

1. Run every prompt with the right answer behind it (teacher forcing). Each token of the answer is predicted from the right
   tokens before it, so one pass gives the model's answer at every step; and the mean activations at all positions.
2. An answer is right if every step is. Its log-probability is the sum over steps.
3. After the right answer, does the model stop, or does it write another digit?
4. Let the model continue by itself (free running): the tokens it writes agree with those of the steps up to the first wrong
   one; from there on they may differ. Only prompts with a wrong step that is not the last have to be run.
5. Sums and differences: how often is the whole answer right by how far a carry travels?
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.accuracy import as_prompts
from arithscope.experiments.common import schema
from arithscope.experiments.common.result import Result, mean_entry, mean_rows, summary_table
from arithscope.experiments.common.samples import batches
from arithscope.experiments.common.stage import Context, stage, sweep_memory
from arithscope.experiments.means import Answers, MeanActivations, Singles, mean_of_operators, prompt_units
from arithscope.models.layouts import FEWEST_PROMPTS
from arithscope.models.memory import logit_bytes
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Ints, Place, Prompts, Stratum, chain_length, stratum_from_json
from arithscope.stats.intervals import Mean, share_of, t_mean, unit_mean
from arithscope.utils.progress import Advance

CARRYING = "+-"  # operators with carries or borrows


@dataclass(frozen=True, repr=False)
class WholeAnswers(Result):
    """Measures: `accuracy`, the share of answers with every token right; `accuracy_1`, `accuracy_2`, … of each step, given the
    right tokens before it; `log_p`, the mean log-probability of the right answer, and `p_answer`, its mean probability;
    `agreement`, the share of prompts for which free running writes what the steps say; `stops`, the share of prompts for which
    the model writes no further digit after the right answer; `accuracy_chain_0`, `accuracy_chain_1`, …, the accuracy of the
    sums or differences whose longest carry travels so many places."""

    prompts: pd.DataFrame = schema.table(
        "Every legal prompt of the layout.",
        *schema.PROMPT_KEY,
        schema.number("answer", "the right answer"),
        schema.boolean("correct", "whether every step is right"),
        schema.number("log_p", "log-probability of the right answer, the sum over steps"),
        schema.number("free", "what the model writes by itself; −1 if no answer has one of these tokens there"),
        schema.boolean("agrees", "whether that is what the steps say, token by token"),
        schema.boolean("stops", "whether the model writes no further digit after the right answer"),
        unique=True,
    )
    predicted: NDArray[np.int32] = schema.array(
        "value of the model's token; −1 if no answer has it there", "int32", "steps, prompts"
    )
    log_p: Singles = schema.array("log-probability of the right token", "float32", "steps, prompts")
    table: pd.DataFrame = schema.table("Measures by operator that is studied, and their average.")
    chains: pd.DataFrame = schema.table(
        "Accuracy of sums and differences by how far a carry travels.",
        schema.OPERATOR,
        schema.integer("chain", "places that the longest carry or borrow travels; 0 without any", key=True),
        schema.text("measure", "`accuracy` of whole answers; `accuracy_1`, `accuracy_2`, … of each step", key=True),
        *schema.MEAN_COLUMNS,
    )
    heads: Singles = schema.array("mean activation of each head", "float32", "layers, positions, heads, head dim")
    neurons: Singles = schema.array("mean activation of each neuron", "float32", "layers, positions, neurons")
    operators: list[str] = schema.value("operators that have prompts in this layout")
    studied: dict[str, Any] = schema.value(schema.STUDIED)

    @property
    def stratum(self) -> Stratum:
        """The layout, at its last step."""
        return stratum_from_json(self.studied)

    def summary(self) -> dict[str, Any]:
        out = super().summary()
        for row in self.chains[self.chains.measure == "accuracy"].to_dict("records"):
            out[str(row["operator"])][f"accuracy_chain_{row['chain']}"] = mean_entry(row)
        return out

    def means_at(self, step: int) -> MeanActivations:
        """Mean activations and answers of one step: what the stage `means` computes for it alone."""
        stratum = self.stratum.at_step(step)
        positions = self.heads.shape[1] - (self.stratum.steps - step)
        heads, neurons = (np.ascontiguousarray(x[:, :positions]) for x in (self.heads, self.neurons))
        predicted, p_answer = self.predicted[step - 1], np.exp(self.log_p[step - 1])
        whole = np.logical_and.reduce(self.right())
        return MeanActivations(heads, neurons, predicted, p_answer, whole, self.operators, stratum.as_json())

    def left_out(self, step: int) -> dict[str, str]:
        """Operators for which a step is not studied, with the reason: too few prompts, or always giving the same answer would
        be right as often, so that correct answers say nothing. (The first digit of all three-digit sums of two-digit numbers
        is 1.)"""
        reasons, right = {}, self.right()[step - 1]
        asked = self.stratum.at_step(step).asked
        for operator in self.operators:
            rows = np.flatnonzero(self.prompts.operator == operator)
            values, counts = np.unique(asked.of(self.prompts.answer.to_numpy()[rows]), return_counts=True)
            constant, share = values[counts.argmax()], share_of(right[rows])
            if len(values) == 1:
                reasons[operator] = f"{constant} is asked for in all prompts"
            elif len(rows) < FEWEST_PROMPTS:
                reasons[operator] = f"there are only {len(rows)} prompts"
            elif share.low <= counts.max() / len(rows):
                reasons[operator] = (
                    f"the model is right in {share.value:.0%} of the prompts, always answering {constant} in "
                    f"{counts.max() / len(rows):.0%}"
                )
        return reasons

    def right(self) -> NDArray[np.bool_]:
        """Whether each step of each prompt is right: [steps, prompts]."""
        return self.predicted == right_values(self.stratum, self.prompts.answer.to_numpy(dtype=np.int64))


@stage(reads=("operators",), memory=sweep_memory, joins_steps=True)
def whole_answers(ctx: Context) -> WholeAnswers:
    """Accuracy of whole answers and of each step, free-running answers, and mean activations, in one sweep for all steps."""
    model, stratum = ctx.model, ctx.stratum
    operators = list(model.encoder.operators)
    prompts = stratum.run(operators)
    units = [(prompts[rows],) for rows in prompt_units(prompts)]
    with ctx.progress.task("whole_answers", 2 * len(prompts)) as advance:
        heads, neurons, *answers = zip(*ctx.map(answers_of, units, advance), strict=True)
        continued = [(some, own) for (some,), own in zip(units, answers[-1], strict=True)]
        free = np.concatenate(ctx.map(free_answers, continued, advance), axis=1)
        predicted, log_p, tokens = (np.concatenate(parts, axis=1) for parts in answers)
    mean_heads, mean_neurons = (mean_of_operators(x, prompts, units) for x in (heads, neurons))
    right = predicted == right_values(stratum, prompts.answer)
    numbers = {name: getattr(prompts, name) for name in ("op1", "op2", "answer")}
    table = pd.DataFrame({"operator": np.array(OPERATORS)[prompts.operator], **numbers}).assign(
        correct=right.all(axis=0),
        log_p=log_p.sum(axis=0, dtype=np.float64),
        free=written_numbers(stratum, free),
        agrees=(free == predicted).all(axis=0),
        stops=stops_after(model, tokens[-1]),
    )
    studied = table[table.operator.isin(ctx.settings.operators)]
    derived = measures_of(studied, right), chains_of(studied, right)
    return WholeAnswers(table, predicted, log_p, *derived, mean_heads, mean_neurons, operators, stratum.as_json())


def right_values(stratum: Stratum, answers: Ints) -> Ints:
    """Value of the right token at each step: [steps, prompts]."""
    return np.stack([each.asked.of(answers) for each in stratum.every_step()])


def written_numbers(stratum: Stratum, values: NDArray[np.int32]) -> Ints:
    """The numbers that tokens with these values [steps, prompts] write; −1 where a token is not a number."""
    powers = np.array([10**each.asked.low for each in stratum.every_step()])
    return np.where((values < 0).any(axis=0), -1, powers @ values.astype(np.int64))


def answers_of(model: Model, prompts: Prompts, *, advance: Advance) -> tuple[NDArray[Any], ...]:
    """Unit of work: mean activations of heads and neurons; predicted values and log-probabilities of the right token at each
    step, [steps, prompts]; and the most probable tokens at each step and behind the answer, [steps + 1, prompts]."""
    answers = [Answers(view, prompts.asking(view.encoder.asked)) for view in model.every_step()]
    following = np.empty(len(prompts), dtype=np.int64)

    def observe(rows: Ints, logits: Tensor) -> None:
        for i, own in enumerate(answers):
            own.observe(rows, logits[:, i])
        following[rows] = logits[:, -1].argmax(-1).cpu().numpy()

    ids = model.encoder.encode_answered(prompts)
    means = model.engine.mean_activations(model, prompts, advance, observe=observe, steps=len(answers) + 1, ids=ids)
    # Without those at the answer's last token, which no step is given.
    heads, neurons = (x[:, :-1].cpu().numpy() for x in (means.heads, means.neurons))
    predicted, log_p, tokens = (
        np.stack([getattr(own, x) for own in answers]) for x in ("predicted", "log_p", "tokens")
    )
    return heads, neurons, predicted, log_p, np.vstack([tokens, following])


@torch.no_grad()
def forced_tokens(model: Model, prompts: Prompts) -> Ints:
    """The most probable token at each step, given the right ones before it, and behind the answer: [steps + 1, prompts].

    Args:
        model: A model at the last answer step of a stratum.
        prompts: Prompts of the stratum.
    """
    asked = len(model.every_step()) + 1
    tokens = np.empty((asked, len(prompts)), dtype=np.int64)
    for rows, batch in batches(model, prompts, 0, asked * logit_bytes(model)):
        ids = model.encoder.encode_answered(batch).to(model.device)
        tokens[:, rows] = model.logits_at_last(ids, asked).argmax(-1).T.cpu().numpy()
    return tokens


def measure_answers(model: Model, prompts: Prompts) -> NDArray[np.bool_]:
    """Whether each token of the answers is right, given the right ones before it: [steps, prompts]. See `forced_tokens`
    for the arguments."""
    return forced_tokens(model, prompts)[:-1] == _right_tokens(model, prompts)


def _right_tokens(model: Model, prompts: Prompts) -> Ints:
    """The tokens of the right answers: [steps, prompts]."""
    views = model.every_step()
    return np.stack([view.encoder.answers(prompts.asking(view.encoder.asked)).numpy() for view in views])


@torch.no_grad()
def free_answers(model: Model, prompts: Prompts, tokens: Ints, *, advance: Advance) -> NDArray[np.int32]:
    """Unit of work: values of the tokens that the model writes by itself, [steps, prompts]. `tokens` are those of
    `forced_tokens`: up to the first wrong one, the model writes the same."""
    written, views = tokens[:-1].copy(), model.every_step()
    wrong = written != _right_tokens(model, prompts)
    first_wrong = np.where(wrong.any(axis=0), wrong.argmax(axis=0), len(views))
    questions = model.encoder.encode_questions(prompts)
    for step in range(1, len(views)):
        if len(rows := np.flatnonzero(first_wrong < step)):
            ids = torch.cat([questions[rows], torch.from_numpy(written[:step, rows].T)], dim=1)
            written[step, rows] = _next_tokens(model, prompts[rows], ids)
    advance(len(prompts))
    return np.stack([view.token_numbers[own].numpy() for view, own in zip(views, written, strict=True)])


def stops_after(model: Model, following: Ints) -> NDArray[np.bool_]:
    """Whether these tokens, which follow an answer, are not further digits of it."""
    return np.array([not token[:1].isdecimal() for token in model.encoder.tokens(following.tolist())], dtype=np.bool_)


def _next_tokens(model: Model, prompts: Prompts, ids: Int[Tensor, "prompts length"]) -> Ints:
    """The most probable token after these tokens of each prompt: its question, and some of an answer."""
    found = np.empty(len(prompts), dtype=np.int64)
    for block in model.engine.sweep(model, prompts, ids=ids):
        found[block.rows] = block.logits.argmax(-1).cpu().numpy()
    return found


def measures_of(prompts: pd.DataFrame, right: NDArray[np.bool_]) -> pd.DataFrame:
    """The table of measures; `right` says of each step and prompt whether it is right, and `prompts` are some of them."""
    measured = {}
    for operator, rows in prompts.groupby("operator", sort=False):
        measured[str(operator)] = {
            **_accuracies(right[:, rows.index]),
            "p_answer": unit_mean(np.exp(rows.log_p)),
            "log_p": t_mean(rows.log_p),
            "agreement": share_of(rows.agrees),
            "stops": share_of(rows.stops),
        }
    return summary_table(measured)


def chains_of(prompts: pd.DataFrame, right: NDArray[np.bool_]) -> pd.DataFrame:
    """The table of accuracy by how far a carry travels, with the same arguments."""
    table: list[dict[str, Any]] = []
    for operator in [o for o in CARRYING if (prompts.operator == o).any()]:
        rows = prompts[prompts.operator == operator]
        chains = chain_length(as_prompts(rows, Place()))
        for chain in np.unique(chains).tolist():
            table += mean_rows(_accuracies(right[:, rows.index[chains == chain]]), operator=operator, chain=chain)
    return WholeAnswers.frame("chains", table)


def _accuracies(right: NDArray[np.bool_]) -> dict[str, Mean]:
    """Of whole answers and of each step."""
    steps = {f"accuracy_{step}": share_of(own) for step, own in enumerate(right, start=1)}
    return {"accuracy": share_of(right.all(axis=0)), **steps}

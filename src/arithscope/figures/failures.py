"""Correct against incorrect prompts: what heuristic neurons contribute, and what pushed the wrong answers."""

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arithscope.experiments.classify import CALIBRATED
from arithscope.experiments.failures import AUC, HYPOTHESES, Failures
from arithscope.figures.registry import figure
from arithscope.figures.style import OPERATOR_COLOURS, SIGNS, errors, hide_unused, new_figure, table_figure

LABELS = (  # of both hypotheses, and of the logistic regression on them
    "associated heuristic\nneurons",
    "contribution to the\ncorrect answer's logit",
    "log-odds of being correct\nper standard deviation",
)
SHOWN = 5  # worst prompts per operator
LINE = 76  # characters in a line of the heuristics column


@figure("failure-contributions", Failures, section="failures", order=260, title="Why some prompts fail")
def failure_contributions(failures: Failures) -> Figure:
    """Correctly and incorrectly answered prompts. Top: number of associated heuristic neurons (calibrated). Middle:
    activation × value-vector logit of the correct answer, summed over all heuristic neurons. Titles: difference of
    means, correct minus incorrect. Bottom: coefficients of a logistic regression of correctness on both. Lines:
    quartiles; diamonds: means; brackets and error bars: 95 % bootstrap intervals. (Paper: Section 4.3.)"""
    operators = [str(o) for o in failures.prompts.operator.unique()]
    columns = max(1, len(operators))
    figure, axes = new_figure(2.7 * columns + 0.8, 7.4, len(LABELS), columns)
    differences: Any = failures.differences.set_index(["operator", "criterion", "feature"])
    for panels, operator in zip(axes.T, operators, strict=False):
        rows = failures.prompts[failures.prompts.operator == operator]
        for panel, feature in zip(panels, HYPOTHESES, strict=False):
            difference = differences.loc[(operator, CALIBRATED, feature)]
            _plot_prompts(panel, rows, f"{CALIBRATED}_{feature}", OPERATOR_COLOURS[operator])
            interval = f"[{difference.low:.2f}, {difference.high:.2f}]"
            panel.set_title(f"{SIGNS[operator]}: {difference.value:+.2f} {interval}")
        _plot_coefficients(panels[-1], failures.regression, operator)
    if not operators:
        axes[0, 0].text(0, 0.5, "no operator has both correct and incorrect prompts")
        hide_unused(axes[:, 0], 1)
    for panel, label in zip(axes[:, 0], LABELS, strict=True):
        panel.set_ylabel(label)
    return figure


def _plot_prompts(panel: Axes, rows: pd.DataFrame, column: str, colour: str) -> None:
    """Every prompt as a dot, with means and quartiles of both groups."""
    random = np.random.default_rng(0)
    for x, (correct, shade) in enumerate(((True, colour), (False, "#666666"))):
        values = rows.loc[rows.correct == correct, column].to_numpy(dtype=np.float64)
        panel.plot(x + random.uniform(-0.18, 0.18, len(values)), values, ".", color=shade, markersize=3, alpha=0.6)
        quartiles = np.quantile(values, [0.25, 0.5, 0.75])
        panel.hlines(quartiles, x - 0.3, x + 0.3, color="black", linewidth=(0.7, 1.6, 0.7))
        panel.plot(x, values.mean(), "D", color="white", markeredgecolor="black", markersize=5)
    panel.set_xticks([0, 1], ["correct", "incorrect"])
    panel.set_xlim(-0.5, 1.5)


def _plot_coefficients(panel: Axes, regression: pd.DataFrame, operator: str) -> None:
    terms = regression[(regression.operator == operator) & (regression.criterion == CALIBRATED)].set_index("term")
    rows = terms.loc[list(HYPOTHESES)]
    panel.axhline(0, color="grey", linewidth=0.8)
    panel.errorbar([0, 1], rows.value, yerr=errors(rows), fmt="o", color=OPERATOR_COLOURS[operator], capsize=3)
    panel.set_xticks([0, 1], ["number of\nneurons", "contribution"])
    panel.set_xlim(-0.5, 1.5)
    auc: Any = terms.loc[AUC]
    panel.set_title(f"AUC {auc.value:.2f} [{auc.low:.2f}, {auc.high:.2f}]", fontsize=7.5)


@figure(
    "worst-prompts", Failures, section="failures", order=270, title="The worst errors, and the heuristics behind them"
)
def worst_prompts(failures: Failures) -> Figure:
    """For each operator the incorrect prompts with the least probable correct answer. Push: by how much heuristic
    neurons (calibrated) raise the predicted answer's logit over the correct one's, in total and by heuristic; each
    neuron counts for the heuristic it matches furthest beyond expectation. Logit lens, up to the final norm's
    scale. (Paper: Section 4.3.)"""
    rows = []
    for _, worst in failures.worst.groupby("operator", sort=False):
        for row in worst.head(SHOWN).to_dict("records"):
            pushes = [f"{h} ({push:+.2f})" for h, push in zip(row["heuristics"], row["logit_differences"], strict=True)]
            prompt = f"{row['op1']}{SIGNS[row['operator']]}{row['op2']}="
            numbers = (
                str(row["answer"]),
                str(row["predicted"]),
                f"{row['p_answer']:.1e}",
                f"{row['logit_difference']:+.2f}",
            )
            rows.append([prompt, *numbers, textwrap.fill("; ".join(pushes) or "none", LINE)])
    header = ["prompt", "correct", "predicted", "P(correct)", "total push", "largest pushes, by heuristic"]
    return table_figure(header, rows, [1.0, 0.7, 0.8, 0.9, 0.9, 6.0])

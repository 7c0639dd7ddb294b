"""Why some prompts fail: what the bag of heuristics has for right and for wrong ones, and what pushed the wrong answers."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arithscope.experiments.classify import CALIBRATED
from arithscope.experiments.failures import AUC, HYPOTHESES, Failures
from arithscope.figures.style import OPERATOR_COLOURS, SIGNS, errors, hide_unused, new_figure, styled, table_figure

LABELS = dict(
    zip(HYPOTHESES, ("associated heuristic neurons", "contribution to the right answer's logit"), strict=True)
)
SHOWN = 5  # worst prompts of each operator
LINE = 76  # characters of the heuristics' column


@styled
def failure_contributions(failures: Failures) -> Figure:
    """Both hypotheses for correct and incorrect prompts of each operator, and what a logistic model makes of them."""
    operators = [str(o) for o in failures.prompts.operator.unique()]
    columns = max(1, len(operators))
    figure, axes = new_figure(2.7 * columns + 0.8, 7.4, len(HYPOTHESES) + 1, columns)
    differences: Any = failures.differences.set_index(["operator", "criterion", "feature"])
    for column, operator in zip(axes.T, operators, strict=False):
        rows = failures.prompts[failures.prompts.operator == operator]
        for panel, feature in zip(column, HYPOTHESES, strict=False):
            told = differences.loc[(operator, CALIBRATED, feature)]
            _spread(panel, rows, f"{CALIBRATED}_{feature}", OPERATOR_COLOURS[operator])
            panel.set_title(f"{SIGNS[operator]}: {told.value:+.2f} [{told.low:.2f}, {told.high:.2f}]")
        _coefficients(column[-1], failures.model, operator)
    if not operators:
        axes[0, 0].text(0, 0.5, "no operator has both right and wrong prompts")
        hide_unused(axes[:, 0], 1)
    for panel, label in zip(
        axes[:, 0], (*LABELS.values(), "log-odds of being right\nper standard deviation"), strict=True
    ):
        panel.set_ylabel(textwrap.fill(label, 24) if "\n" not in label else label)
    return figure


def _spread(panel: Axes, rows: pd.DataFrame, column: str, colour: str) -> None:
    """Every prompt as a dot, with mean and quartiles of both groups."""
    random = np.random.default_rng(0)
    for x, (correct, shade) in enumerate(((True, colour), (False, "#666666"))):
        values = rows.loc[rows.correct == correct, column].to_numpy(dtype=np.float64)
        panel.plot(x + random.uniform(-0.18, 0.18, len(values)), values, ".", color=shade, markersize=3, alpha=0.6)
        quartiles = np.quantile(values, [0.25, 0.5, 0.75])
        panel.hlines(quartiles, x - 0.3, x + 0.3, color="black", linewidth=(0.7, 1.6, 0.7))
        panel.plot(x, values.mean(), "D", color="white", markeredgecolor="black", markersize=5)
    panel.set_xticks([0, 1], ["right", "wrong"])
    panel.set_xlim(-0.5, 1.5)


def _coefficients(panel: Axes, model: pd.DataFrame, operator: str) -> None:
    mine = model[(model.operator == operator) & (model.criterion == CALIBRATED)].set_index("term")
    rows = mine.loc[list(HYPOTHESES)]
    panel.axhline(0, color="grey", linewidth=0.8)
    panel.errorbar([0, 1], rows.value, yerr=errors(rows), fmt="o", color=OPERATOR_COLOURS[operator], capsize=3)
    panel.set_xticks([0, 1], ["number of\nneurons", "contribution"])
    panel.set_xlim(-0.5, 1.5)
    area: Any = mine.loc[AUC]
    panel.set_title(f"area under the curve {area.value:.2f} [{area.low:.2f}, {area.high:.2f}]", fontsize=7.5)


@styled
def worst_prompts(failures: Failures) -> Figure:
    """Of each operator the prompts with the least probable right answer, and which heuristics pushed the one given."""
    rows = []
    for _, worst in failures.worst.groupby("operator", sort=False):
        for row in worst.head(SHOWN).to_dict("records"):
            pushed = [f"{h} ({push:+.2f})" for h, push in zip(row["heuristics"], row["logit_differences"], strict=True)]
            prompt = f"{row['op1']}{SIGNS[row['operator']]}{row['op2']}="
            figures = (f"{row['p_answer']:.1e}", f"{row['logit_difference']:+.2f}")
            named = textwrap.fill("; ".join(pushed) or "none", LINE)
            rows.append([prompt, str(row["answer"]), str(row["predicted"]), *figures, named])
    header = ["prompt", "right", "given", "P(right)", "pushed by all", "most of it by the neurons of"]
    return table_figure(header, rows, [1.0, 0.6, 0.6, 0.9, 1.1, 6.0])

"""Answers of several tokens: whole answers and their steps, carries that cause carries, and what the steps share."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arithscope.experiments.step_overlap import HEADS, NEURONS, StepOverlap
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.figures.registry import figure
from arithscope.figures.style import SIGNS, errors, grouped_bars, new_figure, outside_legend
from arithscope.prompts import Stratum

WHOLE_COLOUR = "black"
STEP_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


def measures_of(stratum: Stratum) -> dict[str, tuple[str, str]]:
    """Measures of accuracy, of whole answers and of each step, with name and colour."""
    steps = stratum.every_step() if stratum.steps > 1 else []
    colours = {own.step: STEP_COLOURS[(own.step - 1) % len(STEP_COLOURS)] for own in steps}
    right = {f"accuracy_{own.step}": (own.step_name, colours[own.step]) for own in steps}
    return {"accuracy": ("whole answer", WHOLE_COLOUR), **right}


@figure("whole-answers", WholeAnswers, section="answers", order=300, title="Accuracy of whole answers and of each step")
def whole_answers(answers: WholeAnswers) -> Figure:
    """Share of the layout's prompts whose answer is right in every token, and share of prompts for which the token of
    each answer step is right, given the right tokens before it. Error bars: 95 % intervals. (Not in the paper.)"""
    table: Any = answers.table.set_index(["measure", "operator"])
    operators = [o for o in answers.table.operator.unique() if o in SIGNS]
    figure, [[axes]] = new_figure(3.2 + 1.2 * len(operators), 3.4)
    bars = [
        (table.loc[measure].loc[operators], colour, name)
        for measure, (name, colour) in measures_of(answers.stratum).items()
    ]
    grouped_bars(axes, operators, bars)
    axes.set(ylabel="accuracy", ylim=(0, 1.05))
    outside_legend(figure, axes)
    return figure


@figure("carry-chains", WholeAnswers, section="answers", order=310, title="Accuracy by how far a carry travels")
def carry_chains(answers: WholeAnswers) -> Figure:
    """Sums by the longest chain of carries in them, and differences by the longest chain of borrows: over how many
    places it travels, 0 without any. The number of prompts is below the axis. Bars: 95 % intervals. (Not in the
    paper.)"""
    operators = [str(operator) for operator in answers.chains.operator.unique()]
    figure, [panels] = new_figure(2.0 + 2.6 * max(1, len(operators)), 3.6, 1, max(1, len(operators)), sharey=True)
    for panel, operator in zip(panels, operators, strict=False):
        rows = answers.chains[answers.chains.operator == operator]
        for measure, (name, colour) in measures_of(answers.stratum).items():
            own = rows[rows.measure == measure].sort_values("chain")
            panel.errorbar(own.chain, own.value, errors(own), marker="o", markersize=4, color=colour, label=name)
        panel.set_xticks(own.chain, [f"{row.chain}\nn = {row.n:,.0f}" for row in own.itertuples()])
        panel.set(title=SIGNS[operator], xlabel="places that a carry travels", ylim=(-0.03, 1.05))
        panel.margins(x=0.15)
    if operators:
        panels[0].set_ylabel("accuracy")
        outside_legend(figure, panels[0])
    else:
        panels[0].text(0.5, 0.5, "no sums or differences", ha="center", transform=panels[0].transAxes)
    return figure


@figure("step-overlap", WholeAnswers, StepOverlap, section="shared", order=340, title="What the answer steps share")
def step_overlap(answers: WholeAnswers, overlap: StepOverlap) -> Figure:
    """Intersection over union (IoU) of what two answer steps use: heads of their circuits, and top neurons in the layers
    that both steps study. Dashes: the IoU of random sets of the same sizes. (Not in the paper.)"""
    operators = [str(operator) for operator in overlap.table.operator.unique()]
    figure, [panels] = new_figure(9, 3.4, 1, 2, sharey=True)
    for panel, components in zip(panels, (HEADS, NEURONS), strict=True):
        _draw_overlap(panel, overlap.table[overlap.table.components == components], operators, answers.stratum)
    panels[0].set(title="heads of the circuits", ylabel="IoU", ylim=(0, 1.05))
    panels[1].set_title("top neurons")
    outside_legend(figure, panels[0])
    return figure


def _draw_overlap(panel: Axes, rows: pd.DataFrame, operators: list[str], stratum: Stratum) -> None:
    pairs = list(dict.fromkeys(zip(rows.step, rows.other, strict=True)))
    width = 0.8 / max(1, len(pairs))
    for i, (step, other) in enumerate(pairs):
        own = rows[(rows.step == step) & (rows.other == other)].set_index("operator").reindex(operators)
        x = np.arange(len(operators)) + (i - (len(pairs) - 1) / 2) * width
        label = f"{stratum.at_step(step).step_name}, {stratum.at_step(other).step_name}"
        panel.bar(x, own.iou, width * 0.9, color=STEP_COLOURS[i % len(STEP_COLOURS)], label=label)
        named = "random sets" if i == len(pairs) - 1 else "_"
        panel.hlines(own.expected, x - width / 2, x + width / 2, color="black", label=named)
    panel.set_xticks(range(len(operators)), [SIGNS[operator] for operator in operators])

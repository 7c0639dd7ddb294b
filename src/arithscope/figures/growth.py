"""How the bag of heuristics grows over training."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arithscope.experiments.bag import MUTUAL
from arithscope.experiments.classify import CRITERIA
from arithscope.experiments.prompt_knockout import OWN, RANDOM, REPORTED
from arithscope.experiments.training import Training
from arithscope.figures.style import OPERATOR_COLOURS, SIGNS, line_with_band, new_figure, styled

SIZE_COLOURS = dict(zip(REPORTED, ("#56B4E9", "#0072B2", "#003B5C"), strict=True))
MOST_NAMED = 14  # checkpoints


@styled
def training_curves(training: Training) -> Figure:
    """Three panels a criterion: final pairs already there, what mutual neurons carry, and prompt knockouts."""
    figure, axes = new_figure(13, 7.2, len(CRITERIA), 3, sharex=True, sharey=True)
    place = {name: i for i, name in enumerate(training.checkpoints)}
    for [left, middle, right], criterion in zip(axes, CRITERIA, strict=True):
        _present(left, training, criterion, place)
        _carried(middle, training, criterion, place)
        _knockouts(right, training, criterion, place)
        left.set_title(f"(a) final pairs already there, {criterion}")
        middle.set_title(f"(b) the circuit with heuristic neurons alone, {criterion}")
        right.set_title(f"(c) without each prompt's neurons, {criterion}")
        for panel, label in ((left, "share"), (middle, "faithfulness"), (right, "accuracy left, mean over operators")):
            panel.set_ylabel(label)
            panel.set_ylim(-0.05, 1.05)
    step = -(-len(place) // MOST_NAMED)
    for panel in axes[-1]:
        panel.set_xticks(list(place.values())[::step], list(place)[::step], rotation=60, ha="right", fontsize=7)
    for panel in axes[0]:
        panel.legend(loc="lower right", fontsize=7)
    return figure


def _lines(panel: Axes, table: pd.DataFrame, place: dict[str, int], **options: Any) -> None:
    for operator, rows in table.groupby("operator", sort=False):
        style = {"color": OPERATOR_COLOURS[str(operator)], "marker": ".", **options}
        line_with_band(panel, rows.checkpoint.map(place), rows, **style)


def _present(panel: Axes, training: Training, criterion: str, place: dict[str, int]) -> None:
    there = training.present[training.present.criterion == criterion]
    for operator in training.accuracy.operator.unique():
        _lines(panel, there[there.operator == operator], place, label=SIGNS[str(operator)])
    panel.plot(len(place) - 1, 1, "*", color="black", label="the final pairs themselves")
    for _, rows in training.accuracy.groupby("operator", sort=False):
        colour = OPERATOR_COLOURS[str(rows.operator.iloc[0])]
        panel.plot(rows.checkpoint.map(place), rows.value, ":", color=colour, linewidth=1)
    panel.plot([], [], ":", color="grey", label="accuracy of the model")


def _carried(panel: Axes, training: Training, criterion: str, place: dict[str, int]) -> None:
    """The final checkpoint, to which all its own neurons are mutual, ends both lines."""
    table = training.faithfulness[training.faithfulness.measure == "faithfulness"]
    every = table[table.neurons == criterion]
    last = every[every.checkpoint == training.checkpoints[-1]]
    _lines(panel, every, place, linestyle="--")
    _lines(panel, pd.concat([table[table.neurons == f"{criterion}_{MUTUAL}"], last]), place)
    panel.plot([], [], "--", color="grey", label="all heuristic neurons")
    panel.plot([], [], "-", color="grey", label="those mutual with the final checkpoint")


def _knockouts(panel: Axes, training: Training, criterion: str, place: dict[str, int]) -> None:
    table = training.knockout[training.knockout.criterion == criterion]
    for size, colour in SIZE_COLOURS.items():
        for ablated, style in ((OWN, "-"), (RANDOM, "--")):
            rows = table[(table["size"] == size) & (table.ablated == ablated)]
            means = rows.groupby("checkpoint", sort=False).value.mean()
            label = f"{size} of each layer" if ablated == OWN else None
            panel.plot([place[str(c)] for c in means.index], means, style, color=colour, marker=".", label=label)
    panel.plot([], [], "--", color="grey", label="as many random top neurons")

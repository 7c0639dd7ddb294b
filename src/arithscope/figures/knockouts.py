"""What is lost without the neurons of a heuristic, or of a prompt's heuristics, and what is left with nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arithscope.experiments.bag import RANDOM as RANDOM_TOP
from arithscope.experiments.bag import TOP, Bag
from arithscope.experiments.classify import CALIBRATED, CRITERIA, RAW
from arithscope.experiments.knockout import ASSOCIATED, OTHERS, OWN, UNMATCHED, Knockout
from arithscope.experiments.prompt_knockout import ABLATED, PromptKnockout
from arithscope.figures.circuits import MEASURE_NAMES
from arithscope.figures.style import OPERATOR_COLOURS, SIGNS, errors, line_with_band, new_figure, styled

ASSOCIATED_COLOUR, OTHERS_COLOUR = "#0072B2", "#E69F00"
MOST_NAMES = 60  # heuristics of a panel that are named
STYLES: dict[str, Any] = dict(zip(ABLATED, ("-", "--", ":"), strict=True))
NAMES = dict(
    zip(ABLATED, ("neurons of its heuristics", "as many of no such heuristic", "as many at random"), strict=True)
)
KEPT = {
    TOP: ("all top neurons", "#666666"),
    RAW: ("with a match", "#BBBBBB"),
    CALIBRATED: ("with a calibrated match", "#0072B2"),
    RANDOM_TOP: ("as many at random", "#E69F00"),
}


@styled
def knockout_by_heuristic(knockout: Knockout) -> Figure:
    """For each heuristic the accuracy left on prompts that satisfy it and on others, the largest drop first."""
    operators = [str(o) for o in knockout.accuracy.operator.unique()]
    figure, axes = new_figure(
        15, 2.6 * max(1, len(operators)) + 0.8, max(1, len(operators)), len(CRITERIA), sharey=True
    )
    signs: Any = knockout.signs.set_index(["operator", "criterion", "difference"])
    for row, operator in zip(axes, operators, strict=False):
        for panel, criterion in zip(row, CRITERIA, strict=True):
            table = knockout.accuracy
            table = table[(table.operator == operator) & (table.criterion == criterion)]
            _paired_bars(panel, table)
            if (operator, criterion, "prompts") in signs.index:
                told = signs.loc[(operator, criterion, "prompts")]
                panel.set_title(
                    f"{SIGNS[operator]}, {criterion}: associated prompts lose more for {told.above:.0f} heuristics, less for "
                    f"{told.below:.0f} (sign test p = {told.p:.2g})"
                )
            else:
                panel.set_title(f"{SIGNS[operator]}, {criterion}: no heuristic has enough neurons")
        row[0].set_ylabel("accuracy left")
    if operators:
        handles, labels = max((panel.get_legend_handles_labels() for panel in axes.ravel()), key=lambda x: len(x[0]))
        figure.legend(handles, labels, loc="outside right center")
    else:
        axes[0, 0].text(0.5, 0.5, "no heuristic has enough neurons", ha="center", transform=axes[0, 0].transAxes)
    return figure


def _paired_bars(panel: Axes, table: pd.DataFrame) -> None:
    wide = table.pivot(index="heuristic", columns=["ablated", "group"], values="value")
    if wide.empty:
        return
    order = np.lexsort((wide[OWN, OTHERS], wide[OWN, ASSOCIATED]))
    wide = wide.iloc[order]
    intervals = table[table.ablated == OWN].set_index(["group", "heuristic"])
    x = np.arange(len(wide))
    for group, colour, shift, label in (
        (ASSOCIATED, ASSOCIATED_COLOUR, -0.2, "prompts that satisfy the heuristic"),
        (OTHERS, OTHERS_COLOUR, 0.2, "prompts that do not"),
    ):
        rows = intervals.loc[group].loc[wide.index]
        intervals_shown: dict[str, Any] = (
            {"yerr": errors(rows), "error_kw": {"elinewidth": 0.5}} if len(x) <= MOST_NAMES else {}
        )
        panel.bar(x + shift, rows.value, 0.4, color=colour, label=label, **intervals_shown)
    panel.plot(x - 0.2, wide[UNMATCHED, ASSOCIATED], "_", color="black", label="those that do, other neurons silenced")
    panel.set_ylim(0, 1.05)
    panel.margins(x=0.01)
    if len(x) <= MOST_NAMES:
        panel.set_xticks(x, list(wide.index), rotation=90, fontsize=5)
    else:
        panel.set_xticks([])
        panel.set_xlabel(f"{len(x)} heuristics")


@styled
def prompt_knockout_curves(knockout: PromptKnockout) -> Figure:
    """Accuracy against the number of silenced neurons of each layer, beside two controls."""
    operators = [str(o) for o in knockout.curve.operator.unique()]
    columns = max(1, len(operators))
    figure, axes = new_figure(2.9 * columns + 1.6, 5.6, len(CRITERIA), columns, sharey=True)
    rows = knockout.curve[knockout.curve.measure == "accuracy"]
    for line, criterion in zip(axes, CRITERIA, strict=True):
        for panel, operator in zip(line, operators, strict=False):
            mine = rows[(rows.operator == operator) & (rows.criterion == criterion)]
            for ablated, style in STYLES.items():
                one = mine[mine.ablated == ablated]
                colour = OPERATOR_COLOURS[operator] if style == "-" else "#666666"
                line_with_band(panel, one["size"], one, color=colour, linestyle=style, label=NAMES[ablated])
            panel.set_xscale("symlog", linthresh=1)
            panel.set_xlim(0, None)
            panel.set_ylim(-0.03, 1.05)
            panel.set_title(f"{SIGNS[operator]}, {criterion}")
        line[0].set_ylabel("accuracy left")
    for panel in axes[-1]:
        panel.set_xlabel("neurons silenced in each layer")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


@styled
def bag_alone(bag: Bag) -> Figure:
    """What the circuit keeps of the model when its MLPs keep only heuristic neurons."""
    operators = [str(o) for o in bag.curve.operator.unique()]
    figure, [panels] = new_figure(11, 3.4, 1, len(MEASURE_NAMES))
    x, width = np.arange(len(operators)), 0.8 / len(KEPT)
    for panel, (measure, label) in zip(panels, MEASURE_NAMES.items(), strict=True):
        table = bag.curve[bag.curve.measure == measure].set_index(["neurons", "operator"])
        for i, (kept, (name, colour)) in enumerate(KEPT.items()):
            rows = table.loc[kept].loc[operators]
            at = x + (i - (len(KEPT) - 1) / 2) * width
            panel.bar(at, rows.value, width * 0.95, yerr=errors(rows), color=colour, label=name)
        panel.set_xticks(x, [SIGNS[o] for o in operators])
        panel.set_ylabel(label)
        panel.set_ylim(min(0.0, float(np.nanmin(table.low, initial=0.0))), 1.05)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    return figure

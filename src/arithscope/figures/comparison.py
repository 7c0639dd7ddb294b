"""Several runs in one figure: bars of headline numbers by operator, and curves laid over each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arithscope.figures.style import SIGNS, errors, line_with_band, new_figure, styled
from arithscope.results.comparison import Comparison

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#666666")


@dataclass(frozen=True)
class Panels:
    """One figure: `draw` gets the comparison; `shown` says whether it holds anything to draw."""

    name: str
    title: str
    caption: str
    draw: Callable[[Comparison], Figure]
    shown: Callable[[Comparison], bool]


@styled
def _bars(comparison: Comparison, experiment: str, measures: Sequence[str]) -> Figure:
    """A panel for each measure, a group of bars for each operator, a bar for each run."""
    table = comparison.table[comparison.table.experiment == experiment]
    operators = [o for o in table.operator.unique() if table[table.operator == o].measure.isin(measures).any()]
    figure, axes = new_figure(min(15, 1.6 + (1.0 + 0.5 * len(operators)) * len(measures)), 3.6, 1, len(measures))
    x, width = np.arange(len(operators)), 0.8 / len(comparison.runs)
    for panel, measure in zip(axes[0], measures, strict=True):
        rows = table[table.measure == measure].set_index(["run", "operator"])
        for i, run in enumerate(comparison.runs):
            mine: Any = rows.reindex([(run, o) for o in operators])
            at = x + (i - (len(comparison.runs) - 1) / 2) * width
            heights = np.nan_to_num(errors(mine))
            panel.bar(
                at, mine.value, width * 0.95, yerr=heights, color=colour(i), label=run, error_kw={"elinewidth": 0.8}
            )
        panel.set_xticks(x, [SIGNS.get(o, o) for o in operators])
        panel.set_title(measure.replace("_", " "))
        panel.axhline(0, color="black", linewidth=0.6)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


@styled
def _curves(comparison: Comparison, curves: Sequence[str], label: str, log: bool) -> Figure:
    """A panel for each operator, a line for each run; further curves are dotted."""
    table = comparison.curves[comparison.curves.curve.isin(curves)]
    operators = list(dict.fromkeys(table.operator))
    figure, axes = new_figure(2.8 * len(operators) + 1.8, 3.4, 1, len(operators), sharey=True)
    for panel, operator in zip(axes[0], operators, strict=True):
        _lines(panel, comparison, curves, operator)
        panel.set_title(SIGNS[operator])
        panel.set_xlabel(label)
        panel.set_ylim(-0.05, 1.05)
        if log:
            panel.set_xscale("symlog", linthresh=1)
        panel.set_xlim(0, None)
    axes[0, 0].set_ylabel(curves[0].split(" by ")[0].split(" without ")[0])
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


def _lines(panel: Axes, comparison: Comparison, curves: Sequence[str], operator: str) -> None:
    for curve, style in zip(curves, ("-", ":"), strict=False):
        for i, run in enumerate(comparison.runs):
            c = comparison.curves
            rows = c[(c.curve == curve) & (c.operator == operator) & (c.run == run)].sort_values("x")
            label = run if style == "-" else f"{run}, {curve.split(' without ')[-1]}"
            line_with_band(panel, rows.x, rows, color=colour(i), linestyle=style, label=label)


def colour(run: int) -> str:
    return COLOURS[run % len(COLOURS)]


def bars(name: str, title: str, caption: str, experiment: str, *measures: str) -> Panels:
    return Panels(
        name,
        title,
        caption,
        lambda comparison: _bars(comparison, experiment, measures),
        lambda comparison: set(measures) <= set(comparison.measures(experiment)),
    )


def curves(name: str, title: str, caption: str, label: str, *names: str, log: bool = False) -> Panels:
    return Panels(
        name,
        title,
        caption,
        lambda comparison: _curves(comparison, names, label, log),
        lambda comparison: names[0] in set(comparison.curves.curve),
    )


_INTERVALS = "Bars and bands: 95 % bootstrap intervals."
PANELS: tuple[Panels, ...] = (
    bars(
        "accuracy",
        "Accuracy on arithmetic prompts",
        f"Share of legal prompts whose most probable next token is the answer, and its mean probability. {_INTERVALS}",
        "accuracy",
        "accuracy",
        "p_answer",
    ),
    curves(
        "faithfulness-by-heads",
        "How many heads the circuits need",
        f"Faithfulness of all MLPs and the heads of largest effect. {_INTERVALS}",
        "share of all heads",
        "faithfulness by share of heads",
    ),
    curves(
        "probe-accuracy",
        "Where the answer can be read off",
        f"Accuracy of linear probes at the last position. {_INTERVALS}",
        "depth (share of layers)",
        "probe accuracy by depth",
    ),
    curves(
        "faithfulness-by-neurons",
        "How many neurons the circuits need",
        f"Faithfulness with the neurons of largest effect in each MLP at the last position. {_INTERVALS}",
        "share of an MLP's neurons",
        "faithfulness by share of neurons",
    ),
    bars(
        "classified-shares",
        "How many top neurons are classified",
        f"Shares of top neurons with a heuristic, by the raw score and after calibration. {_INTERVALS}",
        "classify",
        "raw_share",
        "calibrated_share",
    ),
    curves(
        "classified-by-depth",
        "Where classified neurons are",
        f"Share of each layer's top neurons with a calibrated heuristic. {_INTERVALS}",
        "depth (share of layers)",
        "share classified by depth",
    ),
    bars(
        "overlap",
        "Whether operators share their neurons",
        "Mean intersection over union of an operator's top neurons with those of the others.",
        "overlap",
        "mean_iou",
    ),
    bars(
        "knockout",
        "What is lost without a heuristic's neurons",
        "Accuracy left on prompts that satisfy the heuristic and on others, and their difference; means over heuristics, by "
        f"calibrated matches. {_INTERVALS}",
        "knockout",
        "calibrated_associated",
        "calibrated_not_associated",
        "calibrated_difference",
    ),
    curves(
        "prompt-knockout",
        "What is lost without the neurons of a prompt's own heuristics",
        "Accuracy left without the neurons of calibrated heuristics that hold for the prompt, and (dotted) without as many "
        f"random top neurons. {_INTERVALS}",
        "neurons silenced in each layer",
        "accuracy without associated neurons",
        "accuracy without random neurons",
        log=True,
    ),
    bars(
        "bag-alone",
        "What the bag of heuristics can do alone",
        f"The circuit with only the neurons that have a calibrated match, and with as many random top neurons. {_INTERVALS}",
        "bag",
        "calibrated_faithfulness",
        "random_faithfulness",
        "calibrated_accuracy",
        "random_accuracy",
    ),
    bars(
        "failures",
        "Why some prompts fail",
        "Right minus wrong prompts: associated heuristic neurons, their contribution to the right answer's logit, and the area "
        f"under the curve of a logistic model on both. {_INTERVALS}",
        "failures",
        "calibrated_associated_neurons",
        "calibrated_contribution",
        "calibrated_auc",
    ),
    curves(
        "training",
        "How the bag of heuristics grows over training",
        f"Share of the final pairs of neuron and calibrated heuristic that are there at earlier checkpoints. {_INTERVALS}",
        "training (first to final checkpoint)",
        "final pairs present over training",
    ),
)

"""Several runs in one figure: bars of headline numbers by operator, and curves on common axes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from arithscope.figures.style import SIGNS, errors, line_with_band, new_figure, styled
from arithscope.results.comparison import Comparison

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#666666")
_INTERVALS = "Error bars and bands: 95 % bootstrap intervals."


@dataclass(frozen=True)
class Bars:
    """One panel per measure of an experiment, one group of bars per operator, one bar per run."""

    name: str
    title: str
    caption: str
    experiment: str
    measures: tuple[str, ...]

    def has_data(self, comparison: Comparison) -> bool:
        return set(self.measures) <= set(comparison.measures(self.experiment))

    @styled
    def draw(self, comparison: Comparison) -> Figure:
        table = comparison.table[
            (comparison.table.experiment == self.experiment) & comparison.table.measure.isin(self.measures)
        ]
        operators, runs, panels = list(table.operator.unique()), comparison.runs, len(self.measures)
        figure, axes = new_figure(min(15, 1.6 + (1.0 + 0.5 * len(operators)) * panels), 3.6, 1, panels)
        x, width = np.arange(len(operators)), 0.8 / len(runs)
        for panel, measure in zip(axes[0], self.measures, strict=True):
            means = table[table.measure == measure].set_index(["run", "operator"])
            for i, run in enumerate(runs):
                rows: Any = means.reindex([(run, o) for o in operators])
                at, options = x + (i - (len(runs) - 1) / 2) * width, {"error_kw": {"elinewidth": 0.8}}
                error_bars = np.nan_to_num(errors(rows))
                panel.bar(at, rows.value, width * 0.95, yerr=error_bars, color=_colour(i), label=run, **options)
            panel.set_xticks(x, [SIGNS.get(o, o) for o in operators])
            panel.set_title(measure.replace("_", " "))
            panel.axhline(0, color="black", linewidth=0.6)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
        return figure


@dataclass(frozen=True)
class Curves:
    """One panel per operator, one line per run; the second of two curves is dotted."""

    name: str
    title: str
    caption: str
    label: str
    curves: tuple[str, ...]
    log: bool = False

    def has_data(self, comparison: Comparison) -> bool:
        return self.curves[0] in set(comparison.curves.curve)

    @styled
    def draw(self, comparison: Comparison) -> Figure:
        table = comparison.curves[comparison.curves.curve.isin(self.curves)]
        operators = list(dict.fromkeys(table.operator))
        figure, axes = new_figure(2.8 * len(operators) + 1.8, 3.4, 1, len(operators), sharey=True)
        for panel, operator in zip(axes[0], operators, strict=True):
            for curve, style in zip(self.curves, ("-", ":"), strict=False):
                for i, run in enumerate(comparison.runs):
                    rows = table[
                        (table.curve == curve) & (table.operator == operator) & (table.run == run)
                    ].sort_values("x")
                    label = run if style == "-" else f"{run}, {curve.split(' without ')[-1]}"
                    line_with_band(panel, rows.x, rows, color=_colour(i), linestyle=style, label=label)
            panel.set(title=SIGNS[operator], xlabel=self.label, ylim=(-0.05, 1.05))
            if self.log:
                panel.set_xscale("symlog", linthresh=1)
            panel.set_xlim(0, None)
        axes[0, 0].set_ylabel(self.curves[0].split(" by ")[0].split(" without ")[0])
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
        return figure


def _colour(run: int) -> str:
    return COLOURS[run % len(COLOURS)]


FIGURES: tuple[Bars | Curves, ...] = (
    Bars(
        "accuracy",
        "Accuracy on arithmetic prompts",
        f"Share of legal prompts whose most probable next token is the answer, and its mean probability. {_INTERVALS}",
        "accuracy",
        ("accuracy", "p_answer"),
    ),
    Curves(
        "faithfulness-by-heads",
        "How many heads the circuits need",
        f"Faithfulness of all MLPs and the heads of largest effect. {_INTERVALS}",
        "share of all heads",
        ("faithfulness by share of heads",),
    ),
    Curves(
        "probe-accuracy",
        "Where the answer is linearly decodable",
        f"Accuracy of linear probes at the last position. {_INTERVALS}",
        "depth (share of layers)",
        ("probe accuracy by depth",),
    ),
    Curves(
        "faithfulness-by-neurons",
        "How many neurons the circuits need",
        f"Faithfulness with the top neurons by effect of each MLP at the last position. {_INTERVALS}",
        "share of an MLP's neurons",
        ("faithfulness by share of neurons",),
    ),
    Bars(
        "classified-shares",
        "How many top neurons are classified",
        f"Shares of top neurons that match a heuristic, by raw score and after calibration. {_INTERVALS}",
        "classify",
        ("raw_share", "calibrated_share"),
    ),
    Curves(
        "classified-by-depth",
        "Where classified neurons are",
        f"Share of each layer's top neurons with a calibrated match. {_INTERVALS}",
        "depth (share of layers)",
        ("share classified by depth",),
    ),
    Bars(
        "overlap",
        "Overlap of top neurons between operators",
        "Mean intersection over union of an operator's top neurons with those of the others.",
        "overlap",
        ("mean_iou",),
    ),
    Bars(
        "knockout",
        "Knockout by heuristic",
        "Accuracy left on prompts that satisfy the heuristic and on prompts that do not, and their difference; means over "
        f"heuristics, by calibrated matches. {_INTERVALS}",
        "knockout",
        ("calibrated_associated", "calibrated_not_associated", "calibrated_difference"),
    ),
    Curves(
        "prompt-knockout",
        "Knockout by prompt",
        "Accuracy left when neurons of calibrated heuristics associated with the prompt are zero-ablated, and (dotted) as many "
        f"random top neurons. {_INTERVALS}",
        "neurons ablated per layer",
        ("accuracy without associated neurons", "accuracy without random neurons"),
        log=True,
    ),
    Bars(
        "bag-alone",
        "Faithfulness of the bag of heuristics alone",
        f"The circuit with only the neurons that have a calibrated match, and with as many random top neurons. {_INTERVALS}",
        "bag",
        ("calibrated_faithfulness", "random_faithfulness", "calibrated_accuracy", "random_accuracy"),
    ),
    Bars(
        "failures",
        "Why some prompts fail",
        "Correct minus incorrect prompts: associated heuristic neurons, their contribution to the correct answer's logit, and "
        f"the AUC of a logistic regression on both. {_INTERVALS}",
        "failures",
        ("calibrated_associated_neurons", "calibrated_contribution", "calibrated_auc"),
    ),
    Curves(
        "training",
        "The bag of heuristics over training",
        f"Share of the final (neuron, calibrated heuristic) pairs already present at earlier checkpoints. {_INTERVALS}",
        "training (first to final checkpoint)",
        ("final pairs present over training",),
    ),
)

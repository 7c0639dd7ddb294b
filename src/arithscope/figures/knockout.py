"""Ablation of heuristic neurons: knockout by heuristic, knockout by prompt, and the bag of heuristics alone."""

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
from arithscope.figures.circuit import MEASURE_NAMES
from arithscope.figures.registry import figure
from arithscope.figures.style import OPERATOR_COLOURS, SIGNS, errors, line_with_band, new_figure

MOST_NAMES = 60  # heuristics named in a panel
GROUPS = (
    (ASSOCIATED, "#0072B2", -0.2, "prompts that satisfy the heuristic"),
    (OTHERS, "#E69F00", 0.2, "prompts that do not"),
)
STYLES: dict[str, Any] = dict(zip(ABLATED, ("-", "--", ":"), strict=True))
NAMES = dict(zip(ABLATED, ("associated neurons", "as many not associated", "as many random ones"), strict=True))
KEPT = {
    TOP: ("all top neurons", "#666666"),
    RAW: ("with a raw match", "#BBBBBB"),
    CALIBRATED: ("with a calibrated match", "#0072B2"),
    RANDOM_TOP: ("as many at random", "#E69F00"),
}


@figure("knockout-by-heuristic", Knockout, section="proof", order=230, title="Knockout by heuristic")
def knockout_by_heuristic(knockout: Knockout) -> Figure:
    """For each heuristic with at least ten neurons, these are zero-ablated, and accuracy is measured on correct
    prompts not used to choose neurons: some that satisfy the heuristic and as many that do not. Sorted by accuracy
    left, largest drop first. Dashes: prompts that satisfy the heuristic, with as many top neurons per layer ablated
    that do not match it. Error bars: 95 % bootstrap intervals. (Paper: Section 4.2, knockout by heuristic type.)"""
    operators = [str(o) for o in knockout.accuracy.operator.unique()]
    rows = max(1, len(operators))
    figure, axes = new_figure(15, 2.6 * rows + 0.8, rows, len(CRITERIA), sharey=True)
    signs: Any = knockout.signs.set_index(["operator", "criterion", "difference"])
    for row, operator in zip(axes, operators, strict=False):
        for panel, criterion in zip(row, CRITERIA, strict=True):
            table = knockout.accuracy
            _paired_bars(panel, table[(table.operator == operator) & (table.criterion == criterion)])
            title = "no heuristic has enough neurons"
            if (operator, criterion, "prompts") in signs.index:
                sign = signs.loc[(operator, criterion, "prompts")]
                title = (
                    f"associated prompts lose more for {sign.above:.0f} heuristics, less for {sign.below:.0f} "
                    f"(sign test p = {sign.p:.2g})"
                )
            panel.set_title(f"{SIGNS[operator]}, {criterion}: {title}")
        row[0].set_ylabel("accuracy left")
    if operators:
        handles, labels = max((panel.get_legend_handles_labels() for panel in axes.ravel()), key=lambda x: len(x[0]))
        figure.legend(handles, labels, loc="outside right center")
    else:
        axes[0, 0].text(0.5, 0.5, "no heuristic has enough neurons", ha="center", transform=axes[0, 0].transAxes)
    return figure


def _paired_bars(panel: Axes, table: pd.DataFrame) -> None:
    """For each heuristic a bar for associated prompts, one for other prompts, and a dash for the control."""
    wide = table.pivot(index="heuristic", columns=["ablated", "group"], values="value")
    if wide.empty:
        return
    wide = wide.iloc[np.lexsort((wide[OWN, OTHERS], wide[OWN, ASSOCIATED]))]
    means = table[table.ablated == OWN].set_index(["group", "heuristic"])
    x, few = np.arange(len(wide)), len(wide) <= MOST_NAMES
    for group, colour, shift, label in GROUPS:
        rows = means.loc[group].loc[wide.index]
        error_bars: dict[str, Any] = {"yerr": errors(rows), "error_kw": {"elinewidth": 0.5}} if few else {}
        panel.bar(x + shift, rows.value, 0.4, color=colour, label=label, **error_bars)
    label = "prompts that satisfy it, other neurons ablated"
    panel.plot(x - 0.2, wide[UNMATCHED, ASSOCIATED], "_", color="black", label=label)
    panel.set_ylim(0, 1.05)
    panel.margins(x=0.01)
    if few:
        panel.set_xticks(x, list(wide.index), rotation=90, fontsize=5)
    else:
        panel.set_xticks([])
        panel.set_xlabel(f"{len(x)} heuristics")


@figure("prompt-knockout", PromptKnockout, section="proof", order=240, title="Knockout by prompt")
def prompt_knockout_curves(knockout: PromptKnockout) -> Figure:
    """For each correct prompt, the n best-scoring neurons per layer of the heuristics associated with it are
    zero-ablated. Controls ablate as many neurons per layer: top neurons not associated with the prompt, as far as
    there are any, or random top neurons (mean over draws). Bands: 95 % bootstrap intervals over prompts. (Paper:
    Section 4.2, knockout by prompt.)"""
    operators = [str(o) for o in knockout.curve.operator.unique()]
    columns = max(1, len(operators))
    figure, axes = new_figure(2.9 * columns + 1.6, 5.6, len(CRITERIA), columns, sharey=True)
    table = knockout.curve[knockout.curve.measure == "accuracy"]
    for panels, criterion in zip(axes, CRITERIA, strict=True):
        for panel, operator in zip(panels, operators, strict=False):
            rows = table[(table.operator == operator) & (table.criterion == criterion)]
            for ablated, style in STYLES.items():
                line = rows[rows.ablated == ablated]
                colour = OPERATOR_COLOURS[operator] if style == "-" else "#666666"
                line_with_band(panel, line["size"], line, color=colour, linestyle=style, label=NAMES[ablated])
            panel.set_xscale("symlog", linthresh=1)
            panel.set(xlim=(0, None), ylim=(-0.03, 1.05), title=f"{SIGNS[operator]}, {criterion}")
        panels[0].set_ylabel("accuracy left")
    for panel in axes[-1]:
        panel.set_xlabel("neurons ablated per layer")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


@figure("bag-alone", Bag, section="proof", order=250, title="Faithfulness of the bag of heuristics alone")
def bag_alone(bag: Bag) -> Figure:
    """The operator's circuit, in which each MLP from the first answer layer on keeps only some of its top neurons
    at the last position. {FAITHFULNESS} (Paper: Section 5, for training checkpoints.)"""
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
        panel.set(ylabel=label, ylim=(min(0.0, float(np.nanmin(table.low, initial=0.0))), 1.05))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    return figure

"""Causal tests of heuristic neurons (knockout by heuristic, knockout by prompt, the bag of heuristics alone), and failures."""

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.bag import NONE, TOP, Bag
from arithscope.experiments.bag import RANDOM as RANDOM_TOP
from arithscope.experiments.classify import CALIBRATED, CRITERIA, RAW
from arithscope.experiments.failures import AUC, HYPOTHESES, Failures
from arithscope.experiments.knockout import ASSOCIATED, OTHERS, OWN, UNMATCHED, Knockout
from arithscope.experiments.prompt_knockout import OTHER_HEURISTICS, RANDOM, UNASSOCIATED, PromptKnockout
from arithscope.experiments.prompt_knockout import OWN as PROMPTS_OWN
from arithscope.figures.circuit import MEASURE_NAMES
from arithscope.figures.registry import figure
from arithscope.figures.style import (
    OPERATOR_COLOURS,
    OTHER_COLOUR,
    SIGNS,
    errors,
    grouped_bars,
    hide_unused,
    line_with_band,
    literal,
    new_figure,
    outside_legend,
    table_figure,
)
from arithscope.figures.words import shown_prompt

MOST_NAMES = 60  # heuristics named in a panel
GROUPS = (
    (ASSOCIATED, "#0072B2", -0.2, "prompts that satisfy the heuristic"),
    (OTHERS, "#E69F00", 0.2, "prompts that do not"),
)
LINES: dict[
    str, tuple[str, str, str]
] = {  # of each kind of ablated neurons: style, colour ("" for the operator's) and name
    PROMPTS_OWN: ("-", "", "associated neurons"),
    OTHER_HEURISTICS: ("-.", "black", "as many of other\nheuristics (the paper's)"),
    UNASSOCIATED: ("--", OTHER_COLOUR, "as many not associated"),
    RANDOM: (":", OTHER_COLOUR, "as many random ones"),
}
TICKS = (0, 1, 5, 25, 100, 500)  # neurons per layer, at which the number of prompts is named
KEPT = {
    TOP: ("all top neurons", OTHER_COLOUR),
    RAW: ("with a raw match", "#BBBBBB"),
    CALIBRATED: ("with a calibrated match", "#0072B2"),
    RANDOM_TOP: ("as many random ones", "#E69F00"),
    NONE: ("no neuron (the floor)", "#CC79A7"),
}
LABELS = (  # of both hypotheses, and of the logistic regression on them
    "associated heuristic\nneurons",
    "contribution to the\ncorrect answer's logit",
    "log-odds of being correct\nper standard deviation",
)
SHOWN = 5  # worst prompts per operator
LINE = 76  # characters in a line of the heuristics column


@figure("knockout-by-heuristic", Knockout, section="proof", order=230, title="Knockout by heuristic")
def knockout_by_heuristic(knockout: Knockout) -> Figure:
    """The neurons of each heuristic that has at least ten are zero-ablated, and accuracy is measured on correct
    prompts not used to choose neurons: some that satisfy the heuristic and as many that do not. Sorted by accuracy
    left, largest drop first. Dashes: prompts that satisfy the heuristic, with as many top neurons per layer ablated
    that do not match it. Error bars: 95 % intervals. (Paper: Section 4.2, knockout by heuristic type.)"""
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
                counts = f"{sign.above:.0f} heuristics, less for {sign.below:.0f}"
                title = f"associated prompts lose more for {counts} (sign test p = {sign.p:.2g})"
            panel.set_title(f"{SIGNS[operator]}, {criterion}: {title}")
        row[0].set_ylabel("accuracy left")
    if operators:
        outside_legend(figure, max(axes.ravel(), key=lambda panel: len(panel.get_legend_handles_labels()[0])))
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
        panel.set_xticks(x, map(literal, wide.index), rotation=90, fontsize=5)
    else:
        panel.set_xticks([])
        panel.set_xlabel(f"{len(x)} heuristics")


@figure("prompt-knockout", PromptKnockout, section="proof", order=240, title="Knockout by prompt")
def prompt_knockout_curves(knockout: PromptKnockout) -> Figure:
    """For each correct prompt, the n best-scoring neurons per layer of the heuristics associated with it are
    zero-ablated. Controls ablate as many neurons per layer (mean over draws): neurons of heuristics none of which is
    associated with the prompt, as in the paper; top neurons not associated with it; random top neurons. A point holds
    the prompts that have enough neurons for every control; their number is below the axis. Bands: 95 % intervals over
    prompts. (Paper: Section 4.2, knockout by prompt.)"""
    operators = [str(o) for o in knockout.curve.operator.unique()]
    columns = max(1, len(operators))
    figure, axes = new_figure(2.9 * columns + 1.6, 5.6, len(CRITERIA), columns, sharey=True)
    table = knockout.curve[knockout.curve.measure == "accuracy"]
    for panels, criterion in zip(axes, CRITERIA, strict=True):
        for panel, operator in zip(panels, operators, strict=False):
            rows = table[(table.operator == operator) & (table.criterion == criterion)]
            for ablated, (style, colour, name) in LINES.items():
                line = rows[rows.ablated == ablated]
                colour = colour or OPERATOR_COLOURS[operator]
                line_with_band(panel, line["size"], line, color=colour, linestyle=style, label=name)
            panel.set_xscale("symlog", linthresh=1)
            panel.set(xlim=(0, None), ylim=(-0.03, 1.05), title=f"{SIGNS[operator]}, {criterion}")
            prompts = {size: n for size, n in zip(line["size"], line.n, strict=True) if size in TICKS}
            panel.set_xticks(list(prompts), [f"{size}\n{n}" for size, n in prompts.items()])
            panel.minorticks_off()
            if not line.n[line["size"] > 0].any():
                few = "no prompt has enough\nneurons for every control"
                panel.text(0.5, 0.5, few, ha="center", va="center", fontsize=8, transform=panel.transAxes)
        panels[0].set_ylabel("accuracy left")
    for panel in axes[-1]:
        panel.set_xlabel("neurons ablated per layer\nnumber of prompts")
    outside_legend(figure, axes[0, 0])
    return figure


@figure("bag-alone", Bag, section="proof", order=250, title="Faithfulness of the bag of heuristics alone")
def bag_alone(bag: Bag) -> Figure:
    """The operator's circuit, in which each MLP from the first answer layer on keeps only some of its top neurons
    at {LAST}. Without any of them the circuit reaches the floor, and only what lies above it is due to
    the neurons kept. {FAITHFULNESS} (Paper: Section 5, for training checkpoints.)"""
    operators = [str(o) for o in bag.curve.operator.unique()]
    figure, [panels] = new_figure(11, 3.4, 1, len(MEASURE_NAMES))
    for panel, (measure, label) in zip(panels, MEASURE_NAMES.items(), strict=True):
        table = bag.curve[bag.curve.measure == measure].set_index(["neurons", "operator"])
        bars = [(table.loc[kept].loc[operators], colour, name) for kept, (name, colour) in KEPT.items()]
        grouped_bars(panel, operators, bars)
        panel.set(ylabel=label, ylim=(min(0.0, float(np.nanmin(table.low, initial=0.0))), 1.05))
    outside_legend(figure, panels[0])
    return figure


@figure("failure-contributions", Failures, section="failures", order=260, title="Why some prompts fail")
def failure_contributions(failures: Failures) -> Figure:
    """Correctly and incorrectly answered prompts. Top: number of associated heuristic neurons (calibrated). Middle:
    activation × value-vector logit of the correct {ANSWER}, summed over all heuristic neurons. Titles: difference of
    means, correct minus incorrect. Bottom: coefficients of a logistic regression of correctness on both. Lines:
    quartiles; diamonds: means; brackets and error bars: 95 % intervals. (Paper: Section 4.3.)"""
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
    for x, (correct, shade) in enumerate(((True, colour), (False, OTHER_COLOUR))):
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
    "worst-prompts",
    Failures,
    Accuracy,
    section="failures",
    order=270,
    title="The worst errors, and the heuristics behind them",
)
def worst_prompts(failures: Failures, accuracy: Accuracy) -> Figure:
    """For each operator the incorrect prompts with the least probable correct {ANSWER}. Logit difference: how much more
    heuristic neurons (calibrated) add to the predicted {ANSWER}'s logit than to the correct one's, in total and by
    heuristic; each neuron counts for the heuristic it matches furthest beyond expectation. Logit lens, up to the
    final norm's scale. (Paper: Section 4.3.)"""
    rows, stratum = [], accuracy.stratum
    for _, worst in failures.worst.groupby("operator", sort=False):
        for row in worst.head(SHOWN).to_dict("records"):
            shares = [
                f"{literal(h)} ({x:+.2f})" for h, x in zip(row["heuristics"], row["logit_differences"], strict=True)
            ]
            prompt = shown_prompt(stratum, row["op1"], row["operator"], row["op2"])
            answers = str(stratum.asked.of(row["answer"])), str(row["predicted"])
            numbers = f"{row['p_answer']:.1e}", f"{row['logit_difference']:+.2f}"
            rows.append([prompt, *answers, *numbers, textwrap.fill("; ".join(shares) or "none", LINE)])
    header = ["prompt", "correct", "predicted", "P(correct)", "logit diff.", "largest logit differences, by heuristic"]
    return table_figure(header, rows, [1.0, 0.7, 0.8, 0.9, 0.9, 6.0])

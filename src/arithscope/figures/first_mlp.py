"""The first MLP: effects of its neurons, how many the circuit needs, and their tuning to numbers."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from arithscope.experiments.mlp0 import ALL_POSITIONS, POSITIONS, FirstMlp
from arithscope.figures.circuit import curves_with_random, legend_with_random
from arithscope.figures.registry import figure
from arithscope.figures.style import (
    OPERATOR_COLOURS,
    SIGNS,
    hide_unused,
    log_limits,
    new_figure,
    plot_sorted_effects,
)

MOST_NEURONS = 9


@figure("first-mlp-effects", FirstMlp, section="circuit", order=90, title="Effects of single neurons of the first MLP")
def first_mlp_effects(mlp0: FirstMlp) -> Figure:
    """Each neuron of the first MLP is patched on its own at op1, operator or op2. {EFFECT} Neurons are sorted by
    mean effect (solid) or median effect (dotted). (Paper: Appendix B, MLP0 neuron effects.)"""
    figure, [panels] = new_figure(10, 3.6, 1, len(POSITIONS) + 1, sharey=True)
    table = mlp0.effects[mlp0.effects.measure == "probability"]
    low, high = log_limits(table.value)
    for axes, position in zip(panels, (*POSITIONS, ALL_POSITIONS), strict=True):
        for operator in table.operator.unique():
            rows = table[(table.operator == operator) & (table.position == position)]
            percent = 100 * np.arange(1, len(rows) + 1) / max(1, len(rows))
            plot_sorted_effects(axes, percent, rows, low, OPERATOR_COLOURS[str(operator)], SIGNS[str(operator)])
        axes.set(title="mean over the three" if position == ALL_POSITIONS else f"position: {position}")
        axes.set(ylim=(low, high * 1.5), xlabel="neurons, strongest first (%)")
    panels[0].set_ylabel("effect of patching (Eq. 1)")
    panels[-1].plot([], [], ":", color="grey", label="median")
    panels[-1].legend()
    return figure


@figure(
    "first-mlp-faithfulness",
    FirstMlp,
    section="circuit",
    order=100,
    title="How much of the first MLP the circuit needs",
)
def first_mlp_faithfulness(mlp0: FirstMlp) -> Figure:
    """Only the top neurons of the first MLP are kept in each operator's circuit. {FAITHFULNESS} Dotted: as many
    random neurons (mean over draws). (Paper: Appendix B, faithfulness over MLP0 neurons.)"""
    figure, panels = curves_with_random(mlp0.curve, 100 * mlp0.curve.share, "first-MLP neurons kept (%)", marker=".")
    for axes in panels:
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(0, 150)
        axes.set_xticks([0, 1, 5, 10, 50, 100], ["0", "1", "5", "10", "50", "100"])
    legend_with_random(figure, panels[0], "random neurons")
    return figure


@figure("number-tuning", FirstMlp, section="circuit", order=110, title="Number tuning of first-MLP neurons")
def number_tuning(mlp0: FirstMlp) -> Figure:
    """Activation at op1, for each number, of the first-MLP neurons with the highest effect rank, averaged over
    operators. (Paper: Appendix B, MLP0 activation patterns.)"""
    neurons = top_first_mlp_neurons(mlp0)
    figure, axes = new_figure(9, 6, 3, 3, sharex=True)
    panels = axes.ravel()
    numbers = np.arange(mlp0.tuning.shape[1])
    for panel, neuron in zip(panels, neurons, strict=False):
        panel.plot(numbers, mlp0.tuning[neuron], linewidth=0.5, color="#999999")
        panel.scatter(numbers, mlp0.tuning[neuron], s=3, color="#0072B2")
        panel.set_title(f"neuron {neuron}")
    hide_unused(panels, len(neurons))
    for panel in axes[-1]:
        panel.set_xlabel("number at op1")
    for panel in axes[:, 0]:
        panel.set_ylabel("activation")
    return figure


def top_first_mlp_neurons(mlp0: FirstMlp) -> list[int]:
    """The neurons with the best rank by effect, averaged over operators."""
    rows = mlp0.effects[(mlp0.effects.measure == "probability") & (mlp0.effects.position == ALL_POSITIONS)]
    ranks: pd.Series[float] = rows.groupby("operator").value.rank(ascending=False).groupby(rows.neuron).mean()
    return [int(n) for n in ranks.sort_values(kind="stable").index[:MOST_NEURONS]]

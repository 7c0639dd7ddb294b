"""The first MLP: how its effect is spread over neurons, how few suffice, and the numbers they are tuned to."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from arithscope.experiments.mlp0 import ALL_POSITIONS, POSITIONS, FirstMlp
from arithscope.figures.circuits import curves_beside_random, legend_beside
from arithscope.figures.style import OPERATOR_COLOURS, SIGNS, hide_unused, log_floor, new_figure, styled

MOST_NEURONS = 9


@styled
def first_mlp_effects(mlp0: FirstMlp) -> Figure:
    """Mean effect of each neuron, sorted, at each position and averaged over them."""
    figure, [panels] = new_figure(10, 3.6, 1, len(POSITIONS) + 1, sharey=True)
    rows = mlp0.effects[mlp0.effects.measure == "probability"]
    low, high = log_floor(rows.value)
    for axes, position in zip(panels, (*POSITIONS, ALL_POSITIONS), strict=True):
        for operator in rows.operator.unique():
            here = rows[(rows.operator == operator) & (rows.position == position)]
            for column, style in (("value", "-"), ("median", ":")):
                effects = np.sort(here[column])[::-1]
                share = 100 * np.arange(1, len(effects) + 1) / len(effects)
                label = SIGNS[str(operator)] if style == "-" else None
                axes.plot(share, np.maximum(effects, low), style, color=OPERATOR_COLOURS[str(operator)], label=label)
        axes.set_title("mean over the three" if position == ALL_POSITIONS else f"position: {position}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(low, high * 1.5)
        axes.set_xlabel("neurons, strongest first (%)")
    panels[0].set_ylabel("effect of patching (Eq. 1)")
    panels[-1].plot([], [], ":", color="grey", label="median")
    panels[-1].legend()
    return figure


@styled
def first_mlp_faithfulness(mlp0: FirstMlp) -> Figure:
    """What the circuit keeps when only a share of the first MLP's neurons is kept, beside random neurons."""
    figure, panels = curves_beside_random(mlp0.curve, 100 * mlp0.curve.share, "first-MLP neurons kept (%)", marker=".")
    for axes in panels:
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(0, 150)
        axes.set_xticks([0, 1, 5, 10, 50, 100], ["0", "1", "5", "10", "50", "100"])
    legend_beside(figure, panels[0], "random neurons")
    return figure


@styled
def number_tuning(mlp0: FirstMlp) -> Figure:
    """Activation of the strongest neurons for every number."""
    neurons = strongest_neurons(mlp0)
    figure, axes = new_figure(9, 6, 3, 3, sharex=True)
    panels = axes.ravel()
    numbers = np.arange(mlp0.tuning.shape[1])
    for panel, neuron in zip(panels, neurons, strict=False):
        panel.plot(numbers, mlp0.tuning[neuron], linewidth=0.5, color="#999999")
        panel.scatter(numbers, mlp0.tuning[neuron], s=3, color="#0072B2")
        panel.set_title(f"neuron {neuron}")
    hide_unused(panels, len(neurons))
    for axes_below in axes[-1]:
        axes_below.set_xlabel("number at op1")
    for axes_left in axes[:, 0]:
        axes_left.set_ylabel("activation")
    return figure


def strongest_neurons(mlp0: FirstMlp) -> list[int]:
    """The neurons that rank highest on average over operators."""
    rows = mlp0.effects[(mlp0.effects.measure == "probability") & (mlp0.effects.position == ALL_POSITIONS)]
    ranks: pd.Series[float] = rows.groupby("operator").value.rank(ascending=False).groupby(rows.neuron).mean()
    return [int(n) for n in ranks.sort_values(kind="stable").index[:MOST_NEURONS]]

"""Single neurons: how their effects are spread, how well screens find them, how few suffice, and who shares them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from arithscope.experiments.common.attribution import ATTRIBUTION_METHODS
from arithscope.experiments.neurons import RECALLED, NeuronEffects
from arithscope.experiments.overlap import Overlap
from arithscope.experiments.topk import TopK
from arithscope.figures.circuits import curves_beside_random, legend_beside, mark_choices
from arithscope.figures.style import OPERATOR_COLOURS, SIGNS, log_floor, new_figure, styled

SCREEN_STYLES: dict[str, Any] = {"atp": "-", "ig": "--", "relp": ":"}
MEASURE_TITLES = {"probability": "by probability (Eq. 1)", "log_ratio": "by log-ratio"}
MOST_LAYERS_NAMED = 10
SMALLEST = 1e-3  # effect that is shown


@styled
def neuron_effects(neurons: NeuronEffects) -> Figure:
    """Mean and median effect of every neuron, sorted within its layer: a panel for each operator, a line for each layer."""
    operators = neurons.operators
    rows = neurons.effects[neurons.effects.measure == "probability"]
    layers = sorted(rows.layer.unique())
    colours = dict(zip(layers, colormaps["viridis"](np.linspace(0, 0.9, len(layers))), strict=True))
    low, high = log_floor(rows.value)
    low = min(low, SMALLEST)
    figure, [panels] = new_figure(2.6 * len(operators) + 1.4, 3.8, 1, len(operators), sharey=True)
    for axes, operator in zip(panels, operators, strict=True):
        for (_, layer), here in rows[rows.operator == operator].groupby(["operator", "layer"]):
            for column, style in (("value", "-"), ("median", ":")):
                effects = np.sort(here[column])[::-1]
                axes.plot(np.arange(1, len(effects) + 1), np.maximum(effects, low), style, color=colours[layer])
        axes.set_title(SIGNS[operator])
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(low, high * 1.5)
        axes.set_xlabel("neurons of a layer, strongest first")
    panels[0].set_ylabel("effect of patching (Eq. 1)")
    named = layers[:: -(-len(layers) // MOST_LAYERS_NAMED)]
    handles = [Line2D([], [], color=colours[layer], label=f"layer {layer}") for layer in named]
    handles.append(Line2D([], [], color="grey", linestyle=":", label="median"))
    figure.legend(handles=handles, loc="outside right center")
    return figure


@styled
def faithfulness_by_neurons(topk: TopK) -> Figure:
    """What the circuit keeps when each MLP keeps k neurons at the last position, beside random neurons."""
    figure, panels = curves_beside_random(topk.curve, topk.curve["size"], "neurons kept of each MLP (k)")
    mark_choices(panels, topk.curve, topk.k)
    for axes in panels:
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(0, topk.mlp_size * 1.2)
    legend_beside(figure, panels[0], "random neurons")
    return figure


@styled
def screens_against_exact(neurons: NeuronEffects) -> Figure:
    """How well cheap estimates order neurons as exact effects do: rank correlation, and recall of the best."""
    figure, axes = new_figure(9, 5.6, len(MEASURE_TITLES), 2)
    for [left, right], (measure, title) in zip(axes, MEASURE_TITLES.items(), strict=True):
        rows = neurons.agreement[neurons.agreement.measure == measure]
        _correlations(left, rows)
        _recalls(right, rows)
        left.set_title(title)
        right.set_title(title)
        if rows.empty:
            left.text(0.5, 0.5, "not compared: not all effects are exact", ha="center", transform=left.transAxes)
    axes[-1, 1].set_xlabel("best neurons of each layer (%)")
    handles = [
        *(Line2D([], [], color=OPERATOR_COLOURS[o], label=SIGNS[o]) for o in neurons.operators),
        *(Line2D([], [], color="grey", linestyle=style, label=name) for name, style in SCREEN_STYLES.items()),
        Line2D([], [], color="grey", linewidth=0.8, linestyle="-.", label="chance"),
    ]
    figure.legend(handles=handles, loc="outside right center")
    return figure


def _correlations(axes: Axes, rows: pd.DataFrame) -> None:
    operators = list(rows.operator.unique())
    width = 0.8 / max(1, len(operators))
    for i, operator in enumerate(operators):
        values = rows[rows.operator == operator].set_index("screen").rank_correlation.reindex(list(ATTRIBUTION_METHODS))
        x = np.arange(len(ATTRIBUTION_METHODS)) + (i - (len(operators) - 1) / 2) * width
        axes.bar(x, values, width, color=OPERATOR_COLOURS[operator])
    axes.set_xticks(range(len(ATTRIBUTION_METHODS)), list(ATTRIBUTION_METHODS))
    axes.set_ylim(np.nanmin(rows.rank_correlation.to_numpy(np.float64), initial=0.0), 1)
    axes.set_ylabel("rank correlation with exact")


def _recalls(axes: Axes, rows: pd.DataFrame) -> None:
    columns = [f"recall_{percent}" for percent in RECALLED]
    for row in rows.to_dict("records"):
        values = [row[column] for column in columns]
        axes.plot(RECALLED, values, SCREEN_STYLES[row["screen"]], marker=".", color=OPERATOR_COLOURS[row["operator"]])
    axes.plot(RECALLED, [percent / 100 for percent in RECALLED], "-.", color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks(RECALLED, [str(percent) for percent in RECALLED])
    axes.minorticks_off()
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("recall")


@styled
def neuron_overlap(overlap: Overlap) -> Figure:
    """The IoU of top neurons for each pair of operators, and layer by layer."""
    operators, signs = overlap.operators, [SIGNS[o] for o in overlap.operators]
    figure, [[left, right]] = new_figure(8, 4.2, 1, 2, width_ratios=(1, 1.2))
    grid = np.full((len(operators), len(operators)), np.nan)
    np.fill_diagonal(grid, 1.0)
    for row in overlap.table.to_dict("records"):
        i, j = operators.index(row["operator"]), operators.index(row["other"])
        grid[i, j] = grid[j, i] = row["iou"]
    image = left.imshow(grid, vmin=0, vmax=1, cmap="Blues")
    for (i, j), iou in np.ndenumerate(grid):
        left.text(j, i, f"{iou:.2f}", ha="center", va="center", color="white" if iou > 0.5 else "black")
    left.set_xticks(range(len(signs)), signs)
    left.set_yticks(range(len(signs)), signs)
    left.tick_params(length=0)
    left.spines[:].set_visible(False)
    left.set_title("all layers")
    figure.colorbar(image, ax=left, label="IoU of top neurons", shrink=0.7)
    pairs: Any = overlap.by_layer.groupby(["operator", "other"], sort=False)
    for (operator, other), rows in pairs:
        line, marker = OPERATOR_COLOURS[operator], OPERATOR_COLOURS[other]
        label = f"{SIGNS[operator]} and {SIGNS[other]}"
        right.plot(rows.layer, rows.iou, "o-", color=line, markerfacecolor=marker, markeredgecolor=marker, label=label)
    right.set_title("layer by layer")
    right.set_xlabel("layer")
    right.set_ylabel("IoU")
    right.set_ylim(0, 1.02)
    right.xaxis.get_major_locator().set_params(integer=True)
    if overlap.by_layer.empty:  # with one operator there is nothing to compare
        right.set_visible(False)
    else:
        right.legend(fontsize=7)
    return figure

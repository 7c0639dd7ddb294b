"""Shares of classified neurons: raw and calibrated, by operator, layer and kind of heuristic."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from arithscope.experiments.classify import ALL_LAYERS, CALIBRATED, CRITERIA, RAW, Classification
from arithscope.figures.activation_maps import display_order
from arithscope.figures.registry import figure
from arithscope.figures.style import SIGNS, errors, new_figure
from arithscope.heuristics.kinds import kind_name

CRITERION_COLOURS = {RAW: "#BBBBBB", CALIBRATED: "#0072B2"}
MOST_LAYERS = 12  # with shares written into the cells


@figure(
    "classified-shares",
    Classification,
    section="classification",
    order=200,
    title="How many top neurons are classified",
)
def classified_shares(classify: Classification) -> Figure:
    """Raw: some heuristic scores at least 0.6, the paper's criterion. Calibrated: such a heuristic also has a
    false-discovery rate of at most 0.05 against the permutation null. Right: variance of a neuron's activation map
    explained by its matched heuristics together (R² of a linear regression, mean over neurons). Error bars: 95 %
    bootstrap intervals. (Paper: Section 4.1.)"""
    figure, [[left, right]] = new_figure(10, 3.6, 1, 2)
    operators = classify.operators
    x = np.arange(len(operators))
    table = classify.table.set_index(["measure", "operator"])
    for axes, names, label in (
        (left, ("raw_share", "calibrated_share"), "share of top neurons classified"),
        (right, ("coverage_raw", "coverage_calibrated"), "variance explained (mean)"),
    ):
        for i, (name, criterion) in enumerate(zip(names, CRITERIA, strict=True)):
            rows = table.loc[name].loc[operators]
            at, colour = x + (i - 0.5) * 0.38, CRITERION_COLOURS[criterion]
            bars = axes.bar(at, rows.value, 0.36, yerr=errors(rows), color=colour, label=criterion)
            axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
        axes.set_xticks(x, [SIGNS[o] for o in operators])
        axes.set(ylabel=label, ylim=(0, 1.12))
    right.legend(loc="upper left")
    return figure


@figure("kinds-by-layer", Classification, section="classification", order=210, title="Kinds of heuristics by layer")
def kinds_by_layer(classify: Classification) -> Figure:
    """Share of a layer's top neurons that match at least one heuristic of a kind; a neuron may match several. Top:
    raw score; bottom: after calibration. (Paper: Section 4.1.)"""
    operators = classify.operators
    figure, axes = new_figure(3.2 * len(operators) + 1.4, 6.4, 2, len(operators), sharey=True)
    shares = classify.shares[classify.shares.layer != ALL_LAYERS]
    kinds = sorted(set(zip(shares.kind, shares.on, strict=True)), key=lambda k: ([*map(display_order, k)], k))
    layers = sorted(int(layer) for layer in shares.layer.unique())
    step, image = max(1, len(layers) // 12), None
    style: Any = {"ha": "center", "va": "center", "fontsize": 6}
    for row, criterion in zip(axes, CRITERIA, strict=True):
        for panel, operator in zip(row, operators, strict=True):
            rows = shares[(shares.operator == operator) & (shares.criterion == criterion)]
            values = rows.set_index(["kind", "on", "layer"]).value
            grid = np.array([[values.get((*kind, layer), np.nan) for layer in layers] for kind in kinds])
            edges = np.arange(len(layers) + 1), np.arange(len(kinds) + 1)
            image = panel.pcolormesh(*edges, grid, vmin=0, vmax=1, cmap="magma")
            for (i, j), value in np.ndenumerate(grid):
                if value >= 0.005 and len(layers) <= MOST_LAYERS:
                    text = f"{value:.2f}"[1:] if value < 0.995 else "1"
                    panel.text(j + 0.5, i + 0.5, text, color="white" if value < 0.6 else "black", **style)
            panel.set_xticks(np.arange(len(layers))[::step] + 0.5, [str(layer) for layer in layers][::step])
            panel.set_yticks(np.arange(len(kinds)) + 0.5, [kind_name(kind, on) for kind, on in kinds])
            panel.set_title(f"{SIGNS[operator]}, {criterion}")
    axes[0, 0].invert_yaxis()
    for panel in axes[-1]:
        panel.set_xlabel("layer")
    if image is not None:
        figure.colorbar(image, ax=axes, shrink=0.6, label="share of the layer's top neurons")
    return figure

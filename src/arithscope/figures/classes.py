"""How many neurons are classified: with the raw score and after calibration, by operator, layer and kind of heuristic."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from arithscope.experiments.classify import ALL_LAYERS, CALIBRATED, CRITERIA, RAW, Classification
from arithscope.figures.patterns import rank
from arithscope.figures.style import SIGNS, errors, new_figure, styled
from arithscope.heuristics.kinds import kind_name

CRITERION_COLOURS = {RAW: "#BBBBBB", CALIBRATED: "#0072B2"}


@styled
def raw_and_calibrated(classify: Classification) -> Figure:
    """Shares of neurons with a match, side by side, and how much of the patterns' variance the matches explain."""
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
        axes.set_ylabel(label)
        axes.set_ylim(0, 1.12)
    right.legend(loc="upper left")
    return figure


@styled
def kinds_by_layer(classify: Classification) -> Figure:
    """For each operator the share of a layer's top neurons that match each kind of heuristic; raw above, calibrated below."""
    operators = classify.operators
    figure, axes = new_figure(3.2 * len(operators) + 1.4, 6.4, 2, len(operators), sharey=True)
    shares = classify.shares[classify.shares.layer != ALL_LAYERS]
    kinds = sorted(set(zip(shares.kind, shares.on, strict=True)), key=lambda k: ([*map(rank, k)], k))
    names = [kind_name(kind, on) for kind, on in kinds]
    layers = sorted(int(layer) for layer in shares.layer.unique())
    image = None
    for row, criterion in zip(axes, CRITERIA, strict=True):
        for panel, operator in zip(row, operators, strict=True):
            mine = shares[(shares.operator == operator) & (shares.criterion == criterion)]
            values = mine.set_index(["kind", "on", "layer"]).value
            grid = np.array([[values.get((*kind, layer), np.nan) for layer in layers] for kind in kinds])
            image = panel.pcolormesh(
                np.arange(len(layers) + 1), np.arange(len(kinds) + 1), grid, vmin=0, vmax=1, cmap="magma"
            )
            for (i, j), value in np.ndenumerate(grid):
                if value >= 0.005 and len(layers) <= 12:
                    panel.text(
                        j + 0.5,
                        i + 0.5,
                        f"{value:.2f}"[1:] if value < 0.995 else "1",
                        ha="center",
                        va="center",
                        fontsize=6,
                        color="white" if value < 0.6 else "black",
                    )
            step = max(1, len(layers) // 12)
            panel.set_xticks(np.arange(len(layers))[::step] + 0.5, [str(layer) for layer in layers][::step])
            panel.set_yticks(np.arange(len(kinds)) + 0.5, names)
            panel.set_title(f"{SIGNS[operator]}, {criterion}")
    axes[0, 0].invert_yaxis()
    for panel in axes[-1]:
        panel.set_xlabel("layer")
    if image is not None:
        figure.colorbar(image, ax=axes, shrink=0.6, label="share of the layer's top neurons")
    return figure

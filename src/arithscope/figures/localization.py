"""Where the arithmetic happens: effects of heads and MLPs by layer and position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from arithscope.experiments.localize import MLP, Localization
from arithscope.figures.style import POSITION_COLOURS, SIGNS, log_floor, new_figure, styled


@styled
def localization(localize: Localization) -> Figure:
    """Means and medians over prompts, averaged over operators: a heat map for each position."""
    rows = localize.effects[localize.effects.measure == "probability"]
    averaged = rows.groupby(["position", "layer", "head"], as_index=False)[["value", "median"]].mean()
    rows_of_panels = {"mean effect": ("value", averaged), "median effect": ("median", averaged)}
    return _grid(rows_of_panels, "effect of patching (Eq. 1), log scale")


@styled
def localization_by_operator(localize: Localization) -> Figure:
    """The same, of means, for each operator."""
    rows = localize.effects[localize.effects.measure == "probability"]
    panels = {SIGNS[str(o)]: ("value", rows[rows.operator == o]) for o in rows.operator.unique()}
    return _grid(panels, "mean effect of patching (Eq. 1), log scale")


def _grid(panels: dict[str, tuple[str, pd.DataFrame]], label: str) -> Figure:
    layers = int(next(iter(panels.values()))[1].layer.max()) + 1
    height = min(3.2, 0.9 + 0.16 * layers)
    figure, axes = new_figure(9, 1.3 + height * len(panels), len(panels), len(POSITION_COLOURS), sharey=True)
    low, high = log_floor(np.concatenate([table[column] for column, table in panels.values()]))
    norm = LogNorm(low, high)
    for r, (name, (column, table)) in enumerate(panels.items()):
        for c, position in enumerate(POSITION_COLOURS):
            mesh = _heat_map(axes[r, c], table[table.position == position], column, norm)
            if r == 0:
                axes[r, c].set_title(f"position: {position}")
            if c == 0:
                axes[r, c].set_ylabel(f"{name}\nlayer")
    figure.colorbar(mesh, ax=axes, label=label, extend="min", shrink=0.8)
    return figure


def _heat_map(axes: Axes, table: pd.DataFrame, column: str, norm: LogNorm) -> Any:
    grid = table.pivot(index="layer", columns="head", values=column)
    heads = grid.drop(columns=MLP).to_numpy()
    layers, n = heads.shape
    wide = max(1.0, n / 8)  # the MLP stands apart from the heads, and stays visible beside many of them
    edges = np.arange(layers + 1) - 0.5
    options: Any = {"norm": norm, "cmap": "magma", "rasterized": heads.size > 500}
    floor = norm.vmin or 0.0
    axes.pcolormesh(np.arange(n + 1) - 0.5, edges, np.maximum(heads, floor), **options)
    start = n - 0.5 + wide / 2
    mesh = axes.pcolormesh([start, start + wide], edges, np.maximum(grid[[MLP]].to_numpy(), floor), **options)
    step = -(-n // 8)
    axes.set_xticks([*range(0, n, step), start + wide / 2], [*map(str, range(0, n, step)), "MLP"])
    axes.set_yticks(range(0, layers, -(-layers // 8)))
    axes.set_xlabel("head")
    axes.spines[:].set_visible(False)
    return mesh

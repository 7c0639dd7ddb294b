"""Activation patching: effects of heads and MLPs by layer and position."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from arithscope.experiments.localize import MLP, Localization
from arithscope.figures.registry import figure
from arithscope.figures.style import POSITION_COLOURS, SIGNS, log_limits, new_figure


@figure("localization", Localization, section="circuit", order=20, title="Which heads and MLPs matter, and where")
def localization(localize: Localization) -> Figure:
    """Activation patching: each attention head and each MLP is set, at one position, to its activation on a
    counterfactual prompt. {EFFECT} Averaged over operators. Top: mean over prompts; bottom: median, since single
    prompts can dominate the mean. The darkest colour stands for no effect or a negative one. (Paper: Figure 2a.)"""
    rows = localize.effects[localize.effects.measure == "probability"]
    averaged = rows.groupby(["position", "layer", "head"], as_index=False)[["value", "median"]].mean()
    panels = {"mean effect": ("value", averaged), "median effect": ("median", averaged)}
    return _heat_maps(panels, "effect of patching (Eq. 1), log scale")


@figure("localization-by-operator", Localization, section="circuit", order=30, title="Localization by operator")
def localization_by_operator(localize: Localization) -> Figure:
    """As in the localization figure: mean over the discovery prompts of each operator. (Paper: Figure 2a.)"""
    rows = localize.effects[localize.effects.measure == "probability"]
    panels = {SIGNS[str(o)]: ("value", rows[rows.operator == o]) for o in rows.operator.unique()}
    return _heat_maps(panels, "mean effect of patching (Eq. 1), log scale")


def _heat_maps(panels: dict[str, tuple[str, pd.DataFrame]], label: str) -> Figure:
    """A row of heat maps, one per position, for each named column of a table."""
    layers = int(next(iter(panels.values()))[1].layer.max()) + 1
    height = min(3.2, 0.9 + 0.16 * layers)
    figure, axes = new_figure(9, 1.3 + height * len(panels), len(panels), len(POSITION_COLOURS), sharey=True)
    norm = LogNorm(*log_limits(np.concatenate([table[column] for column, table in panels.values()])))
    for r, (name, (column, table)) in enumerate(panels.items()):
        axes[r, 0].set_ylabel(f"{name}\nlayer")
        for c, position in enumerate(POSITION_COLOURS):
            mesh = _heat_map(axes[r, c], table[table.position == position], column, norm)
            if r == 0:
                axes[r, c].set_title(f"position: {position}")
    figure.colorbar(mesh, ax=axes, label=label, extend="min", shrink=0.8)
    return figure


def _heat_map(axes: Axes, table: pd.DataFrame, column: str, norm: LogNorm) -> Any:
    grid = table.pivot(index="layer", columns="head", values=column)
    heads = grid.drop(columns=MLP).to_numpy()
    layers, n = heads.shape
    wide = max(1.0, n / 8)  # keeps the MLP's column visible beside many heads
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

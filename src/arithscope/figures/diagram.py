"""The circuit as a picture, drawn from what was measured: which heads move what where, and which MLPs work where."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from arithscope.experiments.circuit import Circuit
from arithscope.experiments.heads import Heads
from arithscope.experiments.localize import MLP, Localization, component_name
from arithscope.figures.style import OTHER_COLOUR, POSITION_COLOURS, SIGNS, new_figure, styled

COLUMNS = {"op1": 1.0, "operator": 2.2, "op2": 3.4, "last": 5.0}
ELSEWHERE = 0.0  # the column of everything else: BOS, a prefix, signs between the named tokens
MOST_HEADS = 40  # heads drawn, counted by operator
ARROW = 0.55  # height of an arrow; an MLP takes 1
MLP_SHARE = 0.05  # an MLP is drawn where its effect is at least this share of the largest one


@styled
def circuit_diagram(localize: Localization, circuit: Circuit, heads: Heads) -> Figure:
    """Layers upwards, positions side by side. An arrow is a head, from the position it reads to the one it acts at."""
    mlps, arrows = _mlps(localize), _arrows(heads.top_rows(MOST_HEADS))
    floors = _floors(localize, arrows)
    figure, [[axes]] = new_figure(8.5, min(16.0, 2.3 + 0.36 * floors[-1]))
    named = {"op1": "op1\n226", "operator": "operator\n−", "op2": "op2\n68", "last": "last\n="}
    top = floors[-1] + 0.4
    for position, x in COLUMNS.items():
        axes.plot([x, x], [-0.4, top], color="#DDDDDD", linewidth=6, zorder=0, solid_capstyle="butt")
        axes.text(x, -0.7, named[position], ha="center", va="top", color=POSITION_COLOURS[position], fontweight="bold")
    axes.text(COLUMNS["last"], top + 0.15, "answer\n158", ha="center", va="bottom", fontweight="bold")
    for _, mlp in mlps.iterrows():
        _box(axes, COLUMNS[mlp.position], floors[mlp.layer + 1] - 0.5, f"MLP{mlp.layer}", float(mlp.strength))
    for layer in range(len(floors) - 1):
        for i, (_, arrow) in enumerate(arrows[arrows.layer == layer].iterrows()):
            _arrow(axes, arrow, floors[layer] + ARROW * (i + 0.5))
    if (arrows.reads_named == "").any():
        axes.text(ELSEWHERE, -0.7, "other\ntokens", ha="center", va="top", color=OTHER_COLOUR)
    axes.set_yticks([(a + b) / 2 for a, b in pairwise(floors)], range(len(floors) - 1))
    axes.set_ylabel("layer")
    axes.set_xlim(-0.5, 8.2)
    axes.set_ylim(-1.9, top + 1.3)
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(left=False)
    _legend(axes, circuit)
    return figure


def _mlps(localize: Localization) -> pd.DataFrame:
    """MLPs with a sizeable effect, by layer and position; the log-ratio effect, averaged over operators, is what counts:
    Eq. 1 is ruled by single prompts."""
    e = localize.effects
    rows = e[(e.measure == "log_ratio") & (e["head"] == MLP)]
    mean = rows.groupby(["layer", "position"], as_index=False).value.mean()
    strength = mean.value / max(mean.value.max(), np.finfo(float).tiny)
    return mean.assign(strength=strength)[strength >= MLP_SHARE]


def _arrows(roles: pd.DataFrame) -> pd.DataFrame:
    """One row for each thing that a head does: operators for which it does the same share a row."""
    keys = ["layer", "head", "acts_at", "reads"]
    named = roles.groupby(keys, as_index=False).agg(
        operators=("operator", lambda o: " ".join(SIGNS[x] for x in o)),
        shared=("shared", "any"),
        share=("reads_attention", "mean"),
    )
    return named.assign(reads_named=named.reads.where(named.reads.isin(list(COLUMNS)), ""))


def _floors(localize: Localization, arrows: pd.DataFrame) -> list[float]:
    """Where each layer begins, and where the last one ends: a layer is as high as its arrows and its MLP need."""
    layers = int(localize.effects.layer.max()) + 1
    heights = [1.0 + ARROW * float((arrows.layer == layer).sum()) for layer in range(layers)]
    return [0.0, *np.cumsum(heights).tolist()]


def _box(axes: Axes, x: float, y: float, text: str, strength: float) -> None:
    shade = 0.25 + 0.75 * min(1.0, strength)
    box = FancyBboxPatch((x - 0.3, y - 0.25), 0.6, 0.5, boxstyle="round,pad=0.02", facecolor=(0.84, 0.37, 0.0, shade))
    box.set_edgecolor("black")
    box.set_linewidth(0.6)
    axes.add_patch(box)
    axes.text(x, y, text, ha="center", va="center", fontsize=6.5)


def _arrow(axes: Axes, arrow: Any, y: float) -> None:
    start = COLUMNS.get(arrow.reads_named, ELSEWHERE)
    end = COLUMNS[arrow.acts_at]
    colour = POSITION_COLOURS.get(arrow.reads_named, OTHER_COLOUR)
    width = 2.2 if arrow.shared else 1.0
    if start == end:  # a head that reads the position it acts at
        axes.plot(end, y, "o", color=colour, markersize=4)
    else:
        line = FancyArrowPatch((start, y), (end, y), arrowstyle="-|>", mutation_scale=10, color=colour, linewidth=width)
        axes.add_patch(line)
    label = f"{component_name(arrow.layer, arrow['head'])} reads {arrow.reads} ({arrow.share:.0%}) · {arrow.operators}"
    weight = "bold" if arrow.shared else "normal"
    axes.text(COLUMNS["last"] + 0.4, y, label, va="center", fontsize=7, color=colour, fontweight=weight)


def _legend(axes: Axes, circuit: Circuit) -> None:
    said = (
        f"thick, bold: heads shared by all operators ({len(circuit.shared())})\nMLPs: the darker, the larger the effect"
    )
    axes.text(COLUMNS["last"] + 0.4, -0.7, said, va="top", fontsize=7, color="#333333")

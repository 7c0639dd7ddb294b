"""The circuit as a diagram: which heads move information between which positions, and where MLPs matter."""

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
from arithscope.figures.registry import figure
from arithscope.figures.style import OTHER_COLOUR, POSITION_COLOURS, SIGNS, new_figure

COLUMNS = {"op1": 1.0, "operator": 2.2, "op2": 3.4, "last": 5.0}
TOKENS = {"op1": "226", "operator": "−", "op2": "68", "last": "="}
ELSEWHERE = 0.0  # column of all other tokens: BOS, a few-shot prefix, separators
MOST_HEADS = 40  # heads drawn, counted once per operator
ARROW_HEIGHT = 0.55  # an MLP has height 1
MLP_SHARE = 0.05  # smallest effect of an MLP that is drawn, as a share of the largest


@figure("circuit-diagram", Localization, Circuit, Heads, section="circuit", order=40, title="The arithmetic circuit")
def circuit_diagram(localize: Localization, circuit: Circuit, heads: Heads) -> Figure:
    """Drawn from the measurements, all operators together. An arrow is a head of an operator's circuit: it ends at
    the position where patching the head has its largest effect and starts at the position that receives most of its
    attention from there (mean share in brackets, then the operators). A box is an MLP whose effect at that position
    is at least 5 % of the largest MLP effect (log-ratio, mean over operators). The tokens of 226−68= serve as an
    example. Of very large circuits only the top heads are drawn. (Paper: Figure 2b.)"""
    mlps, arrows = _mlps(localize), _arrows(heads.top_rows(MOST_HEADS))
    # A layer is as high as its MLP and its arrows need.
    heights = [1.0 + ARROW_HEIGHT * (arrows.layer == layer).sum() for layer in range(localize.effects.layer.max() + 1)]
    floors = [0.0, *np.cumsum(heights).tolist()]
    top = floors[-1] + 0.4
    figure, [[axes]] = new_figure(8.5, min(16.0, 2.3 + 0.36 * floors[-1]))
    for position, x in COLUMNS.items():
        axes.plot([x, x], [-0.4, top], color="#DDDDDD", linewidth=6, zorder=0, solid_capstyle="butt")
        label, colour = f"{position}\n{TOKENS[position]}", POSITION_COLOURS[position]
        axes.text(x, -0.7, label, ha="center", va="top", color=colour, fontweight="bold")
    axes.text(COLUMNS["last"], top + 0.15, "answer\n158", ha="center", va="bottom", fontweight="bold")
    for _, mlp in mlps.iterrows():
        _draw_mlp(axes, COLUMNS[mlp.position], floors[mlp.layer + 1] - 0.5, f"MLP{mlp.layer}", float(mlp.strength))
    for layer in range(len(heights)):
        for i, (_, arrow) in enumerate(arrows[arrows.layer == layer].iterrows()):
            _draw_arrow(axes, arrow, floors[layer] + ARROW_HEIGHT * (i + 0.5))
    if not arrows.reads.isin(list(COLUMNS)).all():
        axes.text(ELSEWHERE, -0.7, "other\ntokens", ha="center", va="top", color=OTHER_COLOUR)
    legend = f"thick, bold: heads shared by all operators ({len(circuit.shared())})\nMLPs: darker means larger effect"
    axes.text(COLUMNS["last"] + 0.4, -0.7, legend, va="top", fontsize=7, color="#333333")
    axes.set_yticks([(a + b) / 2 for a, b in pairwise(floors)], range(len(heights)))
    axes.set(ylabel="layer", xlim=(-0.5, 8.2), ylim=(-1.9, top + 1.3))
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(left=False)
    return figure


def _mlps(localize: Localization) -> pd.DataFrame:
    """MLPs worth drawing, by layer and position. Ranked by the log-ratio effect: single prompts can dominate Eq. 1."""
    e = localize.effects
    rows = e[(e.measure == "log_ratio") & (e["head"] == MLP)]
    mean = rows.groupby(["layer", "position"], as_index=False).value.mean()
    strength = mean.value / max(mean.value.max(), np.finfo(float).tiny)
    return mean.assign(strength=strength)[strength >= MLP_SHARE]


def _arrows(roles: pd.DataFrame) -> pd.DataFrame:
    """One row per head, source and target position; operators that agree share a row."""
    return roles.groupby(["layer", "head", "acts_at", "reads"], as_index=False).agg(
        operators=("operator", lambda operators: " ".join(SIGNS[o] for o in operators)),
        shared=("shared", "any"),
        share=("reads_attention", "mean"),
    )


def _draw_mlp(axes: Axes, x: float, y: float, text: str, strength: float) -> None:
    colour = (0.84, 0.37, 0.0, 0.25 + 0.75 * min(1.0, strength))
    box = FancyBboxPatch((x - 0.3, y - 0.25), 0.6, 0.5, boxstyle="round,pad=0.02", facecolor=colour)
    box.set_edgecolor("black")
    box.set_linewidth(0.6)
    axes.add_patch(box)
    axes.text(x, y, text, ha="center", va="center", fontsize=6.5)


def _draw_arrow(axes: Axes, arrow: Any, y: float) -> None:
    start, end = COLUMNS.get(arrow.reads, ELSEWHERE), COLUMNS[arrow.acts_at]
    colour = POSITION_COLOURS.get(arrow.reads, OTHER_COLOUR)
    if start == end:  # a head that reads the position it acts at
        axes.plot(end, y, "o", color=colour, markersize=4)
    else:
        width = 2.2 if arrow.shared else 1.0
        line = FancyArrowPatch((start, y), (end, y), arrowstyle="-|>", mutation_scale=10, color=colour, linewidth=width)
        axes.add_patch(line)
    label = f"{component_name(arrow.layer, arrow['head'])} reads {arrow.reads} ({arrow.share:.0%}) · {arrow.operators}"
    weight = "bold" if arrow.shared else "normal"
    axes.text(COLUMNS["last"] + 0.4, y, label, va="center", fontsize=7, color=colour, fontweight=weight)

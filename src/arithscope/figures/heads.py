"""Heads of the circuit: a diagram of what they move between positions, with the MLPs that matter, and their attention."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from numpy.typing import NDArray

from arithscope.experiments.circuit import Circuit
from arithscope.experiments.heads import AFTER, BEFORE, Heads
from arithscope.experiments.localize import MLP, Localization, component_name
from arithscope.figures.registry import figure
from arithscope.figures.style import (
    OTHER_COLOUR,
    SIGNS,
    errors,
    grid_shape,
    hide_unused,
    literal,
    new_figure,
    position_colour,
)

TOKENS = {"op1": "226", "operator": "−", "op2": "68", "last": "="}
ELSEWHERE = 0.0  # column of all other tokens: BOS, a few-shot prefix, separators
MOST_HEADS = 40  # heads drawn, counted once per operator
ARROW_HEIGHT = 0.55  # an MLP has height 1
MLP_SHARE = 0.05  # smallest effect of an MLP that is drawn, as a share of the largest
MOST_PANELS, MOST_ROWS = 12, 40
MOST_LEVEL = 6  # names of positions that fit beside each other
PRECEDING = "before op1"  # BOS and a few-shot prefix, added up


@figure("circuit-diagram", Localization, Circuit, Heads, section="circuit", order=40, title="The arithmetic circuit")
def circuit_diagram(localize: Localization, circuit: Circuit, heads: Heads) -> Figure:
    """Drawn from the measurements, all operators together. An arrow is a head of an operator's circuit: it ends at
    the position where patching the head has its largest effect and starts at the position that receives most of its
    attention from there (mean share in brackets, then the operators). A box is an MLP whose effect at that position
    is at least 5 % of the largest MLP effect (log-ratio, mean over operators). {EXAMPLE} Of very large circuits only
    the top heads are drawn. (Paper: Figure 2b.)"""
    mlps, arrows = _mlps(localize), _arrows(heads.top_rows(MOST_HEADS))
    # A layer is as high as its MLP and its arrows need.
    heights = [1.0 + ARROW_HEIGHT * (arrows.layer == layer).sum() for layer in range(localize.effects.layer.max() + 1)]
    floors = [0.0, *np.cumsum(heights).tolist()]
    top = floors[-1] + 0.4
    figure, [[axes]] = new_figure(8.5, min(16.0, 2.3 + 0.36 * floors[-1]))
    columns = _columns([str(position) for position in localize.effects.position.unique()])
    whole, right = list(columns) == list(TOKENS), max(columns.values())
    for position, x in columns.items():
        axes.plot([x, x], [-0.4, top], color="#DDDDDD", linewidth=6, zorder=0, solid_capstyle="butt")
        label, colour = f"{position}\n{TOKENS[position]}" if whole else position, position_colour(position)
        axes.text(x, -0.7, label, ha="center", va="top", color=colour, fontweight="bold")
    axes.text(right, top + 0.15, "answer\n158" if whole else "next\ntoken", ha="center", va="bottom", fontweight="bold")
    for _, mlp in mlps.iterrows():
        _draw_mlp(axes, columns[mlp.position], floors[mlp.layer + 1] - 0.5, f"MLP{mlp.layer}", float(mlp.strength))
    for layer in range(len(heights)):
        for i, (_, arrow) in enumerate(arrows[arrows.layer == layer].iterrows()):
            _draw_arrow(axes, arrow, columns, floors[layer] + ARROW_HEIGHT * (i + 0.5))
    if not arrows.reads.isin(list(columns)).all():
        axes.text(ELSEWHERE, -0.7, "other\ntokens", ha="center", va="top", color=OTHER_COLOUR)
    legend = f"thick, bold: heads shared by all operators ({len(circuit.shared())})\nMLPs: darker means larger effect"
    axes.text(right + 0.4, -0.7, legend, va="top", fontsize=7, color="#333333")
    axes.set_yticks([(a + b) / 2 for a, b in pairwise(floors)], range(len(heights)))
    axes.set(ylabel="layer", xlim=(-0.5, right + 3.2), ylim=(-1.9, top + 1.3))
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(left=False)
    return figure


def _columns(positions: list[str]) -> dict[str, float]:
    """Where each position is drawn, from left to right; the last one stands apart."""
    *earlier, last = positions
    columns = {position: 1.0 + 1.2 * i for i, position in enumerate(earlier)}
    return {**columns, last: 1.4 + 1.2 * len(earlier)}


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
    style: Any = {"boxstyle": "round,pad=0.02", "facecolor": colour, "edgecolor": "black", "linewidth": 0.6}
    axes.add_patch(FancyBboxPatch((x - 0.3, y - 0.25), 0.6, 0.5, **style))
    axes.text(x, y, text, ha="center", va="center", fontsize=6.5)


def _draw_arrow(axes: Axes, arrow: Any, columns: dict[str, float], y: float) -> None:
    start, end = columns.get(arrow.reads, ELSEWHERE), columns[arrow.acts_at]
    colour = position_colour(arrow.reads)
    if start == end:  # a head that reads the position it acts at
        axes.plot(end, y, "o", color=colour, markersize=4)
    else:
        width = 2.2 if arrow.shared else 1.0
        line = FancyArrowPatch((start, y), (end, y), arrowstyle="-|>", mutation_scale=10, color=colour, linewidth=width)
        axes.add_patch(line)
    name, read = component_name(arrow.layer, arrow["head"]), literal(arrow.reads)
    label = f"{name} reads {read} ({arrow.share:.0%}) · {arrow.operators}"
    weight = "bold" if arrow.shared else "normal"
    axes.text(max(columns.values()) + 0.4, y, label, va="center", fontsize=7, color=colour, fontweight=weight)


@figure("attention-patterns", Heads, section="circuit", order=70, title="Attention patterns of the circuit's heads")
def attention_patterns(heads: Heads) -> Figure:
    """Mean attention over evaluation prompts, from the position on the left to the position below, averaged over
    the operators in brackets, whose circuits contain the head. Bold: shared by all operators. (Paper: Appendix B.)"""
    groups: list[Any] = list(heads.roles.groupby(["layer", "head"]))
    shown = sorted(groups, key=lambda group: (-len(group[1]), group[0]))[:MOST_PANELS]
    rows, columns = grid_shape(len(shown), 4)
    figure, axes = new_figure(2.6 * columns + 0.8, 2.5 * rows + 1.3, rows, columns)
    panels = axes.ravel()
    first = _op1(heads)
    names = [PRECEDING, *heads.positions[first:]]
    for panel, (head, roles) in zip(panels, shown, strict=False):
        pattern = _merged(heads.attention[roles.index].mean(0)[first:], first)
        image = panel.imshow(pattern, vmin=0, vmax=1, cmap="Blues")
        _write_shares(panel, pattern)
        operators = " ".join(SIGNS[o] for o in roles.operator)
        weight = "bold" if roles.shared.any() else "normal"
        panel.set_title(f"{component_name(*head)}  ({operators})", fontweight=weight)
        panel.set_xticks(range(len(names)), map(literal, names), rotation=90, fontsize=7)
        panel.set_yticks(range(len(names) - 1), map(literal, names[1:]), fontsize=7)
        panel.spines[:].set_visible(False)
    hide_unused(panels, len(shown))
    if shown:
        figure.colorbar(image, ax=axes, label="mean attention", shrink=0.6)
    return figure


@figure("head-roles", Heads, section="circuit", order=80, title="What the circuit's heads attend to")
def head_roles(heads: Heads) -> Figure:
    """Left: attention of each circuit head from {LAST} (shares of at least .10 are written out); the
    most attended token, framed, is the head's role. Right: faithfulness of the circuit before and after that
    position is cut off from the prompt's earlier tokens in all layers below the head. {FAITHFULNESS} Heads in bold
    are shared by all operators; of very large circuits only the top heads are shown. (Paper: Appendix B.)"""
    roles = heads.top_rows(MOST_ROWS)
    first = _op1(heads)
    names = [PRECEDING, *heads.positions[first:]]
    figure, [[left, right]] = new_figure(9, 1.9 + 0.23 * max(1, len(roles)), 1, 2, sharey=True)
    if len(roles) == 0:
        return figure
    attention = _merged(heads.attention[roles.index, -1], first)
    left.imshow(attention, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    _write_shares(left, attention)
    for i, position in enumerate(roles.attends_to):
        column = names.index(position) if position in names else 0
        left.add_patch(Rectangle((column - 0.48, i - 0.45), 0.96, 0.9, fill=False, edgecolor="#D55E00"))
    keys = list(zip(roles.operator, roles.layer, roles["head"], strict=True))
    left.set_yticks(range(len(keys)), [f"{SIGNS[o]}  {component_name(*head)}" for o, *head in keys], fontsize=7)
    for text, shared in zip(left.get_yticklabels(), roles.shared, strict=True):
        text.set_fontweight("bold" if shared else "normal")
    left.set_xticks(range(len(names)), map(literal, names), rotation=0 if len(names) <= MOST_LEVEL else 60)
    from_where = "the last position" if heads.positions[-1] == "last" else heads.positions[-1]
    left.set(xlabel="attended position", title=f"mean attention from {from_where}")
    _isolation(right, heads.isolation, keys)
    return figure


def _op1(heads: Heads) -> int:
    """Where the prompt's own tokens begin."""
    return next(i for i, label in enumerate(heads.positions) if label.partition(".")[0] == "op1")


def _isolation(axes: Axes, isolation: pd.DataFrame, heads: Sequence[tuple[Any, ...]]) -> None:
    table: Any = isolation[isolation.measure == "faithfulness"].set_index(["operator", "layer", "head", "when"])
    markers = ((BEFORE, "o", -0.15, "grey", "circuit"), (AFTER, "D", 0.15, "#D55E00", "attended position isolated"))
    for when, marker, shift, colour, label in markers:
        rows = table.loc[[(*head, when) for head in heads]]
        y = np.arange(len(rows)) + shift
        options: Any = {"fmt": marker, "label": label, "color": colour, "markersize": 4, "linewidth": 1}
        axes.errorbar(rows.value, y, xerr=errors(rows), **options)
    axes.set(xlabel="faithfulness", title="circuit before and after isolation")
    axes.grid(axis="y", linewidth=0.3)
    axes.legend(loc="best")


def _merged(pattern: NDArray[np.float32], first: int) -> NDArray[np.float32]:
    """Attention to the positions before op1 added up in one column."""
    return np.concatenate([pattern[..., :first].sum(-1, keepdims=True), pattern[..., first:]], axis=-1)


def _write_shares(axes: Axes, attention: NDArray[np.float32]) -> None:
    for (i, j), share in np.ndenumerate(attention):
        if share >= 0.1:
            colour = "white" if share > 0.5 else "black"
            axes.text(j, i, f"{share:.2f}", ha="center", va="center", fontsize=6, color=colour)

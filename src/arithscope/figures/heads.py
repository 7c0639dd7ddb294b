"""Attention of the circuit's heads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from arithscope.experiments.heads import AFTER, BEFORE, Heads
from arithscope.experiments.localize import component_name
from arithscope.figures.registry import figure
from arithscope.figures.style import SIGNS, errors, grid_shape, hide_unused, new_figure

MOST_PANELS, MOST_ROWS = 12, 40
PRECEDING = "before op1"  # BOS and a few-shot prefix, added up


@figure("attention-patterns", Heads, section="circuit", order=70, title="Attention patterns of the circuit's heads")
def attention_patterns(heads: Heads) -> Figure:
    """Mean attention over evaluation prompts, from the position on the left to the position below, averaged over
    the operators in brackets, whose circuits contain the head. Bold: shared by all operators. (Paper: Appendix B.)"""
    groups: list[Any] = list(heads.roles.groupby(["layer", "head"]))
    shown = sorted(groups, key=lambda group: (-len(group[1]), group[0]))[:MOST_PANELS]
    rows, columns = grid_shape(len(shown), 4)
    figure, axes = new_figure(2.6 * columns + 0.8, 2.5 * rows + 1.3, rows, columns)
    panels = axes.ravel()
    names, first = _position_names(heads.positions)
    for panel, (head, roles) in zip(panels, shown, strict=False):
        pattern = _merged(heads.attention[roles.index].mean(0)[first:], first)
        image = panel.imshow(pattern, vmin=0, vmax=1, cmap="Blues")
        _write_shares(panel, pattern)
        operators = " ".join(SIGNS[o] for o in roles.operator)
        weight = "bold" if roles.shared.any() else "normal"
        panel.set_title(f"{component_name(*head)}  ({operators})", fontweight=weight)
        panel.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        panel.set_yticks(range(len(names) - 1), names[1:], fontsize=7)
        panel.spines[:].set_visible(False)
    hide_unused(panels, len(shown))
    if shown:
        figure.colorbar(image, ax=axes, label="mean attention", shrink=0.6)
    return figure


@figure("head-roles", Heads, section="circuit", order=80, title="What the circuit's heads attend to")
def head_roles(heads: Heads) -> Figure:
    """Left: attention of each circuit head from the last position (shares of at least .10 are written out); the
    most attended token, framed, is the head's role. Right: faithfulness of the circuit before and after that
    position is cut off from the prompt's earlier tokens in all layers below the head. {FAITHFULNESS} Heads in bold
    are shared by all operators; of very large circuits only the top heads are shown. (Paper: Appendix B.)"""
    roles = heads.top_rows(MOST_ROWS)
    names, first = _position_names(heads.positions)
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
    left.set_xticks(range(len(names)), names)
    left.set(xlabel="attended position", title="mean attention from the last position")
    _isolation(right, heads.isolation, keys)
    return figure


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


def _position_names(positions: Sequence[str]) -> tuple[list[str], int]:
    """Names of the positions shown, and the index of op1, before which positions are merged."""
    first = positions.index("op1")
    return [PRECEDING, *positions[first:]], first


def _merged(pattern: NDArray[np.float32], first: int) -> NDArray[np.float32]:
    """Attention to the positions before op1 added up in one column."""
    return np.concatenate([pattern[..., :first].sum(-1, keepdims=True), pattern[..., first:]], axis=-1)


def _write_shares(axes: Axes, attention: NDArray[np.float32]) -> None:
    for (i, j), share in np.ndenumerate(attention):
        if share >= 0.1:
            colour = "white" if share > 0.5 else "black"
            axes.text(j, i, f"{share:.2f}", ha="center", va="center", fontsize=6, color=colour)

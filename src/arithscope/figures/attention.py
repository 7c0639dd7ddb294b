"""Where the circuit's heads look."""

from __future__ import annotations

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
from arithscope.figures.style import SIGNS, grid_shape, hide_unused, new_figure, styled

MOST_PANELS, MOST_ROWS = 12, 40
PRECEDING = "before op1"  # BOS and a prefix, taken together


@styled
def attention_patterns(heads: Heads) -> Figure:
    """The mean attention of circuit heads, from each position (row) to each position (column)."""
    groups: list[Any] = list(heads.roles.groupby(["layer", "head"]))
    shown = sorted(groups, key=lambda group: (-len(group[1]), group[0]))[:MOST_PANELS]
    rows, columns = grid_shape(len(shown), 4)
    figure, axes = new_figure(2.6 * columns + 0.8, 2.5 * rows + 1.3, rows, columns)
    panels = axes.ravel()
    names, first = _names(heads.positions)
    for panel, (head, members) in zip(panels, shown, strict=False):
        pattern = _joined(heads.patterns[members.index].mean(0)[first:], first)
        image = panel.imshow(pattern, vmin=0, vmax=1, cmap="Blues")
        _write_shares(panel, pattern)
        operators = " ".join(SIGNS[o] for o in members.operator)
        weight = "bold" if members.shared.any() else "normal"
        panel.set_title(f"{component_name(*head)}  ({operators})", fontweight=weight)
        panel.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        panel.set_yticks(range(len(names) - 1), names[1:], fontsize=7)
        panel.spines[:].set_visible(False)
    hide_unused(panels, len(shown))
    if shown:
        figure.colorbar(image, ax=axes, label="mean attention", shrink=0.6)
    return figure


@styled
def head_roles(heads: Heads) -> Figure:
    """Attention of each circuit head from the last position, and faithfulness when what it reads is isolated."""
    roles = heads.top_rows(MOST_ROWS)
    names, first = _names(heads.positions)
    figure, [[left, right]] = new_figure(9, 1.9 + 0.23 * max(1, len(roles)), 1, 2, sharey=True)
    if len(roles) == 0:
        return figure
    attention = _joined(heads.patterns[roles.index, -1], first)
    left.imshow(attention, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    _write_shares(left, attention)
    for i, attends_to in enumerate(roles.attends_to):
        column = names.index(attends_to) if attends_to in names else 0
        left.add_patch(Rectangle((column - 0.48, i - 0.45), 0.96, 0.9, fill=False, edgecolor="#D55E00"))
    keys = list(zip(roles.operator, roles.layer, roles["head"], strict=True))
    left.set_yticks(range(len(keys)), [f"{SIGNS[o]}  {component_name(*head)}" for o, *head in keys], fontsize=7)
    for text, shared in zip(left.get_yticklabels(), roles.shared, strict=True):
        text.set_fontweight("bold" if shared else "normal")
    left.set_xticks(range(len(names)), names)
    left.set_xlabel("attended position")
    left.set_title("mean attention from the last position")
    _isolation(right, heads.isolation, keys)
    return figure


def _isolation(axes: Axes, isolation: pd.DataFrame, heads: Sequence[tuple[Any, ...]]) -> None:
    faithful: Any = isolation[isolation.measure == "faithfulness"].set_index(["operator", "layer", "head", "when"])
    looks = ((BEFORE, "o", -0.15, "grey", "circuit"), (AFTER, "D", 0.15, "#D55E00", "attended position isolated"))
    for when, marker, shift, colour, label in looks:
        rows = faithful.loc[[(*head, when) for head in heads]]
        errors = np.maximum([rows.value - rows.low, rows.high - rows.value], 0)
        y = np.arange(len(rows)) + shift
        axes.errorbar(rows.value, y, xerr=errors, fmt=marker, label=label, color=colour, markersize=4, linewidth=1)
    axes.set_xlabel("faithfulness")
    axes.set_title("circuit before and after isolation")
    axes.grid(axis="y", linewidth=0.3)
    axes.legend(loc="best")


def _names(positions: Sequence[str]) -> tuple[list[str], int]:
    """Names of the shown positions, and where op1 is: what precedes it is shown as one."""
    first = positions.index("op1")
    return [PRECEDING, *positions[first:]], first


def _joined(pattern: NDArray[np.float32], first: int) -> NDArray[np.float32]:
    """Attention to everything before op1 added up in one column."""
    return np.concatenate([pattern[..., :first].sum(-1, keepdims=True), pattern[..., first:]], axis=-1)


def _write_shares(axes: Axes, attention: NDArray[np.float32]) -> None:
    for (i, j), share in np.ndenumerate(attention):
        if share >= 0.1:
            colour = "white" if share > 0.5 else "black"
            axes.text(j, i, f"{share:.2f}", ha="center", va="center", fontsize=6, color=colour)

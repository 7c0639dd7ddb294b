"""What all figures share: colours, signs, and how a figure gets its title and caption."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray

# Colour-blind safe (Okabe and Ito), one for each operator and one for each position, the same in every figure.
OPERATOR_COLOURS = {"+": "#0072B2", "-": "#D55E00", "*": "#009E73", "/": "#CC79A7"}
POSITION_COLOURS = {"op1": "#0072B2", "operator": "#E69F00", "op2": "#009E73", "last": "#D55E00"}
OTHER_COLOUR = "#666666"
SIGNS = {"+": "+", "-": "−", "*": "×", "/": "÷"}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "arithscope",  # so that the same figure is the same file
}
styled = rc_context(STYLE)  # as a decorator


class NotebookFigure(Figure):
    """Shows itself in a notebook, also in one that has not imported pyplot, which is what teaches notebooks to show figures."""

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as picture:
            self.savefig(picture, format="png")
            return picture.getvalue()


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure of so many inches with a grid of axes, always as a 2-D array."""
    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def finish(figure: Figure, title: str, caption: str) -> tuple[Text, Text]:
    """Put the title above and the caption below, wrapped to the figure's width."""
    inches = figure.get_size_inches()[0]
    above = figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    text = textwrap.fill(caption, width=int(inches * 17))
    return above, figure.supxlabel(text, x=0.01, ha="left", fontsize=8, color="#333333")


def line_with_band(axes: Axes, x: Any, table: pd.DataFrame, **options: Any) -> None:
    """A line of values with their interval as a band around it."""
    [line] = axes.plot(x, table.value, **options)
    axes.fill_between(x, table.low, table.high, color=line.get_color(), alpha=0.18, linewidth=0)


def errors(table: Any) -> NDArray[np.float64]:
    """Distances of intervals from their values, below and above, for error bars."""
    return np.abs(np.stack([table.value - table.low, table.high - table.value]))


def grid_shape(n: int, widest: int) -> tuple[int, int]:
    """Rows and columns for n panels."""
    columns = max(1, min(n, widest))
    return -(-max(n, 1) // columns), columns


def hide_unused(panels: Sequence[Axes], used: int) -> None:
    for axes in panels[used:]:
        axes.set_visible(False)


def log_floor(values: Any) -> tuple[float, float]:
    """Limits of a log scale for effects: what lies at or below the lower one, negative effects too, looks like none."""
    top = float(np.nanmax(values, initial=0.0))
    if top <= 0:
        return 1e-3, 1.0
    return min(1e-2, top / 1e3), top


LINE = 0.24  # inches that a line of a table takes


def table_figure(header: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[float]) -> Figure:
    """A table as a figure: columns so many inches wide, cells of one or more lines, rules around the header and at the end."""
    heights = [max(cell.count("\n") + 1 for cell in row) for row in rows]
    total = sum(heights) + 1
    figure, [[axes]] = new_figure(sum(widths) + 0.2, total * LINE + 1.1)
    axes.set_xlim(0, sum(widths))
    axes.set_ylim(total + 0.1, -0.1)
    axes.axis("off")
    left = np.cumsum([0.05, *widths[:-1]])
    tops = np.cumsum([0, 1, *heights])[:-1] if rows else [0]
    for top, row, weight in zip(tops, [header, *rows], ["bold", *["normal"] * len(rows)], strict=True):
        for x, cell in zip(left, row, strict=True):
            for i, line in enumerate(cell.split("\n")):
                axes.text(x, top + i + 0.7, line, va="baseline", fontweight=weight)
    axes.hlines([0, 1, total], 0, sum(widths), color="black", linewidth=0.8, clip_on=False)
    return figure

"""Common style of all figures: colours, operator signs, captions, and figures that are tables."""

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

from arithscope.utils.printing import printable

# Colour-blind safe (Okabe and Ito); operators and positions have the same colours in every figure.
OPERATOR_COLOURS = {"+": "#0072B2", "-": "#D55E00", "*": "#009E73", "/": "#CC79A7"}
POSITION_COLOURS = {"op1": "#0072B2", "operator": "#E69F00", "op2": "#009E73", "last": "#D55E00", "answer": "#CC79A7"}
TOKEN_LINES = ("-", "--", ":", "-.")  # of a number's first token, its second, …
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
    "svg.hashsalt": "arithscope",  # the same figure gives the same bytes
}
styled = rc_context(STYLE)  # a decorator


class NotebookFigure(Figure):
    """A figure that a notebook displays even if pyplot, which registers the usual formatter, was never imported."""

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as picture:
            self.savefig(picture, format="png")
            return picture.getvalue()


def literal(text: str) -> str:
    """A text from outside (a name of a model, run or checkpoint; a token) as matplotlib must get it to draw it as it is.

    Dollar signs would start a formula, a label that begins with _ is left out of legends, and SVG, which is XML, cannot hold
    control characters.
    """
    text = printable(text).replace("$", r"\$")
    return f"\N{ZERO WIDTH SPACE}{text}" if text.startswith("_") else text


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure of that size in inches, and its axes as a 2-D array."""
    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def finish(figure: Figure, title: str, caption: str) -> tuple[Text, Text]:
    """Add the title above and the caption, wrapped to the figure's width, below."""
    inches = figure.get_size_inches()[0]
    above = figure.suptitle(literal(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
    text = textwrap.fill(caption, width=int(inches * 17))
    return above, figure.supxlabel(text, x=0.01, ha="left", fontsize=8, color="#333333")


def line_with_band(axes: Axes, x: Any, table: pd.DataFrame, **options: Any) -> None:
    """Plot a line of values with their intervals as a band."""
    [line] = axes.plot(x, table.value, **options)
    axes.fill_between(x, table.low, table.high, color=line.get_color(), alpha=0.18, linewidth=0)


def errors(table: Any) -> NDArray[np.float64]:
    """Lengths of error bars below and above the values, [2, rows]."""
    return np.abs(np.stack([table.value - table.low, table.high - table.value]))


def grouped_bars(axes: Axes, operators: Sequence[str], bars: Sequence[tuple[Any, str, str]], **options: Any) -> None:
    """A group of bars for each operator. `bars` are triples: a table with one mean per operator, a colour and a label."""
    x, width = np.arange(len(operators)), 0.8 / len(bars)
    for i, (rows, colour, label) in enumerate(bars):
        at = x + (i - (len(bars) - 1) / 2) * width
        axes.bar(at, rows.value, width * 0.95, yerr=np.nan_to_num(errors(rows)), color=colour, label=label, **options)
    axes.set_xticks(x, [SIGNS.get(o, o) for o in operators])


def outside_legend(figure: Figure, axes: Axes) -> None:
    """A legend of what is drawn in these axes, to the right of all panels."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


def grid_shape(n: int, widest: int) -> tuple[int, int]:
    """Rows and columns for n panels, at most `widest` in a row."""
    columns = max(1, min(n, widest))
    return -(-max(n, 1) // columns), columns


def hide_unused(panels: Sequence[Axes], used: int) -> None:
    for axes in panels[used:]:
        axes.set_visible(False)


def log_limits(values: Any) -> tuple[float, float]:
    """Limits of a log scale for effects; effects below the lower limit, negative ones included, are drawn at it."""
    top = float(np.nanmax(values, initial=0.0))
    return (min(1e-2, top / 1e3), top) if top > 0 else (1e-3, 1.0)


LINE = 0.24  # height of a table's line in inches


def table_figure(header: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[float]) -> Figure:
    """A table as a figure; `widths` of columns are in inches, and cells may have several lines."""
    heights = [max(cell.count("\n") + 1 for cell in row) for row in rows]
    total = sum(heights) + 1
    figure, [[axes]] = new_figure(sum(widths) + 0.2, total * LINE + 1.1)
    axes.set(xlim=(0, sum(widths)), ylim=(total + 0.1, -0.1))
    axes.axis("off")
    left = np.cumsum([0.05, *widths[:-1]])
    tops = np.cumsum([0, 1, *heights])[:-1] if rows else [0]
    for top, row, weight in zip(tops, [header, *rows], ["bold", *["normal"] * len(rows)], strict=True):
        for x, cell in zip(left, row, strict=True):
            for i, line in enumerate(cell.split("\n")):
                axes.text(x, top + i + 0.7, line, va="baseline", fontweight=weight)
    axes.hlines([0, 1, total], 0, sum(widths), color="black", linewidth=0.8, clip_on=False)
    return figure


def position_colour(position: str) -> str:
    """Colour of a named position; all tokens of a number have the same. Other tokens are grey."""
    return POSITION_COLOURS.get(position.partition(".")[0], OTHER_COLOUR)


def position_line(position: str) -> str:
    """Line style of a named position: tells the tokens of a number apart."""
    index = position.partition(".")[2]
    return TOKEN_LINES[(int(index) - 1) % len(TOKEN_LINES)] if index.isdecimal() else TOKEN_LINES[0]

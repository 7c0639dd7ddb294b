"""Where each digit of the answer and each carry can first be read off the residual stream."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from arithscope.experiments.digit_probes import DigitProbes
from arithscope.figures.registry import figure
from arithscope.figures.style import SIGNS, new_figure

GIVEN = "#DDDDDD"  # colour of positions at which the answer's own tokens tell the variable


@figure("digit-probes", DigitProbes, section="carries", order=335, title="Where each digit and each carry can be read")
def digit_probes(probes: DigitProbes) -> Figure:
    """Linear probes of each digit of the answer and each carry (or borrow), at every position of prompts with their
    right answers behind them. Number: the first layer after which the variable can be read, that is, three quarters of
    the way from chance to the best accuracy; a dash if there is none. Colour: test accuracy of the best layer. Framed:
    the tokens up to here determine the variable. Grey: those of the answer alone do, so that the model was told. (Not in
    the paper.)"""
    operators = [str(operator) for operator in probes.first.operator.unique()]
    positions = list(probes.first.position.unique())
    most = max((rows.variable.nunique() for _, rows in probes.first.groupby("operator")), default=1)
    count = max(1, len(operators))
    figure, [panels] = new_figure(1.6 + (1.4 + 0.42 * len(positions)) * count, 1.2 + 0.34 * most, 1, count)
    mesh: Any = None
    for panel, operator in zip(panels, operators, strict=False):
        mesh = _draw_places(panel, probes.first[probes.first.operator == operator], positions)
        panel.set_title(SIGNS[operator])
    if mesh is None:
        panels[0].text(0.5, 0.5, "too few whole answers are right", ha="center", va="center")
    else:
        figure.colorbar(mesh, ax=panels, label="best accuracy")
    return figure


def _draw_places(panel: Axes, rows: pd.DataFrame, positions: list[str]) -> Any:
    variables = list(rows.variable.unique())
    best = rows.pivot(index="variable", columns="position", values="best").reindex(variables)[positions]
    mesh = panel.pcolormesh(best.to_numpy(), vmin=0, vmax=1, cmap="Blues", edgecolors="white", linewidth=0.5)
    for row in rows.to_dict("records"):
        x, y = positions.index(row["position"]), variables.index(row["variable"])
        if row["given"]:
            panel.add_patch(Rectangle((x, y), 1, 1, facecolor=GIVEN, edgecolor="white"))
            continue
        if row["determined"]:
            panel.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, fill=False, edgecolor="#D55E00"))
        text = "–" if row["layer"] < 0 else str(row["layer"])
        colour = "white" if row["best"] > 0.5 else "black"
        panel.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=8, color=colour)
    panel.set_xticks(np.arange(len(positions)) + 0.5, positions, rotation=60, ha="right")
    panel.set_yticks(np.arange(len(variables)) + 0.5, variables)
    panel.invert_yaxis()
    panel.spines[:].set_visible(False)
    return mesh

"""Key numbers of a run beside those of its repetitions."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from arithscope.experiments.stability import CHOICES, HALF, HALVES, SEED, SEEDS, WHOLE, Stability
from arithscope.figures.style import SIGNS, new_figure, styled

WAYS = {HALVES: HALF, SEEDS: SEED}
COLOURS = {HALVES: "#0072B2", SEEDS: "#E69F00"}
OFFSETS = {HALVES: -0.22, SEEDS: 0.22}  # from a number's line, so that dots do not hide each other
CHOICE_NAMES = dict(
    zip(
        CHOICES,
        (
            "correlation of neurons' effects",
            "heads of the circuit",
            "heads shared by all operators",
            "top neurons",
            "neurons that stay classified, raw",
            "neurons that stay classified, calibrated",
        ),
        strict=True,
    )
)


@styled
def repeated_numbers(stability: Stability) -> Figure:
    """A panel an operator, and one for all together; a line a number."""
    shares = [row for row in stability.rows if row.share]
    choices = [choice for choice in CHOICES if choice in set(stability.choices.choice)]
    operators, lines = stability.operators, len(shares) + len(choices)
    figure, [panels] = new_figure(
        5.0 + 1.9 * len(operators), 1.8 + 0.27 * lines, 1, len(operators), sharex=True, sharey=True
    )
    for panel, operator in zip(panels, operators, strict=True):
        for place, row in enumerate(shares):
            found = stability.means(row, operator)
            if WHOLE in found:
                whole = found[WHOLE]
                panel.plot([whole.low, whole.high], [place, place], color="black", linewidth=1)
                panel.plot(whole.value, place, "o", color="black", markersize=4)
            for way, begins in WAYS.items():
                _dots(panel, place, way, (mean.value for name, mean in found.items() if name.startswith(begins)))
        for place, choice in enumerate(choices, len(shares)):
            rows = stability.choices[(stability.choices.operator == operator) & (stability.choices.choice == choice)]
            for way in WAYS:
                _dots(panel, place, way, rows[rows.between == way].value)
        panel.axhline(len(shares) - 0.5, color="grey", linewidth=0.8)
        panel.grid(axis="x", color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.set_title(SIGNS.get(operator, "all operators"))
    panels[0].set_yticks(range(lines), [*(row.short for row in shares), *(CHOICE_NAMES[choice] for choice in choices)])
    panels[0].set_ylim(lines - 0.5, -0.5)
    colours = {"the run": "black", **COLOURS}
    handles = [
        Line2D([], [], marker="o", linestyle="", color=c, markersize=4, label=name) for name, c in colours.items()
    ]
    figure.legend(handles=handles, loc="outside right center")
    return figure


def _dots(panel: Axes, place: int, way: str, values: Iterable[float]) -> None:
    x = list(values)
    panel.plot(x, [place + OFFSETS[way]] * len(x), "o", color=COLOURS[way], markersize=4, alpha=0.8)

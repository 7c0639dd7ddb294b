"""Key numbers of a run and of its repetitions."""

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from arithscope.experiments.stability import CHOICES, HALF, HALVES, SEED, SEEDS, WHOLE, Stability
from arithscope.figures.registry import figure
from arithscope.figures.style import SIGNS, new_figure

# Kind of repetition: prefix of its names, colour, and offset from a number's line, so that dots do not hide each other.
REPETITIONS = {HALVES: (HALF, "#0072B2", -0.22), SEEDS: (SEED, "#E69F00", 0.22)}
_CHOICES = (
    "rank correlation of neuron effects",
    "heads of the circuit",
    "heads shared by all operators",
    "top neurons",
    "neurons that stay classified, raw",
    "neurons that stay classified, calibrated",
)
CHOICE_NAMES = dict(zip(CHOICES, _CHOICES, strict=True))


@figure("stability", Stability, section="stability", order=290, title="Key numbers, measured again")
def repeated_numbers(stability: Stability) -> Figure:
    """The run (black, with its 95 % interval), the same study on either half of the prompts with samples half as
    large (blue), and with other seeds (orange). Top: those key numbers that are shares. Bottom: agreement of
    choices between the two halves and between seeds. Heads and neurons: intersection over union. Neurons that stay
    classified: the share that are top neurons in the other study too, with a match of the same kind. Dots of one
    colour that lie far apart mean that a number depends on the sample of prompts. (Not in the paper.)"""
    shares = [row for row in stability.headline_numbers if row.share]
    choices = [choice for choice in CHOICES if choice in set(stability.choices.choice)]
    operators, lines = stability.operators, len(shares) + len(choices)
    size = 5.0 + 1.9 * len(operators), 1.8 + 0.27 * lines
    figure, [panels] = new_figure(*size, 1, len(operators), sharex=True, sharey=True)
    for panel, operator in zip(panels, operators, strict=True):
        for y, row in enumerate(shares):
            means = stability.means(row, operator)
            if WHOLE in means:
                whole = means[WHOLE]
                panel.plot([whole.low, whole.high], [y, y], color="black", linewidth=1)
                panel.plot(whole.value, y, "o", color="black", markersize=4)
            for kind, (prefix, *_) in REPETITIONS.items():
                _dots(panel, y, kind, (mean.value for name, mean in means.items() if name.startswith(prefix)))
        for y, choice in enumerate(choices, len(shares)):
            rows = stability.choices[(stability.choices.operator == operator) & (stability.choices.choice == choice)]
            for kind in REPETITIONS:
                _dots(panel, y, kind, rows[rows.between == kind].value)
        panel.axhline(len(shares) - 0.5, color="grey", linewidth=0.8)
        panel.grid(axis="x", color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.set_title(SIGNS.get(operator, "all operators"))
    panels[0].set_yticks(range(lines), [*(row.short for row in shares), *(CHOICE_NAMES[choice] for choice in choices)])
    panels[0].set_ylim(lines - 0.5, -0.5)
    colours = {"the run": "black", **{kind: colour for kind, (_, colour, _) in REPETITIONS.items()}}
    dot = {"marker": "o", "linestyle": "", "markersize": 4}
    handles = [Line2D([], [], color=colour, label=name, **dot) for name, colour in colours.items()]  # type: ignore[arg-type]
    figure.legend(handles=handles, loc="outside right center")
    return figure


def _dots(panel: Axes, y: int, kind: str, values: Iterable[float]) -> None:
    x, (_, colour, offset) = list(values), REPETITIONS[kind]
    panel.plot(x, [y + offset] * len(x), "o", color=colour, markersize=4, alpha=0.8)

"""Several studies side by side: heuristic neurons over training checkpoints, and key numbers of a run and its repetitions."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from arithscope.experiments.bag import MUTUAL, NONE
from arithscope.experiments.classify import CRITERIA
from arithscope.experiments.common.result import AVERAGE, with_average
from arithscope.experiments.prompt_knockout import OTHER_HEURISTICS, OWN, REPORTED
from arithscope.experiments.stability import CHOICES, HALF, HALVES, SEED, SEEDS, WHOLE, Stability
from arithscope.experiments.training import Training
from arithscope.figures.registry import figure
from arithscope.figures.style import OPERATOR_COLOURS, SIGNS, errors, line_with_band, literal, new_figure

SIZE_COLOURS = dict(zip(REPORTED, ("#56B4E9", "#0072B2", "#003B5C"), strict=True))
MOST_NAMED = 14  # checkpoints on the axis
PANELS = (
    ("(a) final pairs already present", "share"),
    ("(b) circuit with heuristic neurons only", "faithfulness"),
    ("(c) knockout by prompt", "accuracy left, mean over operators"),
)
# Kind of repetition: prefix of its names, colour, and offset from a number's line, so that dots do not hide each other.
REPETITIONS = {HALVES: (HALF, "#0072B2", -0.22), SEEDS: (SEED, "#E69F00", 0.22)}
CHOICE_NAMES = (
    "rank correlation of neuron effects",
    "heads of the circuit",
    "heads shared by all operators",
    "top neurons",
    "neurons that stay classified, raw",
    "neurons that stay classified, calibrated",
)


@figure("training", Training, section="training", order=280, title="The bag of heuristics over training")
def training_curves(training: Training) -> Figure:
    """(a) Share of the final checkpoint's (neuron, heuristic) pairs that already match at an earlier checkpoint.
    (b) Faithfulness of the circuit with only a checkpoint's heuristic neurons: all of them, those that share a pair
    with the final checkpoint, or none (the floor). (c) Accuracy when each prompt's associated neurons are
    zero-ablated, or as many neurons of heuristics that are not associated with it, on prompts with enough of them. A
    checkpoint that hardly ever answers an operator correctly has no points for it. Bands and bars: 95 % intervals.
    (Paper: Section 5.)"""
    figure, axes = new_figure(13, 7.2, len(CRITERIA), 3, sharex=True, sharey=True)
    x = {name: i for i, name in enumerate(training.checkpoints)}
    for panels, criterion in zip(axes, CRITERIA, strict=True):
        for panel, plot, (title, label) in zip(panels, (_present, _faithfulness, _knockout), PANELS, strict=True):
            plot(panel, training, criterion, x)
            panel.set(title=f"{title}, {criterion}", ylabel=label, ylim=(-0.05, 1.05))
    step = -(-len(x) // MOST_NAMED)
    for panel in axes[-1]:
        panel.set_xticks(list(x.values())[::step], map(literal, list(x)[::step]), rotation=60, ha="right", fontsize=7)
    for panel in axes[0]:
        panel.legend(loc="lower right", fontsize=7)
    return figure


def _lines(panel: Axes, table: pd.DataFrame, x: dict[str, int], **options: Any) -> None:
    for operator, rows in table.groupby("operator", sort=False):
        style = {"color": OPERATOR_COLOURS[str(operator)], "marker": ".", **options}
        line_with_band(panel, rows.checkpoint.map(x), rows, **style)


def _present(panel: Axes, training: Training, criterion: str, x: dict[str, int]) -> None:
    present = training.present[training.present.criterion == criterion]
    for operator, accuracy in training.accuracy.groupby("operator", sort=False):
        _lines(panel, present[present.operator == operator], x, label=SIGNS[str(operator)])
        colour = OPERATOR_COLOURS[str(operator)]
        panel.plot(accuracy.checkpoint.map(x), accuracy.value, ":", color=colour, linewidth=1)
    panel.plot(len(x) - 1, 1, "*", color="black", label="final checkpoint")
    panel.plot([], [], ":", color="grey", label="accuracy of the model")


def _faithfulness(panel: Axes, training: Training, criterion: str, x: dict[str, int]) -> None:
    """The first two lines end at the same point: at the final checkpoint, all heuristic neurons are mutual."""
    table = training.faithfulness[training.faithfulness.measure == "faithfulness"]
    all_neurons = table[table.neurons == criterion]
    final = all_neurons[all_neurons.checkpoint == training.checkpoints[-1]]
    _lines(panel, all_neurons, x, linestyle="--")
    _lines(panel, pd.concat([table[table.neurons == f"{criterion}_{MUTUAL}"], final]), x)
    _lines(panel, table[table.neurons == NONE], x, linestyle=":", marker="")
    panel.plot([], [], "--", color="grey", label="all heuristic neurons")
    panel.plot([], [], "-", color="grey", label="mutual with the final checkpoint")
    panel.plot([], [], ":", color="grey", label="no neuron (the floor)")


def _knockout(panel: Axes, training: Training, criterion: str, x: dict[str, int]) -> None:
    table = training.knockout[(training.knockout.criterion == criterion) & (training.knockout.n > 0)]
    for size, colour in SIZE_COLOURS.items():
        for ablated, style in ((OWN, "-"), (OTHER_HEURISTICS, "--")):
            rows = table[(table["size"] == size) & (table.ablated == ablated)]
            if len(rows):
                means = with_average(rows.assign(measure=rows.checkpoint))
                means = means[means.operator == AVERAGE]
                options: dict[str, Any] = {"linestyle": style, "color": colour, "marker": ".", "elinewidth": 0.6}
                panel.errorbar(means.measure.map(x), means.value, errors(means), **options)
        panel.plot([], [], color=colour, label=f"{size} per layer")
    panel.plot([], [], "--", color="grey", label="as many of other heuristics")


@figure("stability", Stability, section="stability", order=290, title="Key numbers, measured again")
def repeated_numbers(stability: Stability) -> Figure:
    """The run (black, with its 95 % interval), the same study on either half of the prompts with samples half as
    large (blue), and with other seeds (orange). Top: those key numbers that are shares. Bottom: agreement of
    choices between the two halves and between seeds. Heads and neurons: intersection over union. Neurons that stay
    classified: the share that are top neurons in the other study too, with a match of the same kind. Dots of one
    colour that lie far apart mean that a number depends on the sample of prompts. (Not in the paper.)"""
    shares = [row for row in stability.key_numbers if row.share]
    choices = [choice for choice in CHOICES if choice in set(stability.choices.choice)]
    names = dict(zip(CHOICES, CHOICE_NAMES, strict=True))
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
    panels[0].set_yticks(range(lines), [*(row.short for row in shares), *(names[choice] for choice in choices)])
    panels[0].set_ylim(lines - 0.5, -0.5)
    colours = {"the run": "black", **{kind: colour for kind, (_, colour, _) in REPETITIONS.items()}}
    dot = {"marker": "o", "linestyle": "", "markersize": 4}
    handles = [Line2D([], [], color=colour, label=name, **dot) for name, colour in colours.items()]  # type: ignore[arg-type]
    figure.legend(handles=handles, loc="outside right center")
    return figure


def _dots(panel: Axes, y: int, kind: str, values: Iterable[float]) -> None:
    x, (_, colour, offset) = list(values), REPETITIONS[kind]
    panel.plot(x, [y + offset] * len(x), "o", color=colour, markersize=4, alpha=0.8)

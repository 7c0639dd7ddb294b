"""One prompt: its heuristics, what their neurons add to the logits of numbers, and the answer without them."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.example import CONTROL, NONE, OWN, Example
from arithscope.experiments.neurons import neuron_name
from arithscope.figures.registry import figure
from arithscope.figures.style import OPERATOR_COLOURS, OTHER_COLOUR, NotebookFigure, literal
from arithscope.figures.words import shown_prompt

NEAR = 20  # numbers on either side of the answer that are shown enlarged
MOST_PROBABLE = 3  # answers marked besides the right one
RIGHT = "#000000"  # colour of the right answer
_ABLATED = {NONE: "the model", OWN: "without the\nassociated neurons", CONTROL: "without as many\nother top neurons"}


@figure("one-prompt", Example, Accuracy, section="gallery", order=155, title="How one prompt is answered")
def one_prompt(example: Example, accuracy: Accuracy) -> Figure:
    """Left: of the neurons that match a heuristic which holds for the prompt, those with the largest contribution (in
    absolute value) to its {ANSWER}'s logit; each with its best heuristic, and with what it adds to the logit of every
    number (activation × logits of its value vector ÷ the final norm's scale). Below: the sum over all such neurons.
    Middle: the same, near the right {ANSWER} (dashed). Triangles: the most probable other {ANSWER}s. Right: what adds
    up to the right {ANSWER}'s logit, and its probability with and without these neurons. (Paper: Figure 1.)"""
    strips = len(example.logits) + 1
    figure = NotebookFigure(figsize=(12, max(0.72 * strips + 1.2, 5.4)), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=[2.7, 1])
    left, right = halves
    axes = left.subplots(strips, 2, squeeze=False, width_ratios=[1.7, 1], height_ratios=[1] * (strips - 1) + [1.7])
    colour = OPERATOR_COLOURS[example.operator]
    rows = example.neurons.head(strips - 1).to_dict("records")
    for [whole, near], logits, row in zip(axes, example.logits, rows, strict=False):
        _draw_logits(whole, near, logits, example.answer, colour)
        name = neuron_name(row["layer"], row["neuron"])
        whole.set_title(f"{literal(row['heuristic'])}   ({name})", loc="left", fontsize=8, pad=2)
        near.set_title(f"{row['contribution']:+.2f}", loc="right", fontsize=8, pad=2)
        for panel in (whole, near):
            panel.set_xticklabels([])
    whole, near = axes[-1]
    _draw_logits(whole, near, example.total, example.answer, colour)
    neurons = "neuron" if len(example.neurons) == 1 else "neurons"
    whole.set_title(f"sum of all {len(example.neurons):,} associated {neurons}", loc="left", fontweight="bold", pad=2)
    near.set_title(f"{example.total[example.answer]:+.2f}", loc="right", fontweight="bold", pad=2)
    others = [n for n in np.argsort(-example.probabilities, kind="stable") if n != example.answer][:MOST_PROBABLE]
    for panel in (whole, near):
        panel.plot(others, example.total[others], "v", color=OTHER_COLOUR, markersize=5)
        panel.set_xlabel("number")
    left.supylabel("added to the number's logit", fontsize=9)
    parts, answers = right.subplots(2, 1, height_ratios=[1.5, 1])
    _draw_parts(parts, example)
    prompt = shown_prompt(accuracy.stratum, example.op1, example.operator, example.op2)
    _draw_answers(answers, example, prompt, colour)
    return figure


def _draw_logits(whole: Axes, near: Axes, logits: Any, answer: int, colour: str) -> None:
    """What is added to each number's logit: over all numbers, and near the answer."""
    numbers = np.arange(len(logits))
    first, last = max(0, answer - NEAR), min(len(logits) - 1, answer + NEAR)
    window = slice(first, last + 1)
    whole.plot(numbers, logits, linewidth=0.6, color=colour)
    whole.set_xlim(0, max(1, len(logits) - 1))
    near.bar(
        numbers[window], logits[window], width=0.8, color=[RIGHT if n == answer else colour for n in numbers[window]]
    )
    near.set_xlim(first - 0.7, last + 0.7)
    for panel in (whole, near):
        panel.axvline(answer, color=RIGHT, linewidth=0.7, linestyle="--")
        panel.axhline(0, color="grey", linewidth=0.5)
        panel.tick_params(labelsize=7)
        panel.locator_params(axis="y", nbins=3)


def _draw_parts(panel: Axes, example: Example) -> None:
    """What adds up to the logit of the right answer."""
    logit = example.parts.contribution.sum()
    names, exact = [*example.parts.part, "logit"], [*example.parts.contribution, logit]
    values = [round(x, 2) + 0.0 for x in exact]  # as written; labels of −0.00 would be drawn over the names
    colours = [OPERATOR_COLOURS[example.operator], *[OTHER_COLOUR] * (len(names) - 2), RIGHT]
    bars = panel.barh(names, values, color=colours, height=0.7)
    panel.bar_label(bars, [f"{x:+.2f}" for x in values], padding=2, fontsize=7)
    panel.axvline(0, color="grey", linewidth=0.5)
    panel.margins(x=0.3)
    panel.invert_yaxis()
    panel.set_title(f"logit of {example.answer}", loc="left")


def _draw_answers(panel: Axes, example: Example, prompt: str, colour: str) -> None:
    """Probability of the right answer, and the answer given, with and without associated neurons."""
    table = example.answers
    given = ["no number" if n < 0 else str(n) for n in table.predicted]
    colours = [{OWN: colour, CONTROL: OTHER_COLOUR}.get(name, RIGHT) for name in table.ablated]
    bars = panel.barh([_ABLATED[name] for name in table.ablated], table.p_answer, color=colours, height=0.6)
    labels = [f"{prompt}{answer}" for answer in given]
    panel.bar_label(bars, labels, padding=3, fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(0, 1.55)
    panel.set_xticks([0, 0.5, 1])
    panel.set_xlabel(f"P({example.answer})")
    panel.set_title("answer", loc="left")

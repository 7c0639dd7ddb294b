"""Where the answer can be read off the residual stream."""

from __future__ import annotations

from matplotlib.figure import Figure

from arithscope.experiments.probe import ALL, Probe
from arithscope.figures.style import OPERATOR_COLOURS, POSITION_COLOURS, SIGNS, line_with_band, new_figure, styled


@styled
def probe_accuracy(probe: Probe) -> Figure:
    """Test accuracy of linear probes by layer: for each position, and at the last position for each operator."""
    figure, [[left, right]] = new_figure(8.5, 3.6, 1, 2, sharey=True)
    table = probe.table
    for position, colour in POSITION_COLOURS.items():
        rows = table[(table.operator == ALL) & (table.position == position)]
        line_with_band(left, rows.layer, rows, color=colour, label=position, marker=".")
    left.axhline(probe.chance[ALL], color="grey", linestyle=":", label="most frequent answer")
    left.set_title("all operators together")
    for operator, colour in OPERATOR_COLOURS.items():
        rows = table[(table.operator == operator) & (table.position == "last")]
        if len(rows):
            line_with_band(right, rows.layer, rows, color=colour, label=SIGNS[operator], marker=".")
    right.set_title("position: last, by operator")
    left.set_ylabel("probe accuracy on test prompts")
    for axes in (left, right):
        axes.axvline(probe.first_answer_layer, color="black", linestyle="--", linewidth=0.8)
        axes.set_xlabel("layer (residual stream behind it)")
        axes.set_ylim(-0.03, 1.03)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="upper left")
    note = f"first answer layer: {probe.first_answer_layer}"
    left.annotate(
        note, (probe.first_answer_layer, 0.99), xytext=(3, 0), textcoords="offset points", fontsize=7, va="top"
    )
    return figure

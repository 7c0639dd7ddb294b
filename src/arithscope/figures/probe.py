"""Linear probes for the answer in the residual stream."""

from matplotlib.figure import Figure

from arithscope.experiments.probe import ALL, Probe
from arithscope.figures.registry import figure
from arithscope.figures.style import OPERATOR_COLOURS, POSITION_COLOURS, SIGNS, line_with_band, new_figure


@figure("probe-accuracy", Probe, section="probes", order=120, title="Where the answer is linearly decodable")
def probe_accuracy(probe: Probe) -> Figure:
    """Accuracy of linear probes from the residual stream to the answer, on held-out prompts. The first answer layer
    is the first whose accuracy at the last position reaches half of the best layer's. Bands: 95 % bootstrap
    intervals. (Paper: Figure 3.)"""
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
    first = probe.first_answer_layer
    for axes in (left, right):
        axes.axvline(first, color="black", linestyle="--", linewidth=0.8)
        axes.set(xlabel="layer (residual stream after it)", ylim=(-0.03, 1.03))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="upper left")
    beside = {"xytext": (3, 0), "textcoords": "offset points"}
    left.annotate(f"first answer layer: {first}", (first, 0.99), fontsize=7, va="top", **beside)
    return figure

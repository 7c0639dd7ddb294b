"""Accuracy: of the model on legal prompts, and of linear probes for the answer in its residual stream."""

from matplotlib.figure import Figure

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.probe import ALL, Probe
from arithscope.figures.registry import figure
from arithscope.figures.style import OPERATOR_COLOURS, POSITION_COLOURS, SIGNS, line_with_band, new_figure, table_figure


@figure("accuracy", Accuracy, section="accuracy", order=10, title="Accuracy on arithmetic prompts")
def accuracy_table(accuracy: Accuracy) -> Figure:
    """Share of legal prompts whose most probable next token is the answer, by operator; the mean weights operators
    equally. Brackets: 95 % bootstrap intervals. (Paper: Appendix I, table of model accuracies.)"""
    names = {"accuracy": "accuracy", "p_answer": "mean P(answer)", "p_answer_correct": "… on correct prompts"}
    rows = []
    for operator, measures in accuracy.summary().items():
        cells = (f"{m['value']:.3f} [{m['low']:.3f}, {m['high']:.3f}]" for m in (measures[name] for name in names))
        rows.append([SIGNS.get(operator, operator), f"{measures['accuracy']['n']:,}", *cells])
    return table_figure(["operator", "legal prompts", *names.values()], rows, [0.9, 1.2, 2.0, 2.0, 2.0])


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

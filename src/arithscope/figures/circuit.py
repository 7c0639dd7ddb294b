"""Accuracy of the model and of linear probes; effects of heads and MLPs by layer and position; faithfulness of circuits and
the table of those chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.answer_layers import EVALUATION, AnswerLayers
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common.ablation import FOUND, RANDOM
from arithscope.experiments.common.result import AVERAGE
from arithscope.experiments.localize import MLP, Localization, component_name
from arithscope.experiments.probe import ALL, Probe
from arithscope.figures.registry import figure
from arithscope.figures.style import (
    OPERATOR_COLOURS,
    SIGNS,
    line_with_band,
    log_limits,
    new_figure,
    outside_legend,
    position_colour,
    position_line,
    table_figure,
)

MEASURE_NAMES = {"faithfulness": "faithfulness", "accuracy": "accuracy", "p_answer": "mean P(answer)"}
HEADS_PER_LINE, MOST_NAMES = 6, 24  # in the table


@figure("accuracy", Accuracy, section="accuracy", order=10, title="Accuracy on arithmetic prompts")
def accuracy_table(accuracy: Accuracy) -> Figure:
    """Share of legal prompts whose most probable next token is the {ANSWER}, by operator; averaged with the same weight
    for each operator, or for each prompt as in the paper. One fixed {ANSWER}: always the operator's most frequent one.
    Brackets: 95 % intervals. (Paper: Appendix H, table of model accuracies.)"""
    names = {"accuracy": "accuracy", "p_answer": "mean P(answer)", "p_answer_correct": "… on correct prompts"}
    rows = []

    def cell(m: dict[str, Any]) -> str:
        return f"{m['value']:.3f} [{m['low']:.3f}, {m['high']:.3f}]"

    summary = accuracy.summary()
    for operator, measures in summary.items():
        cells = [cell(measures[name]) for name in names]
        name = SIGNS.get(operator, "mean over operators")
        rows.append([name, f"{measures['accuracy']['n']:,}", *cells, f"{measures['baseline']['value']:.3f}"])
    over_prompts = summary[AVERAGE]["accuracy_over_prompts"]
    rows.append(["mean over prompts", f"{over_prompts['n']:,}", cell(over_prompts), "", "", ""])
    columns = ["operator", "legal prompts", *names.values(), "one fixed answer"]
    return table_figure(columns, rows, [1.6, 1.2, 2.0, 2.0, 2.0, 1.4])


@figure("probe-accuracy", Probe, section="probes", order=120, title="Where the {ANSWER} is linearly decodable")
def probe_accuracy(probe: Probe) -> Figure:
    """Accuracy of linear probes from the residual stream to the {ANSWER}, on held-out prompts. The first answer layer
    is the first whose accuracy at {LAST} reaches half of the best layer's. Bands: 95 %
    intervals. (Paper: Figure 3.)"""
    figure, [[left, right]] = new_figure(8.5, 3.6, 1, 2, sharey=True)
    table = probe.table
    for position in table.position.unique():
        rows = table[(table.operator == ALL) & (table.position == position)]
        style = {"color": position_colour(position), "linestyle": position_line(position)}
        line_with_band(left, rows.layer, rows, **style, label=position, marker=".")
    left.axhline(probe.chance[ALL], color="grey", linestyle=":", label="most frequent answer")
    left.set_title("all operators together")
    for operator, colour in OPERATOR_COLOURS.items():
        rows = table[(table.operator == operator) & (table.position == probe.final)]
        if len(rows):
            line_with_band(right, rows.layer, rows, color=colour, label=SIGNS[operator], marker=".")
    right.set_title(f"position: {probe.final}, by operator")
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


@figure("answer-layers", AnswerLayers, Probe, section="probes", order=125, title="Which MLPs the {ANSWER} needs")
def answer_layers_figure(answer_layers: AnswerLayers, probe: Probe) -> Figure:
    """Accuracy with all heads kept and the MLPs from a layer on at their means at {LAST}, on the evaluation
    prompts. Circles: the first answer layer by cause, the last from which on at most a tenth of the accuracy above one
    fixed {ANSWER} is left (chosen on other prompts). Dotted: accuracy of one fixed {ANSWER}. Dashed: the probe's first
    answer layer. Bands: 95 % intervals. (Not in the paper.)"""
    figure, [[axes]] = new_figure(6.5, 3.6, 1, 1)
    rows = answer_layers.curve[answer_layers.curve["sample"] == EVALUATION]
    for operator, own in rows.groupby("operator", sort=False):
        colour, first = OPERATOR_COLOURS[str(operator)], answer_layers.first_layer[str(operator)]
        line_with_band(axes, own.layer, own, color=colour, label=SIGNS[str(operator)], marker=".")
        chosen = own[own.layer == first]
        axes.plot(chosen.layer, chosen.value, "o", color=colour, markersize=7, markeredgecolor="black")
        axes.axhline(answer_layers.baseline[str(operator)], color=colour, linestyle=":", linewidth=0.8)
    axes.axvline(probe.first_answer_layer, color="black", linestyle="--", linewidth=0.8)
    axes.set(xlabel="first layer whose MLP is ablated", ylabel="accuracy", ylim=(-0.03, 1.03))
    axes.xaxis.get_major_locator().set_params(integer=True)
    outside_legend(figure, axes)
    return figure


@figure("localization", Localization, section="circuit", order=20, title="Which heads and MLPs matter, and where")
def localization(localize: Localization) -> Figure:
    """Activation patching: each attention head and each MLP is set, at one position, to its activation on a
    counterfactual prompt. {EFFECT} Averaged over operators. Top: mean over prompts; bottom: median, since single
    prompts can dominate the mean. The darkest colour stands for no effect or a negative one. (Paper: Figure 2a.)"""
    rows = localize.effects[localize.effects.measure == "probability"]
    averaged = rows.groupby(["position", "layer", "head"], as_index=False)[["value", "median"]].mean()
    panels = {"mean effect": ("value", averaged), "median effect": ("median", averaged)}
    return _heat_maps(panels, list(rows.position.unique()), "effect of patching (Eq. 1), log scale")


@figure("localization-by-operator", Localization, section="circuit", order=30, title="Localization by operator")
def localization_by_operator(localize: Localization) -> Figure:
    """As in the localization figure: mean over the discovery prompts of each operator. (Paper: Figure 2a.)"""
    rows = localize.effects[localize.effects.measure == "probability"]
    panels = {SIGNS[str(o)]: ("value", rows[rows.operator == o]) for o in rows.operator.unique()}
    return _heat_maps(panels, list(rows.position.unique()), "mean effect of patching (Eq. 1), log scale")


def _heat_maps(panels: dict[str, tuple[str, pd.DataFrame]], positions: list[str], label: str) -> Figure:
    """A row of heat maps, one per position, for each named column of a table."""
    layers = int(next(iter(panels.values()))[1].layer.max()) + 1
    height = min(3.2, 0.9 + 0.16 * layers)
    width = max(9.0, 1.9 * len(positions))
    figure, axes = new_figure(width, 1.3 + height * len(panels), len(panels), len(positions), sharey=True)
    norm = LogNorm(*log_limits(np.concatenate([table[column] for column, table in panels.values()])))
    for r, (name, (column, table)) in enumerate(panels.items()):
        axes[r, 0].set_ylabel(f"{name}\nlayer")
        for c, position in enumerate(positions):
            mesh = _heat_map(axes[r, c], table[table.position == position], column, norm)
            if r == 0:
                axes[r, c].set_title(f"position: {position}")
    figure.colorbar(mesh, ax=axes, label=label, extend="min", shrink=0.8)
    return figure


def _heat_map(axes: Axes, table: pd.DataFrame, column: str, norm: LogNorm) -> Any:
    grid = table.pivot(index="layer", columns="head", values=column)
    heads = grid.drop(columns=MLP).to_numpy()
    layers, n = heads.shape
    wide = max(1.0, n / 8)  # keeps the MLP's column visible beside many heads
    edges = np.arange(layers + 1) - 0.5
    options: Any = {"norm": norm, "cmap": "magma", "rasterized": heads.size > 500}
    floor = norm.vmin or 0.0
    axes.pcolormesh(np.arange(n + 1) - 0.5, edges, np.maximum(heads, floor), **options)
    start = n - 0.5 + wide / 2
    mesh = axes.pcolormesh([start, start + wide], edges, np.maximum(grid[[MLP]].to_numpy(), floor), **options)
    step = -(-n // 8)
    axes.set_xticks([*range(0, n, step), start + wide / 2], [*map(str, range(0, n, step)), "MLP"])
    axes.set_yticks(range(0, layers, -(-layers // 8)))
    axes.set_xlabel("head")
    axes.spines[:].set_visible(False)
    return mesh


@figure("faithfulness-by-heads", Circuit, section="circuit", order=50, title="How many heads the circuit needs")
def faithfulness_by_heads(circuit: Circuit) -> Figure:
    """The circuit consists of all MLPs and the n heads of largest effect. {FAITHFULNESS} Circles: the
    smallest circuit that suffices. Dotted: n random heads instead (mean over draws). (Paper: Appendix A,
    faithfulness over heads.)"""
    label = "heads in the circuit (besides all MLPs)"
    chosen = {o: len(circuit.chosen(o)) for o in circuit.operators}
    figure, panels = curves_with_random(circuit.curve, circuit.curve["size"], label, "random heads", chosen)
    largest = int(circuit.curve["size"].max())
    if largest > 64:
        set_log_scale(panels, 16, largest * 1.1)
    return figure


def curves_with_random(
    curve: pd.DataFrame,
    x: "pd.Series[Any]",
    label: str,
    random_name: str,
    sizes: Mapping[str, int] | None = None,
    others: Mapping[str, str] | None = None,
) -> tuple[Figure, Any]:
    """One panel per measure, one line with its interval per operator; dotted: random circuits of the same size; dash-dotted:
    other circuits, by their name in the column `circuit`, with a label. Chosen sizes are circled; without any, every point is
    marked."""
    figure, [panels] = new_figure(11, 3.9, 1, len(MEASURE_NAMES))
    for axes, (measure, name) in zip(panels, MEASURE_NAMES.items(), strict=True):
        table = curve[curve.measure == measure]
        for operator, rows in table.groupby("operator", sort=False):
            found, random = (rows[rows.circuit == c] for c in (FOUND, RANDOM))
            colour = OPERATOR_COLOURS[str(operator)]
            options = {"marker": "."} if sizes is None else {}
            line_with_band(axes, x[found.index], found, color=colour, label=SIGNS[str(operator)], **options)
            axes.plot(x[random.index], random.value, color=colour, linestyle=":", linewidth=1)
            for other in others or {}:
                own = rows[rows.circuit == other]
                axes.plot(x[own.index], own.value, color=colour, linestyle="-.", linewidth=1)
        for operator, size in (sizes or {}).items():
            chosen = table[(table.circuit == FOUND) & (table.operator == operator) & (table["size"] == size)]
            colour = OPERATOR_COLOURS[operator]
            axes.plot(chosen["size"], chosen.value, "o", color=colour, markersize=6, markeredgecolor="black")
        axes.set(xlabel=label, ylabel=name, ylim=(min(-0.05, table.value.min() - 0.05), 1.05))
    if sizes is not None:
        panels[0].plot([], [], "o", color="white", markeredgecolor="black", label="chosen size")
    panels[0].plot([], [], color="grey", linestyle=":", label=random_name)
    for other in (others or {}).values():
        panels[0].plot([], [], color="grey", linestyle="-.", label=other)
    outside_legend(figure, panels[0])
    return figure, panels


def set_log_scale(panels: Sequence[Axes], linear_up_to: float, end: float) -> None:
    for axes in panels:
        axes.set_xscale("symlog", linthresh=linear_up_to)
        axes.set_xlim(0, end)


@figure("circuit-table", Circuit, section="circuit", order=60, title="Circuits by operator")
def circuit_table(circuit: Circuit) -> Figure:
    """The chosen circuits and random circuits with as many heads, on evaluation prompts that were not used for
    discovery. {FAITHFULNESS} Heads in bold are shared by all operators. (Paper: tables of Appendices A and B.)"""
    means: Any = circuit.table.set_index(["operator", "measure"])
    shared = set(circuit.shared())

    def mean(operator: str, measure: str) -> str:
        row = means.loc[(operator, measure)]
        return f"{row.value:.2f} [{row.low:.2f}, {row.high:.2f}]"

    def names(heads: Sequence[tuple[int, int]]) -> str:
        kept = sorted(heads, key=lambda head: head not in shared)[:MOST_NAMES]  # a stable sort: then by effect
        texts = [rf"$\bf{{{component_name(*h)}}}$" if h in shared else component_name(*h) for h in sorted(kept)]
        texts += [f"and {len(heads) - len(kept)} more"] if len(heads) > len(kept) else []
        return "\n".join(" ".join(texts[i : i + HEADS_PER_LINE]) for i in range(0, len(texts), HEADS_PER_LINE))

    measures = [*MEASURE_NAMES, *(f"random_{m}" for m in MEASURE_NAMES)]
    rows = [
        [SIGNS[o], str(len(circuit.chosen(o))), *(mean(o, m) for m in measures), names(circuit.chosen(o))]
        for o in circuit.operators
    ]
    rows.append(["mean", "", *(mean(AVERAGE, m) for m in measures), f"{len(shared)} shared by all operators"])
    header = ["", "heads", *MEASURE_NAMES.values(), *(f"random: {n}" for n in MEASURE_NAMES.values()), "circuit heads"]
    return table_figure(header, rows, [0.5, 0.55, *[1.35] * 3, *[1.75, 1.5, 2.0], 3.2])

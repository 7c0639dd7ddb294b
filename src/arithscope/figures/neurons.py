"""Single neurons. Of the first MLP: effects and tuning to numbers. Of later MLPs: effects, attribution methods against exact
effects, how many the circuit needs, how many are classified, and overlap between operators."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.classify import ALL_LAYERS, ANY, CALIBRATED, CRITERIA, ONCE, RAW, Classification
from arithscope.experiments.common.ablation import FOUND
from arithscope.experiments.common.attribution import ATTRIBUTION_METHODS
from arithscope.experiments.common.ranking import RECALLED
from arithscope.experiments.mlp0 import ALL_POSITIONS, FirstMlp
from arithscope.experiments.neurons import NeuronEffects
from arithscope.experiments.overlap import Overlap
from arithscope.experiments.topk import TopK
from arithscope.figures.activation_maps import display_order
from arithscope.figures.circuit import curves_with_random, set_log_scale
from arithscope.figures.registry import figure
from arithscope.figures.style import (
    OPERATOR_COLOURS,
    SIGNS,
    grouped_bars,
    hide_unused,
    line_with_band,
    log_limits,
    new_figure,
    outside_legend,
)
from arithscope.heuristics.kinds import kind_name
from arithscope.heuristics.overlaps import THRESHOLD
from arithscope.settings import MEAN_ABS

MOST_NEURONS = 9
METHOD_STYLES: dict[str, Any] = {"atp": "-", "ig": "--", "relp": ":"}
MEASURE_TITLES = {"probability": "by probability (Eq. 1)", "log_ratio": "by log-ratio"}
MOST_LAYERS_NAMED = 10
CRITERION_COLOURS = {RAW: "#BBBBBB", CALIBRATED: "#0072B2"}
MOST_LAYERS = 12  # with shares written into the cells
SMALLEST = 1e-3  # lower end of the effect axis


@figure("first-mlp-effects", FirstMlp, section="circuit", order=90, title="Effects of single neurons of the first MLP")
def first_mlp_effects(mlp0: FirstMlp) -> Figure:
    """Each neuron of the first MLP is patched on its own at op1, operator or op2 (where these are several tokens, at
    each of them). {EFFECT} Neurons are sorted by mean effect (solid) or median effect (dotted). (Paper: Appendix B,
    MLP0 neuron effects.)"""
    table = mlp0.effects[mlp0.effects.measure == "probability"]
    positions = list(table.position.unique())
    figure, [panels] = new_figure(2.5 * len(positions), 3.6, 1, len(positions), sharey=True)
    low, high = log_limits(table.value)
    averaged = f"mean over all {'three' if len(positions) == 4 else len(positions) - 1}"
    for axes, position in zip(panels, positions, strict=True):
        for operator, rows in table[table.position == position].groupby("operator", sort=False):
            percent = 100 * np.arange(1, len(rows) + 1) / max(1, len(rows))
            _plot_sorted_effects(axes, percent, rows, low, OPERATOR_COLOURS[str(operator)], SIGNS[str(operator)])
        axes.set(title=averaged if position == ALL_POSITIONS else f"position: {position}")
        axes.set(ylim=(low, high * 1.5), xlabel="neurons, strongest first (%)")
    panels[0].set_ylabel("effect of patching (Eq. 1)")
    panels[-1].plot([], [], ":", color="grey", label="median")
    panels[-1].legend()
    return figure


def _plot_sorted_effects(
    axes: Axes, x: Any, rows: pd.DataFrame, low: float, colour: Any, label: str | None = None
) -> None:
    """Mean effects (solid) and median effects (dotted), each sorted and cut off at `low`, on log scales."""
    for column, style in (("value", "-"), ("median", ":")):
        effects = np.maximum(np.sort(rows[column])[::-1], low)
        axes.plot(x, effects, style, color=colour, label=label if style == "-" else None)
    axes.set(xscale="log", yscale="log")


@figure(
    "first-mlp-faithfulness", FirstMlp, section="circuit", order=100, title="How much of the first MLP circuits need"
)
def first_mlp_faithfulness(mlp0: FirstMlp) -> Figure:
    """Only the top neurons of the first MLP are kept in each operator's circuit. {FAITHFULNESS} Dotted: as many
    random neurons (mean over draws). Dash-dotted: the same top neurons, with the MLPs of the answer layers reduced to
    their top neurons as in the paper. (Paper: Appendix B, faithfulness over MLP0 neurons.)"""
    reduced = mlp0.reduced[mlp0.reduced.circuit == FOUND].assign(circuit="reduced")
    curve = pd.concat([mlp0.curve, reduced], ignore_index=True)
    percent, label = 100 * curve.share, "first-MLP neurons kept (%)"
    others = {"reduced": "later MLPs reduced"}
    figure, panels = curves_with_random(curve, percent, label, "random neurons", others=others)
    set_log_scale(panels, 1, 150)
    for axes in panels:
        axes.set_xticks([0, 1, 5, 10, 50, 100], ["0", "1", "5", "10", "50", "100"])
    return figure


@figure("number-tuning", FirstMlp, Accuracy, section="circuit", order=110, title="Number tuning of first-MLP neurons")
def number_tuning(mlp0: FirstMlp, accuracy: Accuracy) -> Figure:
    """Activation at {OP1}, for each number, of the first-MLP neurons with the highest effect rank, averaged over
    operators. (Paper: Appendix B, MLP0 activation patterns.)"""
    neurons = top_first_mlp_neurons(mlp0)
    figure, axes = new_figure(9, 6, 3, 3, sharex=True)
    panels = axes.ravel()
    numbers = accuracy.stratum.sides[0]
    for panel, neuron in zip(panels, neurons, strict=False):
        panel.plot(numbers, mlp0.tuning[neuron], linewidth=0.5, color="#999999")
        panel.scatter(numbers, mlp0.tuning[neuron], s=3, color="#0072B2")
        panel.set_title(f"neuron {neuron}")
    hide_unused(panels, len(neurons))
    for panel in axes[-1]:
        panel.set_xlabel("number at op1")
    for panel in axes[:, 0]:
        panel.set_ylabel("activation")
    return figure


def top_first_mlp_neurons(mlp0: FirstMlp) -> list[int]:
    """The neurons with the best rank by effect, averaged over operators."""
    rows = mlp0.effects[(mlp0.effects.measure == "probability") & (mlp0.effects.position == ALL_POSITIONS)]
    ranks: pd.Series[float] = rows.groupby("operator").value.rank(ascending=False).groupby(rows.neuron).mean()
    return [int(n) for n in ranks.sort_values(kind="stable").index[:MOST_NEURONS]]


@figure("neuron-effects", NeuronEffects, section="neurons", order=130, title="Effects of single neurons")
def neuron_effects(neurons: NeuronEffects) -> Figure:
    """Each neuron of the answer layers is patched on its own at {LAST} (or its effect is
    estimated, with the option --neurons). {EFFECT} Within each layer, neurons are sorted by mean effect (solid) or
    median effect (dotted); neurons with a negligible or negative effect lie at the bottom. (Paper: Section 3.1,
    effects of the neurons of layer 17.)"""
    operators = neurons.operators
    table = neurons.effects[neurons.effects.measure == "probability"]
    layers = sorted(table.layer.unique())
    colours = dict(zip(layers, colormaps["viridis"](np.linspace(0, 0.9, len(layers))), strict=True))
    low, high = log_limits(table.value)
    low = min(low, SMALLEST)
    figure, [panels] = new_figure(2.6 * len(operators) + 1.4, 3.8, 1, len(operators), sharey=True)
    for axes, operator in zip(panels, operators, strict=True):
        for layer, rows in table[table.operator == operator].groupby("layer"):
            _plot_sorted_effects(axes, np.arange(1, len(rows) + 1), rows, low, colours[layer])
        axes.set(title=SIGNS[operator], ylim=(low, high * 1.5), xlabel="neurons of a layer, strongest first")
    panels[0].set_ylabel("effect of patching (Eq. 1)")
    named = layers[:: -(-len(layers) // MOST_LAYERS_NAMED)]
    handles = [Line2D([], [], color=colours[layer], label=f"layer {layer}") for layer in named]
    handles.append(Line2D([], [], color="grey", linestyle=":", label="median"))
    figure.legend(handles=handles, loc="outside right center")
    return figure


@figure(
    "attribution-against-exact", NeuronEffects, section="neurons", order=140, title="Attribution against exact effects"
)
def attribution_against_exact(neurons: NeuronEffects) -> Figure:
    """Gradient-based estimates against the exact effects of all neurons: attribution patching (atp), integrated
    gradients (ig) and relevance patching (relp). Left: Spearman rank correlation of mean absolute effects. Right:
    recall, the share of each layer's exact top neurons that are among as many estimated top neurons. (Not in the
    paper.)"""
    figure, axes = new_figure(9, 5.6, len(MEASURE_TITLES), 2)
    for [left, right], (measure, title) in zip(axes, MEASURE_TITLES.items(), strict=True):
        rows = neurons.agreement[(neurons.agreement.measure == measure) & (neurons.agreement.ranking == MEAN_ABS)]
        _plot_correlations(left, rows)
        _plot_recall(right, rows)
        left.set_title(title)
        right.set_title(title)
        if rows.empty:
            left.text(0.5, 0.5, "not compared: not all effects are exact", ha="center", transform=left.transAxes)
    axes[-1, 1].set_xlabel("top neurons of each layer (%)")
    handles = [
        *(Line2D([], [], color=OPERATOR_COLOURS[o], label=SIGNS[o]) for o in neurons.operators),
        *(Line2D([], [], color="grey", linestyle=style, label=name) for name, style in METHOD_STYLES.items()),
        Line2D([], [], color="grey", linewidth=0.8, linestyle="-.", label="chance"),
    ]
    figure.legend(handles=handles, loc="outside right center")
    return figure


def _plot_correlations(axes: Axes, rows: pd.DataFrame) -> None:
    operators, methods = list(rows.operator.unique()), list(ATTRIBUTION_METHODS)
    width = 0.8 / max(1, len(operators))
    for i, operator in enumerate(operators):
        values = rows[rows.operator == operator].set_index("method").rank_correlation.reindex(methods)
        x = np.arange(len(methods)) + (i - (len(operators) - 1) / 2) * width
        axes.bar(x, values, width, color=OPERATOR_COLOURS[operator])
    axes.set_xticks(range(len(methods)), methods)
    lowest = np.nanmin(rows.rank_correlation.to_numpy(np.float64), initial=0.0)
    axes.set(ylim=(lowest, 1), ylabel="rank correlation with exact")


def _plot_recall(axes: Axes, rows: pd.DataFrame) -> None:
    for row in rows.to_dict("records"):
        values = [row[f"recall_{percent}"] for percent in RECALLED]
        axes.plot(RECALLED, values, METHOD_STYLES[row["method"]], marker=".", color=OPERATOR_COLOURS[row["operator"]])
    axes.plot(RECALLED, [percent / 100 for percent in RECALLED], "-.", color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks(RECALLED, [str(percent) for percent in RECALLED])
    axes.minorticks_off()
    axes.set(ylim=(0, 1.02), ylabel="recall")


@figure("faithfulness-by-neurons", TopK, section="neurons", order=150, title="How many neurons the circuit needs")
def faithfulness_by_neurons(topk: TopK) -> Figure:
    """The operator's circuit, in which each MLP of the answer layers keeps only its top k neurons by effect at
    {LAST}, on the evaluation prompts. {FAITHFULNESS} Circles: k, chosen on other prompts. Dotted: k random
    neurons per layer instead (mean over draws). Dash-dotted: another ranking. At 0: the floor, with no neuron kept.
    (Paper: Section 3.1, faithfulness over neurons.)"""
    size, label = topk.curve["size"], "neurons kept per MLP (k)"
    _, other = topk.rankings.ranking.unique()
    others = {f"by_{other}": f"ranked by {other}"}
    figure, panels = curves_with_random(topk.curve, size, label, "random neurons", topk.k, others)
    set_log_scale(panels, 1, topk.mlp_size * 1.2)
    return figure


@figure(
    "classified-shares", Classification, section="classification", order=200, title="Share of top neurons classified"
)
def classified_shares(classify: Classification) -> Figure:
    """Raw: some heuristic scores at least 0.6, the paper's criterion. Calibrated: such a heuristic also has a
    false-discovery rate of at most 0.05 against the permutation null. Right: variance of a neuron's activation map
    explained by its matched heuristics together (R² of a linear regression, mean over neurons). Error bars: 95 %
    intervals. (Paper: Section 4.1.)"""
    figure, [[left, right]] = new_figure(10, 3.6, 1, 2)
    operators = classify.operators
    table = classify.table.set_index(["measure", "operator"])
    for axes, measure, label in (
        (left, "{}_share", "share of top neurons classified"),
        (right, "coverage_{}", "variance explained (mean)"),
    ):
        means = {criterion: table.loc[measure.format(criterion)].loc[operators] for criterion in CRITERIA}
        grouped_bars(axes, operators, [(rows, CRITERION_COLOURS[c], c) for c, rows in means.items()])
        for bars in (c for c in axes.containers if isinstance(c, BarContainer)):
            axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
        axes.set(ylabel=label, ylim=(0, 1.12))
    right.legend(loc="upper left")
    return figure


@figure(
    "share-by-threshold",
    Classification,
    section="classification",
    order=205,
    title="Share of top neurons classified, by threshold",
)
def share_by_threshold(classify: Classification) -> Figure:
    """Share of top neurons that some heuristic matches with at least this score: any (dashed), or one with a
    false-discovery rate of at most 0.05 (solid). The paper's threshold is 0.6. Bands: 95 % intervals. (Paper: only
    for 0.6.)"""
    figure, [[axes]] = new_figure(6, 3.6)
    for (operator, criterion), rows in classify.thresholds.groupby(["operator", "criterion"], sort=False):
        style: Any = {"linestyle": "--"} if criterion == RAW else {"label": SIGNS[str(operator)]}
        line_with_band(axes, rows.threshold, rows, color=OPERATOR_COLOURS[str(operator)], marker=".", **style)
    axes.plot([], [], "--", color="grey", label="raw")
    axes.axvline(THRESHOLD, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="smallest score of a match", ylabel="share of top neurons classified", ylim=(0, 1.03))
    outside_legend(figure, axes)
    return figure


@figure("kinds-by-layer", Classification, section="classification", order=210, title="Kinds of heuristics by layer")
def kinds_by_layer(classify: Classification) -> Figure:
    """Share of a layer's top neurons that match at least one heuristic of a kind; a neuron may match several. Top:
    raw score; middle: after calibration; bottom: each neuron with a calibrated match counted once, under the kind of
    the rule that names it. (Paper: Section 4.1.)"""
    operators = classify.operators
    ways = {"raw": (RAW, ANY), "calibrated": (CALIBRATED, ANY), "counted once": (CALIBRATED, ONCE)}
    figure, axes = new_figure(3.2 * len(operators) + 1.4, 9.6, len(ways), len(operators), sharey=True)
    shares = classify.shares[classify.shares.layer != ALL_LAYERS]
    kinds = sorted(set(zip(shares.kind, shares.on, strict=True)), key=lambda k: ([*map(display_order, k)], k))
    layers = sorted(int(layer) for layer in shares.layer.unique())
    step = max(1, len(layers) // 12)
    image = None
    style: Any = {"ha": "center", "va": "center", "fontsize": 6}
    for row, (name, (criterion, counting)) in zip(axes, ways.items(), strict=True):
        chosen = shares[(shares.criterion == criterion) & (shares.counting == counting)]
        for panel, operator in zip(row, operators, strict=True):
            rows = chosen[chosen.operator == operator]
            values = rows.set_index(["kind", "on", "layer"]).value
            grid = np.array([[values.get((*kind, layer), np.nan) for layer in layers] for kind in kinds])
            edges = np.arange(len(layers) + 1), np.arange(len(kinds) + 1)
            image = panel.pcolormesh(*edges, grid, vmin=0, vmax=1, cmap="magma")
            for (i, j), value in np.ndenumerate(grid):
                if value >= 0.005 and len(layers) <= MOST_LAYERS:
                    text = f"{value:.2f}"[1:] if value < 0.995 else "1"
                    panel.text(j + 0.5, i + 0.5, text, color="white" if value < 0.6 else "black", **style)
            panel.set_xticks(np.arange(len(layers))[::step] + 0.5, [str(layer) for layer in layers][::step])
            panel.set_yticks(np.arange(len(kinds)) + 0.5, [kind_name(kind, on) for kind, on in kinds])
            panel.set_title(f"{SIGNS[operator]}, {name}")
    axes[0, 0].invert_yaxis()
    for panel in axes[-1]:
        panel.set_xlabel("layer")
    if image is not None:
        figure.colorbar(image, ax=axes, shrink=0.6, label="share of the layer's top neurons")
    return figure


@figure(
    "neuron-overlap", Overlap, section="classification", order=220, title="Overlap of top neurons between operators"
)
def neuron_overlap(overlap: Overlap) -> Figure:
    """Intersection over union of the operators' top neurons: over all layers (left) and within each layer (right).
    Operators with different k cannot reach 1. (Paper: Appendix D.)"""
    operators, signs = overlap.operators, [SIGNS[o] for o in overlap.operators]
    figure, [[left, right]] = new_figure(8, 4.2, 1, 2, width_ratios=(1, 1.2))
    grid = np.full((len(operators), len(operators)), np.nan)
    np.fill_diagonal(grid, 1.0)
    for row in overlap.table.to_dict("records"):
        i, j = operators.index(row["operator"]), operators.index(row["other"])
        grid[i, j] = grid[j, i] = row["iou"]
    image = left.imshow(grid, vmin=0, vmax=1, cmap="Blues")
    for (i, j), iou in np.ndenumerate(grid):
        left.text(j, i, f"{iou:.2f}", ha="center", va="center", color="white" if iou > 0.5 else "black")
    left.set_xticks(range(len(signs)), signs)
    left.set_yticks(range(len(signs)), signs)
    left.tick_params(length=0)
    left.spines[:].set_visible(False)
    left.set_title("all layers")
    figure.colorbar(image, ax=left, label="IoU of top neurons", shrink=0.7)
    pairs: Any = overlap.by_layer.groupby(["operator", "other"], sort=False)
    for (operator, other), rows in pairs:
        line, marker = OPERATOR_COLOURS[operator], OPERATOR_COLOURS[other]
        label = f"{SIGNS[operator]} and {SIGNS[other]}"
        right.plot(rows.layer, rows.iou, "o-", color=line, markerfacecolor=marker, markeredgecolor=marker, label=label)
    right.set(title="by layer", xlabel="layer", ylabel="IoU", ylim=(0, 1.02))
    right.xaxis.get_major_locator().set_params(integer=True)
    if overlap.by_layer.empty:  # only one operator
        right.set_visible(False)
    else:
        right.legend(fontsize=7)
    return figure

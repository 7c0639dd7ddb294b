"""Activation maps of neurons over all pairs of operands, their value vectors, and how a heuristic is matched."""

import textwrap
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from numpy.typing import NDArray

from arithscope.experiments.classify import ANY, Classification
from arithscope.experiments.neurons import neuron_name
from arithscope.experiments.patterns import ActivationMaps
from arithscope.figures.registry import figure
from arithscope.figures.style import SIGNS, grid_shape, hide_unused, literal, new_figure, styled
from arithscope.heuristics.catalogue import catalogue
from arithscope.heuristics.kinds import parse
from arithscope.heuristics.neuron_matching import NeuronBatch
from arithscope.heuristics.overlaps import top_prompts
from arithscope.prompts import operand_grid

SMALLEST = 30  # prompts of a heuristic worth showing
LARGEST_SHARE = 0.3  # of all prompts; larger heuristics are shown only if there is no other
VISIBLE_SHARE = 0.02  # of all prompts, for a set that can be seen in a map
ZOOM = 30  # numbers shown for residues
RESULTS = (ActivationMaps, Classification)  # of the figures in the gallery
EXAMPLES, HEURISTICS = 6, 4  # neurons per operator, and heuristics named per neuron
Map = NDArray[np.float32]  # a value for each pair of operands, or for each number
_ORDER = [ANY, "range", "modulo", "pattern", "identical", "multi-result", "op1", "op2", "result", "op1, op2"]


@styled
def neuron_figure(operator: str, activations: Map, logits: Map, attribution: Map, title: str) -> Figure:
    """One neuron: activation map, logits of its value vector, and direct logit attribution to the answer."""
    figure, [[left, middle, right]] = new_figure(11, 3.4, 1, 3)
    draw_map(left, operator, activations, "activation", scale=activations[~np.isnan(attribution)])
    left.set_title("activation")
    middle.plot(np.arange(len(logits)), logits, linewidth=0.7)
    middle.set(title="logits of its value vector", xlabel="number")
    draw_map(right, operator, attribution, "activation × logit of the answer")
    right.set_title("direct logit attribution to the answer")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


@figure("heuristic-gallery", *RESULTS, section="gallery", order=160, title="Kinds of heuristics in neurons")
def heuristic_gallery(maps: ActivationMaps, classify: Classification) -> Figure:
    """For each kind of heuristic, the neuron whose activation adds most to its calibrated match. Colour: activation
    at the last position for each pair of operands. Pale: prompts that are not legal. Expected: the score due to the
    value vector alone; for operand heuristics, chance. Products have logarithmic axes; residues of sums and
    differences are shown for thirty numbers. (Paper: Figure 5.)"""
    matches = _best_of_each_kind(classify)
    rows, columns = grid_shape(len(matches), 4)
    figure, axes = new_figure(3.1 * columns, 2.9 * rows + 0.8, rows, columns)
    for panel, row in zip(axes.ravel(), matches.to_dict("records"), strict=False):
        _draw_neuron(panel, maps, maps.place(row["operator"], row["layer"], row["neuron"]))
        if row["kind"] == "modulo" and row["operator"] in "+-":
            _zoom_in(panel, maps.max_operand)
        neuron = f"{neuron_name(row['layer'], row['neuron'])}, {SIGNS[row['operator']]}"
        scores = f"score {row['score']:.2f}, expected {row['expected']:.2f}"
        panel.set_title(f"{literal(row['kind'])}: {literal(row['heuristic'])}\n{neuron}, {scores}", fontsize=7.5)
    hide_unused(axes.ravel(), len(matches))
    return figure


def _zoom_in(axes: Axes, max_operand: int) -> None:
    """Show a part of the map in which single numbers can be distinguished."""
    for start, set_limits, set_ticks in ((0.6, axes.set_xlim, axes.set_xticks), (0.3, axes.set_ylim, axes.set_yticks)):
        first = int(start * max_operand)
        set_limits(first - 0.5, first + ZOOM - 0.5)
        set_ticks([first, first + ZOOM - 1], [str(first), str(first + ZOOM - 1)])


def _best_of_each_kind(classify: Classification) -> pd.DataFrame:
    """The match to which the activation adds most, preferring small sets and a neuron's best match."""
    matches = _matches_to_show(classify)
    best = matches.groupby(["operator", "layer", "neuron"]).neg_log10_p.transform("max") == matches.neg_log10_p
    matches = matches.assign(best=best, small=matches.chance <= LARGEST_SHARE)
    matches = matches.sort_values(["small", "best", "added"], ascending=False, kind="stable")
    first = matches.drop_duplicates(["kind", "on"])
    return first.sort_values(["kind", "on"], key=lambda column: column.map(display_order), kind="stable")


def display_order(name: str) -> int:
    """Position of a kind of heuristic, or of its variable, in figures; kinds added by users come last."""
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _matches_to_show(classify: Classification) -> pd.DataFrame:
    """Calibrated matches of sets that are not tiny; `added` is how far the score goes from the expected one to 1."""
    m = classify.matches[classify.matches.calibrated & (classify.matches["size"] >= SMALLEST)]
    return m.assign(added=(m.score - m.expected) / (1 - m.expected))


def _draw_neuron(axes: Axes, maps: ActivationMaps, place: int, *, labels: bool = True) -> None:
    """A neuron's activation map; prompts that are not legal, and not used for classification, are pale."""
    operator = str(maps.neurons.operator.iloc[place])
    legal = operand_grid(operator, maps.max_operand).legal(maps.limit).reshape(maps.activations.shape[1:])
    values = np.asarray(maps.activations[place], dtype=np.float32)
    draw_map(axes, operator, values, "activation", colour_bar=labels, scale=values[legal])
    _draw_grid(axes, operator, np.where(legal, np.nan, 1.0), cmap="Greys_r", vmin=0, vmax=1, alpha=0.75)
    if not labels:
        axes.set(xticks=[], yticks=[], xlabel="", ylabel="")


def draw_map(
    axes: Axes, operator: str, values: Map, name: str, *, colour_bar: bool = True, scale: Map | None = None
) -> None:
    """Draw values over all pairs of operands; colours run from the 2nd to the 98th percentile of `scale` (or `values`)."""
    low, high = np.nanquantile(values if scale is None else scale, [0.02, 0.98])
    image = _draw_grid(axes, operator, values, cmap="viridis", vmin=low, vmax=high if high > low else low + 1e-6)
    if colour_bar:
        bar = cast(Figure, axes.figure).colorbar(image, ax=axes, shrink=0.7, aspect=15, pad=0.02)
        bar.ax.tick_params(labelsize=6)
        bar.set_label(name, fontsize=7)


def _draw_grid(axes: Axes, operator: str, values: NDArray[Any], **options: Any) -> ScalarMappable:
    """Draw values with op1 to the right and op2 upwards. Legal products lie along the axes, so `*` has logarithmic axes, which
    need a mesh; the others are images, which are much faster to draw."""
    largest = values.shape[0] - 1
    ticks = [0, largest]
    image: ScalarMappable
    if operator == "*":
        edges = np.arange(largest + 2) - 0.5
        image = axes.pcolormesh(edges, edges, values.T, rasterized=True, **options)
        logarithmic = (lambda x: np.log1p(np.maximum(x + 0.5, 0)), lambda x: np.expm1(x) - 0.5)
        axes.set_xscale("function", functions=logarithmic)
        axes.set_yscale("function", functions=logarithmic)
        ticks = [0, *(n for n in (3, 30) if n < largest), largest]
    else:
        image = axes.imshow(values.T, origin="lower", aspect="auto", interpolation="nearest", **options)
    axes.set_box_aspect(1)
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.set_yticks(ticks, [str(n) for n in ticks])
    axes.set_xlabel("op1", labelpad=-6 if len(ticks) == 2 else None)
    axes.set_ylabel("op2", labelpad=-10 if len(ticks) == 2 else None)
    return image


@figure("matching-walkthrough", *RESULTS, section="gallery", order=170, title="Matching a neuron with a heuristic")
def matching_walkthrough(maps: ActivationMaps, classify: Classification) -> Figure:
    """The activation map (a) times the value vector's logit of each prompt's answer (b, c) is the neuron's
    contribution to the correct answer (d). Its top k prompts (e) are compared with the k prompts of the heuristic
    (f); the score is the share they have in common (g). (Paper: Figure 6.)"""
    figure, axes = new_figure(13, 6.6, 2, 4)
    panels = axes.ravel()
    row = walkthrough_match(classify)
    if row is None:
        panels[0].text(0.5, 0.5, "no direct heuristic has a calibrated match", ha="center", va="center")
        hide_unused(panels, 1)
        return figure
    operator, heuristic, k = str(row.operator), parse(str(row.heuristic)), int(row["size"])
    at = maps.place(operator, row.layer, row.neuron)
    sets = catalogue(operator, maps.max_operand, maps.limit)
    batch = NeuronBatch(maps.activations[at : at + 1], maps.logits[at : at + 1])
    activations, answer_logits = batch.on_prompts(range(1), sets)
    contribution = activations * answer_logits
    top = torch.zeros(len(sets), dtype=torch.bool)
    top[top_prompts(contribution)[0, :k]] = True
    members = torch.from_numpy(heuristic.holds(sets.prompts))

    def on_grid(values: torch.Tensor) -> Map:
        grid = np.full((maps.max_operand + 1) ** 2, np.nan, dtype=np.float32)
        grid[sets.grid_index.numpy()] = values.numpy()
        return grid.reshape(maps.max_operand + 1, -1)

    _draw_neuron(panels[0], maps, at)
    panels[1].plot(np.arange(maps.limit), maps.logits[at], linewidth=0.7)
    panels[1].set(xlabel="number", ylabel="logit")
    draw_map(panels[2], operator, on_grid(answer_logits[0]), "logit of the answer")
    draw_map(panels[3], operator, on_grid(contribution[0]), "product")
    for panel, prompts in zip(panels[4:7], (top, members, top & members), strict=True):
        _draw_grid(panel, operator, on_grid(prompts.float()), cmap="Greys", vmin=-0.1, vmax=1)
    titles = (
        f"(a) activation of {neuron_name(int(row.layer), int(row.neuron))}, {SIGNS[operator]}",
        "(b) logits of its value vector",
        "(c) … of each prompt's answer",
        "(d) (a) × (c): contribution to the answer",
        f"(e) top {k:,} prompts of (d)",
        f"(f) the {k:,} prompts of\n{heuristic}",
        f"(g) both: {row.overlap:,} of {k:,}, score {row.score:.2f}",
    )
    for panel, title in zip(panels, titles, strict=False):
        panel.set_title(title)
    summary = (
        f"score {row.score:.2f}\nchance {row.chance:.3f}\nexpected from the value\nvector alone {row.expected:.2f}\n"
        f"tail probability 10^−{row.neg_log10_p_hypergeom:.0f}\n"
        f"false-discovery rate {f'{row.fdr:.2g}' if row.fdr > 0 else 'below 1e-300'}"
    )
    panels[7].axis("off")
    panels[7].text(0.0, 0.95, summary, va="top", fontsize=10)
    return figure


def walkthrough_match(classify: Classification) -> "pd.Series[Any] | None":
    """The direct match of the first operator to which the activation adds most, preferring sets of a visible size."""
    matches = _matches_to_show(classify)
    matches = matches[matches.direct]
    if matches.empty:
        return None
    visible = matches[(matches.chance >= VISIBLE_SHARE) & (matches.chance <= LARGEST_SHARE)]
    matches = matches if visible.empty else visible
    matches = matches[matches.operator == matches.operator.iloc[0]]
    return matches.iloc[int(matches.added.argmax())]


@figure("example-neurons", *RESULTS, section="gallery", order=180, title="Example neurons")
def example_neurons(maps: ActivationMaps, classify: Classification) -> Figure:
    """For each operator, neurons of large effect with a calibrated match, one for each kind of heuristic first.
    Shown are the activation for each pair of operands (op1 to the right, op2 upwards; pale: not legal), the ten
    numbers that the value vector promotes most, and the best calibrated heuristics with their scores. (Paper:
    Appendix C.)"""
    return _neuron_table(maps, classify, classified=True)


@figure("unclassified-neurons", *RESULTS, section="gallery", order=190, title="Strongest unclassified neurons")
def unclassified_neurons(maps: ActivationMaps, classify: Classification) -> Figure:
    """For each operator, the neurons of largest effect without a calibrated match. Heuristics named here score at
    least 0.6, but no better than chance and the value vector explain. (Paper: Appendix C.)"""
    return _neuron_table(maps, classify, classified=False)


def _neuron_table(maps: ActivationMaps, classify: Classification, *, classified: bool) -> Figure:
    operators = classify.operators
    size = 4.4 * len(operators), 1.62 * EXAMPLES + 1.2
    figure, axes = new_figure(*size, EXAMPLES, 2 * len(operators), width_ratios=[1, 1.9] * len(operators))
    for column, operator in enumerate(operators):
        examples = _examples(maps, classify, operator, classified)
        for i in range(EXAMPLES):
            panel, text = axes[i, 2 * column], axes[i, 2 * column + 1]
            text.axis("off")
            if i >= len(examples):
                panel.axis("off")
                continue
            row = examples.iloc[i]
            _draw_neuron(panel, maps, int(row.place), labels=False)
            text.text(0.0, 1.0, _description(classify, row), va="top", fontsize=7.5, transform=text.transAxes)
        axes[0, 2 * column].set_title(f"operator {SIGNS[operator]}", fontsize=10, fontweight="bold")
    return figure


def _examples(maps: ActivationMaps, classify: Classification, operator: str, classified: bool) -> pd.DataFrame:
    """Classified or unclassified neurons of largest effect; of classified ones, one for each kind of heuristic comes first."""
    neuron = ["layer", "neuron"]
    classes = classify.neurons[(classify.neurons.operator == operator) & (classify.neurons.calibrated == classified)]
    rows = maps.neurons.assign(place=np.arange(len(maps.neurons)))
    rows = rows[rows.operator == operator].merge(classes[neuron], on=neuron)
    rows = rows.sort_values("effect", ascending=False, kind="stable")
    if classified:
        m = classify.matches[(classify.matches.operator == operator) & classify.matches.calibrated]
        best = m.sort_values("neg_log10_p", ascending=False, kind="stable").drop_duplicates(neuron)
        rows = rows.merge(best[[*neuron, "kind", "on"]], on=neuron)
        repeated = rows.duplicated(["kind", "on"])
        rows = pd.concat([rows[~repeated], rows[repeated]])
    return rows.head(EXAMPLES)


def _description(classify: Classification, row: Any) -> str:
    layer, neuron = int(str(row.layer)), int(str(row.neuron))
    matches = classify.of_neuron(str(row.operator), layer, neuron)
    matches = matches[matches.calibrated] if matches.calibrated.any() else matches
    names = [f"{literal(h)} ({s:.2f})" for h, s in zip(matches.heuristic, matches.score, strict=True)]
    more = f"\nand {len(names) - HEURISTICS} more" if len(names) > HEURISTICS else ""
    tokens = textwrap.fill(" ".join(map(str, np.asarray(row.tokens))), 34)
    heuristics = "\n".join(names[:HEURISTICS]) or "no heuristic scores 0.6"
    return f"{neuron_name(layer, neuron)}  effect {row.effect:.2g}\n{tokens}\n{heuristics}{more}"

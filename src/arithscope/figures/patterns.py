"""Neurons to look at: patterns over the operand square, value vectors, and how a heuristic is matched."""

from __future__ import annotations

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
from arithscope.figures.style import SIGNS, grid_shape, hide_unused, new_figure, styled
from arithscope.heuristics.catalogue import catalogue
from arithscope.heuristics.kinds import parse
from arithscope.heuristics.neuron_matching import NeuronBatch
from arithscope.heuristics.overlaps import top_prompts
from arithscope.prompts import operand_grid

FEWEST, LARGEST_SHARE = 30, 0.3  # prompts of a heuristic that is worth showing; rather not more than this share of all
VISIBLE_SHARE = 0.02  # of all prompts, in a picture of a set
ENLARGED = 30  # numbers
EXAMPLES = 6  # neurons of an operator
HEURISTICS = 4  # of a neuron that are named
_ORDER = [ANY, "range", "modulo", "pattern", "identical", "multi-result", "op1", "op2", "result", "op1, op2"]
MAP = "viridis"


@styled
def heuristic_gallery(patterns: ActivationMaps, classify: Classification) -> Figure:
    """For each kind of heuristic the neuron that matches one best."""
    shown = _best_of_each_kind(classify)
    rows, columns = grid_shape(len(shown), 4)
    figure, axes = new_figure(3.1 * columns, 2.9 * rows + 0.8, rows, columns)
    for panel, row in zip(axes.ravel(), shown.to_dict("records"), strict=False):
        _pattern(panel, patterns, patterns.place(row["operator"], row["layer"], row["neuron"]))
        if row["kind"] == "modulo" and row["operator"] in "+-":
            _enlarge(panel, patterns.max_operand)
        panel.set_title(
            f"{row['kind']}: {row['heuristic']}\n{neuron_name(row['layer'], row['neuron'])}, {SIGNS[row['operator']]}, "
            f"score {row['score']:.2f}, expected {row['expected']:.2f}",
            fontsize=7.5,
        )
    hide_unused(axes.ravel(), len(shown))
    return figure


def _enlarge(axes: Axes, max_operand: int) -> None:
    """Show a part of the square only, in which single numbers can be told apart."""
    for start, limits, ticks in ((0.6, axes.set_xlim, axes.set_xticks), (0.3, axes.set_ylim, axes.set_yticks)):
        first = int(start * max_operand)
        limits(first - 0.5, first + ENLARGED - 0.5)
        ticks([first, first + ENLARGED - 1], [str(first), str(first + ENLARGED - 1)])


def _best_of_each_kind(classify: Classification) -> pd.DataFrame:
    """The match to which the activation adds most; rather of a set that is not nearly everything, and rather one that no other
    heuristic of the neuron surpasses."""
    found = _worth_showing(classify)
    main = found.groupby(["operator", "layer", "neuron"]).neg_log10_p.transform("max") == found.neg_log10_p
    found = found.assign(main=main, small=found.chance <= LARGEST_SHARE)
    best = found.sort_values(["small", "main", "added"], ascending=False, kind="stable")
    return best.drop_duplicates(["kind", "on"]).sort_values(["kind", "on"], key=lambda c: c.map(rank), kind="stable")


def rank(name: str) -> int:
    """Where a kind of heuristic, or what it is about, comes among its like; kinds that were added come last."""
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _worth_showing(classify: Classification) -> pd.DataFrame:
    """Calibrated matches of sets that are not tiny; `added` is how far their score goes from what is expected to 1."""
    m = classify.matches[classify.matches.calibrated & (classify.matches["size"] >= FEWEST)]
    return m.assign(added=(m.score - m.expected) / (1 - m.expected))


def _pattern(axes: Axes, patterns: ActivationMaps, place: int, *, labels: bool = True) -> None:
    """A neuron's activations; prompts that are not legal, and play no part in its classification, are pale."""
    operator = str(patterns.neurons.operator.iloc[place])
    legal = operand_grid(operator, patterns.max_operand).legal(patterns.limit).reshape(patterns.activations.shape[1:])
    values = np.asarray(patterns.activations[place], dtype=np.float32)
    field(axes, operator, values, "activation", labels=labels, scale=values[legal])
    _mesh(axes, operator, np.where(legal, np.nan, 1.0), cmap="Greys_r", vmin=0, vmax=1, alpha=0.75)
    if not labels:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel("")
        axes.set_ylabel("")


def field(
    axes: Axes,
    operator: str,
    values: NDArray[np.float32],
    name: str,
    *,
    labels: bool = True,
    scale: NDArray[np.float32] | None = None,
) -> None:
    """Values over the operand square, white where there are none. The scale leaves out the most extreme 2 % at either end."""
    low, high = np.nanquantile(values if scale is None else scale, [0.02, 0.98])
    high = high if high > low else low + 1e-6
    image = _mesh(axes, operator, values, cmap=MAP, vmin=low, vmax=high)
    if labels:
        bar = cast(Figure, axes.figure).colorbar(image, ax=axes, shrink=0.7, aspect=15, pad=0.02)
        bar.ax.tick_params(labelsize=6)
        bar.set_label(name, fontsize=7)


def _mesh(axes: Axes, operator: str, values: NDArray[Any], **options: Any) -> ScalarMappable:
    """Values over the operand square, op1 to the right and op2 upwards. Legal products lie along the axes, so products get a
    logarithmic scale (which takes a mesh; an image is much faster to draw)."""
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


@styled
def matching_walkthrough(patterns: ActivationMaps, classify: Classification) -> Figure:
    """The seven steps from an activation pattern to a score, for the direct match to which the activation adds most."""
    figure, axes = new_figure(13, 6.6, 2, 4)
    panels = axes.ravel()
    row = match_to_walk_through(classify)
    if row is None:
        panels[0].text(0.5, 0.5, "no direct heuristic is matched", ha="center", va="center")
        hide_unused(panels, 1)
        return figure
    operator, heuristic = str(row.operator), parse(str(row.heuristic))
    at = patterns.place(operator, row.layer, row.neuron)
    sets = catalogue(operator, patterns.max_operand, patterns.limit)
    activations, on_answer = NeuronBatch(patterns.activations[at : at + 1], patterns.logits[at : at + 1]).on_prompts(
        range(1), sets
    )
    k = int(row["size"])
    foremost = torch.zeros(len(sets), dtype=torch.bool)
    foremost[top_prompts(activations * on_answer)[0, :k]] = True
    members = torch.from_numpy(heuristic.holds(sets.prompts))

    def on_square(values: torch.Tensor) -> NDArray[np.float32]:
        field = np.full((patterns.max_operand + 1) ** 2, np.nan, dtype=np.float32)
        field[sets.grid_index.numpy()] = values.numpy()
        return field.reshape(patterns.max_operand + 1, -1)

    _pattern(panels[0], patterns, at)
    panels[1].plot(np.arange(patterns.limit), patterns.logits[at], linewidth=0.7)
    panels[1].set_xlabel("number")
    panels[1].set_ylabel("logit")
    field(panels[2], operator, on_square(on_answer[0]), "logit of the answer")
    field(panels[3], operator, on_square((activations * on_answer)[0]), "product")
    for panel, marked in zip(panels[4:7], (foremost, members, foremost & members), strict=True):
        _mesh(panel, operator, on_square(marked.float()), cmap="Greys", vmin=-0.1, vmax=1)
    titles = (
        f"(a) activation of {neuron_name(int(row.layer), int(row.neuron))}, {SIGNS[operator]}",
        "(b) its value vector's logits",
        "(c) … of each prompt's answer",
        "(d) (a) × (c): what it adds to the answer",
        f"(e) the {k:,} foremost prompts of (d)",
        f"(f) the {k:,} prompts of\n{heuristic}",
        f"(g) both: {row.overlap:,} of {k:,}, score {row.score:.2f}",
    )
    for panel, title in zip(panels, titles, strict=False):
        panel.set_title(title)
    panels[7].axis("off")
    panels[7].text(
        0.0,
        0.95,
        f"score {row.score:.2f}\nchance {row.chance:.3f}\nexpected from the value\nvector alone {row.expected:.2f}\n"
        f"tail probability 10^−{row.neg_log10_p_hypergeom:.0f}\n"
        f"false-discovery rate {f'{row.fdr:.2g}' if row.fdr > 0 else 'below 1e-300'}",
        va="top",
        fontsize=10,
    )
    return figure


def match_to_walk_through(classify: Classification) -> pd.Series[Any] | None:
    """The direct match to which the activation adds most, of the first operator that has one; rather of a set that can be seen,
    and is not nearly everything."""
    found = _worth_showing(classify)
    found = found[found.direct]
    if found.empty:
        return None
    visible = found[(found.chance >= VISIBLE_SHARE) & (found.chance <= LARGEST_SHARE)]
    found = found if visible.empty else visible
    found = found[found.operator == found.operator.iloc[0]]
    return found.iloc[int(found.added.argmax())]


@styled
def example_neurons(patterns: ActivationMaps, classify: Classification) -> Figure:
    """Of each operator the neurons of largest effect that are classified after calibration, one for each kind first."""
    return _neuron_table(patterns, classify, classified=True)


@styled
def unclassified_neurons(patterns: ActivationMaps, classify: Classification) -> Figure:
    """Of each operator the neurons of largest effect that are not."""
    return _neuron_table(patterns, classify, classified=False)


def _neuron_table(patterns: ActivationMaps, classify: Classification, *, classified: bool) -> Figure:
    operators = classify.operators
    figure, axes = new_figure(
        4.4 * len(operators),
        1.62 * EXAMPLES + 1.2,
        EXAMPLES,
        2 * len(operators),
        width_ratios=[1, 1.9] * len(operators),
    )
    for column, operator in enumerate(operators):
        chosen = _examples(patterns, classify, operator, classified)
        for i in range(EXAMPLES):
            picture, text = axes[i, 2 * column], axes[i, 2 * column + 1]
            text.axis("off")
            if i >= len(chosen):
                picture.axis("off")
                continue
            row = chosen.iloc[i]
            _pattern(picture, patterns, int(row.place), labels=False)
            text.text(0.0, 1.0, _described(classify, row), va="top", fontsize=7.5, transform=text.transAxes)
        axes[0, 2 * column].set_title(f"operator {SIGNS[operator]}", fontsize=10, fontweight="bold")
    return figure


def _examples(patterns: ActivationMaps, classify: Classification, operator: str, classified: bool) -> pd.DataFrame:
    neurons = patterns.neurons.assign(place=np.arange(len(patterns.neurons)))
    own = classify.neurons[classify.neurons.operator == operator]
    wanted = own[own.calibrated == classified][["layer", "neuron"]]
    rows = (
        neurons[neurons.operator == operator]
        .merge(wanted, on=["layer", "neuron"])
        .sort_values("effect", ascending=False, kind="stable")
    )
    if classified:
        m = classify.matches[(classify.matches.operator == operator) & classify.matches.calibrated]
        main = m.sort_values("neg_log10_p", ascending=False, kind="stable").drop_duplicates(["layer", "neuron"])
        rows = rows.merge(main[["layer", "neuron", "kind", "on"]], on=["layer", "neuron"])
        repeated = rows.duplicated(["kind", "on"])
        rows = pd.concat([rows[~repeated], rows[repeated]])
    return rows.head(EXAMPLES)


def _described(classify: Classification, row: Any) -> str:
    layer, neuron = int(str(row.layer)), int(str(row.neuron))
    found = classify.of_neuron(str(row.operator), layer, neuron)
    found = found[found.calibrated] if found.calibrated.any() else found
    named = [f"{h} ({s:.2f})" for h, s in zip(found.heuristic, found.score, strict=True)]
    more = f"\nand {len(named) - HEURISTICS} more" if len(named) > HEURISTICS else ""
    tokens = textwrap.fill(" ".join(map(str, np.asarray(row.tokens))), 34)
    said = "\n".join(named[:HEURISTICS]) or "no heuristic scores 0.6"
    return f"{neuron_name(layer, neuron)}  effect {row.effect:.2g}\n{tokens}\n{said}{more}"

"""Activation maps of neurons over all pairs of operands, their value vectors, and how a heuristic is matched."""

import textwrap
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from arithscope.experiments.classify import ANY, Classification
from arithscope.experiments.neurons import neuron_name
from arithscope.experiments.patterns import ActivationMaps
from arithscope.figures.registry import figure
from arithscope.figures.style import SIGNS, grid_shape, hide_unused, literal, new_figure, styled
from arithscope.heuristics.catalogue import stratum_catalogue
from arithscope.heuristics.kinds import Bools, Ints, Rule, parse
from arithscope.heuristics.neuron_matching import NeuronBatch
from arithscope.heuristics.overlaps import top_prompts
from arithscope.prompts import Stratum

SMALLEST = 30  # prompts of a heuristic worth showing
LARGEST_SHARE = 0.3  # of all prompts; larger heuristics are shown only if there is no other
VISIBLE_SHARE = 0.02  # of all prompts, for a set that can be seen in a map
ZOOM = 30  # numbers shown for residues
RESULTS = (ActivationMaps, Classification)  # of the figures in the gallery
EXAMPLES, HEURISTICS = 6, 4  # neurons per operator, and heuristics named per neuron
ALIASES = 2  # of a name that are listed
MOST_CHANGES = 30  # of membership along a line of a map, for an outline that can be seen
Map = NDArray[np.float32]  # a value for each pair of operands, or for each number
Sides = tuple[Ints, Ints]  # the operands on the two sides of a map
_KINDS = ["range", "modulo", "pattern", "identical", "multi-result"]
_DIGIT_KINDS = ["digit", "digit pair", "digit sum", "digit difference", "carry", "borrow"]
_ORDER = [ANY, *_KINDS, *_DIGIT_KINDS, "op1", "op2", "result", "answer", "op1, op2"]


@styled
def neuron_figure(operator: str, activations: Map, logits: Map, attribution: Map, sides: Sides, title: str) -> Figure:
    """One neuron: activation map, logits of its value vector, and direct logit attribution to the answer."""
    figure, [[left, middle, right]] = new_figure(11, 3.4, 1, 3)
    draw_map(left, operator, activations, "activation", scale=activations[~np.isnan(attribution)], sides=sides)
    left.set_title("activation")
    middle.plot(np.arange(len(logits)), logits, linewidth=0.7)
    middle.set(title="logits of its value vector", xlabel="number")
    draw_map(right, operator, attribution, "activation × logit of the answer", sides=sides)
    right.set_title("direct logit attribution to the answer")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


@figure("heuristic-gallery", *RESULTS, section="gallery", order=160, title="Kinds of heuristics in neurons")
def heuristic_gallery(maps: ActivationMaps, classify: Classification) -> Figure:
    """For each kind of heuristic, the neuron that a rule of this kind names and fits best (R² over legal prompts; for
    rules about the result, of the activation times the {ANSWER}'s logit). Colour: activation at {LAST} for
    each pair of operands. Lines: where the rule holds. Pale: prompts that are not legal. “Also”: rules that hold for
    nearly the same legal prompts. Products have logarithmic axes; of sums and differences, rules that change often are
    shown for thirty numbers. (Paper: Figure 5.)"""
    names = _best_of_each_kind(classify)
    rows, columns = grid_shape(len(names), 4)
    figure, axes = new_figure(3.1 * columns, 3.1 * rows + 0.8, rows, columns)
    for panel, row in zip(axes.ravel(), names.to_dict("records"), strict=False):
        operator, rule = row["operator"], parse(row["heuristic"])
        _draw_neuron(panel, maps, maps.place(operator, row["layer"], row["neuron"]))
        holds, sides = rule_map(rule, operator, maps.stratum), maps.stratum.sides
        zoomed = not is_legible(holds) and operator in "+-"
        if zoomed:
            _zoom_in(panel, sides)
        if is_legible(holds[_in_view(0, sides), _in_view(1, sides)] if zoomed else holds):
            draw_outline(panel, holds)
        neuron = f"{neuron_name(row['layer'], row['neuron'])}, {SIGNS[operator]}, R² {row['fit']:.2f}"
        title = f"{literal(rule.kind)}: {_fires(row)}{literal(row['heuristic'])}"
        panel.set_title(f"{title}\n{_also(row['aliases'])}{neuron}", fontsize=7.5)
    hide_unused(axes.ravel(), len(names))
    return figure


def _fires(row: Any) -> str:
    """What precedes a rule in a text: nothing, unless the neuron fires negatively."""
    return "fires negatively on " if row["sign"] == -1 else ""


def _also(aliases: Iterable[str]) -> str:
    """A line that names some of a rule's aliases."""
    names = [str(alias) for alias in aliases]
    more = f" and {len(names) - ALIASES} more" if len(names) > ALIASES else ""
    return f"also {'; '.join(map(literal, names[:ALIASES]))}{more}\n" if names else ""


def rule_map(rule: Rule, operator: str, stratum: Stratum) -> Bools:
    """Where a rule holds in the operand grid, legal or not."""
    return rule.holds(stratum.grid(operator)).reshape(stratum.shape)


def is_legible(holds: Bools) -> bool:
    """Whether the outline of a set can be seen: along a line, membership changes at most MOST_CHANGES times on average."""
    changes = [float(np.diff(holds, axis=axis).sum(axis=axis).mean()) for axis in (0, 1)]
    return max(changes) <= MOST_CHANGES


def draw_outline(axes: Axes, holds: Bools) -> None:
    """Draw the border of a set of operand pairs, white around black, so that it can be seen on any colour."""
    lines = outline(holds)
    for colour, width in (("white", 1.6), ("black", 0.6)):
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=width), autolim=False)


def outline(holds: Bools) -> list[list[tuple[float, float]]]:
    """The border of a set of pairs (op1, op2) as straight lines along the edges of cells, each as long as possible."""
    lines: list[list[tuple[float, float]]] = []
    for axis, cells in enumerate((holds, holds.T)):  # lines at a constant op1, then at a constant op2
        padded = np.pad(cells, ((1, 1), (1, 1)))
        borders = np.diff(padded.astype(np.int8), axis=0) != 0
        steps = np.diff(borders.astype(np.int8), axis=1)
        for at in np.flatnonzero(borders.any(1)).tolist():
            starts, ends = (np.flatnonzero(steps[at] == step) for step in (1, -1))
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                line = [(at - 0.5, start - 0.5), (at - 0.5, end - 0.5)]
                lines.append(line if axis == 0 else [(y, x) for x, y in line])
    return lines


def _in_view(axis: int, sides: Sides) -> slice:
    """Operands of an axis that are shown of a map in which single numbers are to be distinguished."""
    first = int((0.6, 0.3)[axis] * (len(sides[axis]) - 1))
    return slice(first, first + ZOOM)


def _zoom_in(axes: Axes, sides: Sides) -> None:
    for i, name in enumerate("xy"):
        view = _in_view(i, sides)
        ends = view.start, min(view.stop, len(sides[i])) - 1
        axes.set(**{f"{name}lim": (view.start - 0.5, view.stop - 0.5), f"{name}ticks": ends})
        axes.set(**{f"{name}ticklabels": [str(sides[i][n]) for n in ends]})


def _best_of_each_kind(classify: Classification) -> pd.DataFrame:
    """For each kind, the neuron that is named by a rule of that kind and fits it best, preferring small sets."""
    key = ["operator", "layer", "neuron", "sign"]
    of_best = classify.matches.rename(columns={"heuristic": "best_match"})[[*key, "best_match", "size", "chance"]]
    names = classify.names.merge(of_best, on=[*key, "best_match"])
    names = names[names["size"] >= SMALLEST].assign(small=names.chance <= LARGEST_SHARE)
    names = names.sort_values(["small", "fit"], ascending=False, kind="stable").drop_duplicates(["kind", "on"])
    return names.sort_values(["kind", "on"], key=lambda column: column.map(display_order), kind="stable")


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
    stratum = maps.stratum
    legal = stratum.legal(stratum.grid(operator)).reshape(stratum.shape)
    values = np.asarray(maps.activations[place], dtype=np.float32)
    draw_map(axes, operator, values, "activation", colour_bar=labels, scale=values[legal], sides=stratum.sides)
    pale = np.where(legal, np.nan, 1.0)
    _draw_grid(axes, operator, pale, stratum.sides, cmap="Greys_r", vmin=0, vmax=1, alpha=0.75)
    if not labels:
        axes.set(xticks=[], yticks=[], xlabel="", ylabel="")


def draw_map(
    axes: Axes,
    operator: str,
    values: Map,
    name: str,
    *,
    sides: Sides,
    colour_bar: bool = True,
    scale: Map | None = None,
) -> None:
    """Draw values over all pairs of operands; colours run from the 2nd to the 98th percentile of `scale` (or `values`)."""
    low, high = np.nanquantile(values if scale is None else scale, [0.02, 0.98])
    image = _draw_grid(axes, operator, values, sides, cmap="viridis", vmin=low, vmax=high if high > low else low + 1e-6)
    if colour_bar:
        bar = cast(Figure, axes.figure).colorbar(image, ax=axes, shrink=0.7, aspect=15, pad=0.02)
        bar.ax.tick_params(labelsize=6)
        bar.set_label(name, fontsize=7)


def _draw_grid(axes: Axes, operator: str, values: NDArray[Any], sides: Sides, **options: Any) -> ScalarMappable:
    """Draw values with op1 to the right and op2 upwards. From 0 on, legal products lie along the axes, so `*` has logarithmic
    axes, which need a mesh; the others are images, which are much faster to draw."""
    largest, is_log = values.shape[0] - 1, operator == "*" and sides[0][0] == 0 == sides[1][0]
    ticks = [0, largest]
    image: ScalarMappable
    if is_log:
        edges = np.arange(largest + 2) - 0.5
        image = axes.pcolormesh(edges, edges, values.T, rasterized=True, **options)
        logarithmic = (lambda x: np.log1p(np.maximum(x + 0.5, 0)), lambda x: np.expm1(x) - 0.5)
        axes.set_xscale("function", functions=logarithmic)
        axes.set_yscale("function", functions=logarithmic)
        ticks = [0, *(n for n in (3, 30) if n < largest), largest]
    else:
        image = axes.imshow(values.T, origin="lower", aspect="auto", interpolation="nearest", **options)
    axes.set_box_aspect(1)
    for name, side, last in zip("xy", sides, values.shape, strict=True):
        shown = ticks if is_log else [0, last - 1]
        axes.set(**{f"{name}ticks": shown, f"{name}ticklabels": [str(side[n]) for n in shown]})
    axes.set_xlabel("op1", labelpad=-6 if len(ticks) == 2 else None)
    axes.set_ylabel("op2", labelpad=-10 if len(ticks) == 2 else None)
    return image


@figure("matching-walkthrough", *RESULTS, section="gallery", order=170, title="Matching a neuron with a heuristic")
def matching_walkthrough(maps: ActivationMaps, classify: Classification) -> Figure:
    """The activation map (a) times the value vector's logit of each prompt's {ANSWER} (b, c) is the neuron's
    contribution to the correct {ANSWER} (d). Its top k prompts (e) are compared with the k prompts of the heuristic
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
    stratum = maps.stratum
    sets = stratum_catalogue(operator, stratum)
    batch = NeuronBatch(maps.activations[at : at + 1], maps.logits[at : at + 1])
    activations, answer_logits = batch.on_prompts(range(1), sets)
    contribution = activations * answer_logits
    top = torch.zeros(len(sets), dtype=torch.bool)
    top[top_prompts(contribution)[0, :k]] = True
    members = torch.from_numpy(heuristic.holds(sets.prompts))

    def on_grid(values: torch.Tensor) -> Map:
        grid = np.full(np.prod(stratum.shape), np.nan, dtype=np.float32)
        grid[sets.grid_index.numpy()] = values.numpy()
        return grid.reshape(stratum.shape)

    _draw_neuron(panels[0], maps, at)
    panels[1].plot(np.arange(maps.limit), maps.logits[at], linewidth=0.7)
    panels[1].set(xlabel="number", ylabel="logit")
    draw_map(panels[2], operator, on_grid(answer_logits[0]), "logit of the answer", sides=stratum.sides)
    draw_map(panels[3], operator, on_grid(contribution[0]), "product", sides=stratum.sides)
    for panel, prompts in zip(panels[4:7], (top, members, top & members), strict=True):
        _draw_grid(panel, operator, on_grid(prompts.float()), stratum.sides, cmap="Greys", vmin=-0.1, vmax=1)
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
    Shown are the activation for each pair of operands (op1 to the right, op2 upwards; pale: not legal) with the outline
    of the rule that names the neuron (unless it is too fine), the ten numbers that the value vector promotes most, the
    name, and the best calibrated heuristics with their scores. (Paper: Appendix J.)"""
    return _neuron_table(maps, classify, classified=True)


@figure("unclassified-neurons", *RESULTS, section="gallery", order=190, title="Strongest unclassified neurons")
def unclassified_neurons(maps: ActivationMaps, classify: Classification) -> Figure:
    """For each operator, the neurons of largest effect without a calibrated match. Heuristics named here score at
    least 0.6, but no better than chance and the value vector explain. (Paper: Appendix J.)"""
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
            if classified:
                holds = rule_map(parse(str(row.heuristic)), operator, maps.stratum)
                if is_legible(holds):
                    draw_outline(panel, holds)
            text.text(0.0, 1.0, _description(classify, row), va="top", fontsize=7.5, transform=text.transAxes)
        axes[0, 2 * column].set_title(f"operator {SIGNS[operator]}", fontsize=10, fontweight="bold")
    return figure


def _examples(maps: ActivationMaps, classify: Classification, operator: str, classified: bool) -> pd.DataFrame:
    """Classified or unclassified neurons of largest effect; of classified ones, one for each kind of name comes first."""
    neuron = ["layer", "neuron"]
    classes = classify.neurons[(classify.neurons.operator == operator) & (classify.neurons.calibrated == classified)]
    rows = maps.neurons.assign(place=np.arange(len(maps.neurons)))
    rows = rows[rows.operator == operator].merge(classes[neuron], on=neuron)
    rows = rows.sort_values("effect", ascending=False, kind="stable")
    if classified:
        names = classify.names[classify.names.operator == operator]
        rows = rows.merge(names[[*neuron, "heuristic", "kind", "on", "sign", "aliases"]], on=neuron)
        repeated = rows.duplicated(["kind", "on"])
        rows = pd.concat([rows[~repeated], rows[repeated]])
    return rows.head(EXAMPLES)


def _description(classify: Classification, row: Any) -> str:
    layer, neuron = int(str(row.layer)), int(str(row.neuron))
    matches = classify.of_neuron(str(row.operator), layer, neuron)
    matches = matches[matches.calibrated] if matches.calibrated.any() else matches
    negative = {1: "", -1: "−"}
    shown = zip(matches.sign.map(negative), matches.heuristic, matches.score, strict=True)
    names = [f"{sign}{literal(h)} ({score:.2f})" for sign, h, score in shown]
    more = f"\nand {len(names) - HEURISTICS} more" if len(names) > HEURISTICS else ""
    tokens = textwrap.fill(" ".join(map(str, np.asarray(row.tokens))), 34)
    heuristics = "\n".join(names[:HEURISTICS]) or "no heuristic scores 0.6"
    name = f"name: {_fires(row)}{literal(str(row.heuristic))}\n" if "heuristic" in row else ""
    return f"{neuron_name(layer, neuron)}  effect {row.effect:.2g}\n{name}{tokens}\n{heuristics}{more}"

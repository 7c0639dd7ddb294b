"""How good a circuit is: curves against its size, and the table of chosen circuits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common.ablation import FOUND, RANDOM
from arithscope.experiments.common.result import AVERAGE
from arithscope.experiments.localize import component_name
from arithscope.figures.style import OPERATOR_COLOURS, SIGNS, line_with_band, new_figure, styled, table_figure

MEASURE_NAMES = {"faithfulness": "faithfulness", "accuracy": "accuracy", "p_answer": "mean P(answer)"}
HEADS_A_LINE, MOST_NAMES = 6, 24  # in the table


@styled
def faithfulness_by_heads(circuit: Circuit) -> Figure:
    """Faithfulness, accuracy and mean probability of the answer against the number of heads, beside random heads."""
    figure, panels = curves_beside_random(
        circuit.curve, circuit.curve["size"], "heads in the circuit (beside all MLPs)"
    )
    mark_choices(panels, circuit.curve, {o: len(circuit.chosen(o)) for o in circuit.operators})
    largest = int(circuit.curve["size"].max())
    for axes in panels:
        if largest > 64:
            axes.set_xscale("symlog", linthresh=16)
            axes.set_xlim(0, largest * 1.1)
    legend_beside(figure, panels[0], "random heads")
    return figure


def curves_beside_random(curve: pd.DataFrame, x: pd.Series[Any], label: str, **options: Any) -> tuple[Figure, Any]:
    """A panel for each measure: a line with its interval for each operator, and dotted the random circuits as large."""
    figure, [panels] = new_figure(11, 3.9, 1, len(MEASURE_NAMES))
    for axes, (measure, name) in zip(panels, MEASURE_NAMES.items(), strict=True):
        rows = curve[curve.measure == measure]
        for operator in rows.operator.unique():
            mine = rows[rows.operator == operator]
            found, random = (mine[mine.circuit == c] for c in (FOUND, RANDOM))
            colour = OPERATOR_COLOURS[str(operator)]
            line_with_band(axes, x[found.index], found, color=colour, label=SIGNS[str(operator)], **options)
            axes.plot(x[random.index], random.value, color=colour, linestyle=":", linewidth=1)
        axes.set_xlabel(label)
        axes.set_ylabel(name)
        axes.set_ylim(min(-0.05, rows.value.min() - 0.05), 1.05)
    return figure, panels


def mark_choices(panels: Sequence[Axes], curve: pd.DataFrame, sizes: Mapping[str, int]) -> None:
    """A circle on each operator's curve, in every panel, at the size that was chosen."""
    for axes, measure in zip(panels, MEASURE_NAMES, strict=True):
        rows = curve[(curve.circuit == FOUND) & (curve.measure == measure)]
        for operator, size in sizes.items():
            chosen = rows[(rows.operator == operator) & (rows["size"] == size)]
            colour = OPERATOR_COLOURS[operator]
            axes.plot(chosen["size"], chosen.value, "o", color=colour, markersize=6, markeredgecolor="black")
    panels[0].plot([], [], "o", color="white", markeredgecolor="black", label="chosen size")


def legend_beside(figure: Figure, axes: Axes, random: str) -> None:
    """A legend to the right of all panels, with an entry for the dotted lines."""
    axes.plot([], [], color="grey", linestyle=":", label=random)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


@styled
def circuit_table(circuit: Circuit) -> Figure:
    """Heads and faithfulness of each operator's circuit; heads shared by all operators in bold."""
    means: Any = circuit.table.set_index(["operator", "measure"])
    shared = set(circuit.shared())

    def shown(operator: str, measure: str) -> str:
        row = means.loc[(operator, measure)]
        return f"{row.value:.2f} [{row.low:.2f}, {row.high:.2f}]"

    def names(heads: Sequence[tuple[int, int]]) -> str:
        kept = sorted(heads, key=lambda h: h not in shared)[:MOST_NAMES]  # a stable sort: then by effect
        written = [rf"$\bf{{{component_name(*h)}}}$" if h in shared else component_name(*h) for h in sorted(kept)]
        written += [f"and {len(heads) - len(kept)} more"] if len(heads) > len(kept) else []
        return "\n".join(" ".join(written[i : i + HEADS_A_LINE]) for i in range(0, len(written), HEADS_A_LINE))

    measures = [*MEASURE_NAMES, *(f"random_{m}" for m in MEASURE_NAMES)]
    rows = [
        [SIGNS[o], str(len(circuit.chosen(o))), *(shown(o, m) for m in measures), names(circuit.chosen(o))]
        for o in circuit.operators
    ]
    rows.append(["mean", "", *(shown(AVERAGE, m) for m in measures), f"{len(shared)} shared by all operators"])
    header = ["", "heads", *MEASURE_NAMES.values(), *(f"random: {n}" for n in MEASURE_NAMES.values()), "circuit heads"]
    return table_figure(header, rows, [0.5, 0.55, *[1.35] * 3, *[1.75, 1.5, 2.0], 3.2])

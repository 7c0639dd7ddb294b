"""Faithfulness of circuits: curves against their size, and the table of chosen circuits."""

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
from arithscope.figures.registry import figure
from arithscope.figures.style import OPERATOR_COLOURS, SIGNS, line_with_band, new_figure, table_figure

MEASURE_NAMES = {"faithfulness": "faithfulness", "accuracy": "accuracy", "p_answer": "mean P(answer)"}
HEADS_PER_LINE, MOST_NAMES = 6, 24  # in the table


@figure("faithfulness-by-heads", Circuit, section="circuit", order=50, title="How many heads the circuit needs")
def faithfulness_by_heads(circuit: Circuit) -> Figure:
    """The circuit consists of all MLPs and the n heads of largest effect. {FAITHFULNESS} Circles: the smallest
    circuit within 0.02 of the plateau. Dotted: n random heads instead (mean over draws). (Paper: Appendix A,
    faithfulness over heads.)"""
    label = "heads in the circuit (beside all MLPs)"
    figure, panels = curves_with_random(circuit.curve, circuit.curve["size"], label)
    mark_chosen(panels, circuit.curve, {o: len(circuit.chosen(o)) for o in circuit.operators})
    largest = int(circuit.curve["size"].max())
    for axes in panels:
        if largest > 64:
            axes.set_xscale("symlog", linthresh=16)
            axes.set_xlim(0, largest * 1.1)
    legend_with_random(figure, panels[0], "random heads")
    return figure


def curves_with_random(curve: pd.DataFrame, x: pd.Series[Any], label: str, **options: Any) -> tuple[Figure, Any]:
    """One panel per measure, one line with its interval per operator; dotted, random circuits of the same size."""
    figure, [panels] = new_figure(11, 3.9, 1, len(MEASURE_NAMES))
    for axes, (measure, name) in zip(panels, MEASURE_NAMES.items(), strict=True):
        table = curve[curve.measure == measure]
        for operator in table.operator.unique():
            rows = table[table.operator == operator]
            chosen, random = (rows[rows.circuit == c] for c in (FOUND, RANDOM))
            colour = OPERATOR_COLOURS[str(operator)]
            line_with_band(axes, x[chosen.index], chosen, color=colour, label=SIGNS[str(operator)], **options)
            axes.plot(x[random.index], random.value, color=colour, linestyle=":", linewidth=1)
        axes.set(xlabel=label, ylabel=name, ylim=(min(-0.05, table.value.min() - 0.05), 1.05))
    return figure, panels


def mark_chosen(panels: Sequence[Axes], curve: pd.DataFrame, sizes: Mapping[str, int]) -> None:
    """Circle the chosen size on each operator's curve."""
    for axes, measure in zip(panels, MEASURE_NAMES, strict=True):
        rows = curve[(curve.circuit == FOUND) & (curve.measure == measure)]
        for operator, size in sizes.items():
            chosen = rows[(rows.operator == operator) & (rows["size"] == size)]
            colour = OPERATOR_COLOURS[operator]
            axes.plot(chosen["size"], chosen.value, "o", color=colour, markersize=6, markeredgecolor="black")
    panels[0].plot([], [], "o", color="white", markeredgecolor="black", label="chosen size")


def legend_with_random(figure: Figure, axes: Axes, random: str) -> None:
    """A legend to the right of all panels, with an entry for the dotted lines."""
    axes.plot([], [], color="grey", linestyle=":", label=random)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


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

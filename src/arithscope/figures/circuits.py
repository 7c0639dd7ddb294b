"""How good a circuit is: curves against its size, and the table of chosen circuits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from arithscope.experiments.ablation import FOUND, RANDOM
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.localize import component_name
from arithscope.experiments.result import AVERAGE
from arithscope.figures.style import OPERATOR_COLOURS, SIGNS, line_with_band, new_figure, styled, table_figure

MEASURE_NAMES = {"faithfulness": "faithfulness", "accuracy": "accuracy", "p_answer": "mean P(answer)"}
HEADS_A_LINE, MOST_NAMES = 6, 24  # in the table


@styled
def faithfulness_by_heads(circuit: Circuit) -> Figure:
    """Faithfulness, accuracy and mean probability of the answer against the number of heads, beside random heads."""
    figure, [panels] = new_figure(11, 3.9, 1, len(MEASURE_NAMES))
    largest = int(circuit.curve["size"].max())
    for axes, (measure, name) in zip(panels, MEASURE_NAMES.items(), strict=True):
        rows = circuit.curve[circuit.curve.measure == measure]
        for operator in circuit.operators:
            mine = rows[rows.operator == operator]
            found, random = (mine[mine.circuit == c] for c in (FOUND, RANDOM))
            colour = OPERATOR_COLOURS[operator]
            line_with_band(axes, found["size"], found, color=colour, label=SIGNS[operator])
            axes.plot(random["size"], random.value, color=colour, linestyle=":", linewidth=1)
            chosen = found[found["size"] == len(circuit.chosen(operator))]
            axes.plot(chosen["size"], chosen.value, "o", color=colour, markersize=6, markeredgecolor="black")
        axes.set_xlabel("heads in the circuit (beside all MLPs)")
        axes.set_ylabel(name)
        axes.set_ylim(-0.05 if measure != "faithfulness" else min(-0.05, rows.value.min() - 0.05), 1.05)
        if largest > 64:
            axes.set_xscale("symlog", linthresh=16)
            axes.set_xlim(0, largest * 1.1)
    panels[0].plot([], [], "o", color="white", markeredgecolor="black", label="chosen size")
    panels[0].plot([], [], color="grey", linestyle=":", label="random heads")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    return figure


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

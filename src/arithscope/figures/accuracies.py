"""How often the model is right."""

from __future__ import annotations

from matplotlib.figure import Figure

from arithscope.experiments.accuracy import Accuracy
from arithscope.figures.style import SIGNS, styled, table_figure


@styled
def accuracy_table(accuracy: Accuracy) -> Figure:
    """Accuracy per operator and on average."""
    names = {"accuracy": "accuracy", "p_answer": "mean P(answer)", "p_answer_correct": "… on correct prompts"}
    rows = []
    for operator, measures in accuracy.summary().items():
        shown = (f"{m['value']:.3f} [{m['low']:.3f}, {m['high']:.3f}]" for m in (measures[name] for name in names))
        rows.append([SIGNS.get(operator, operator), f"{measures['accuracy']['n']:,}", *shown])
    return table_figure(["operator", "legal prompts", *names.values()], rows, [0.9, 1.2, 2.0, 2.0, 2.0])

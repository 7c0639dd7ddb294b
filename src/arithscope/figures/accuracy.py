"""Accuracy on legal prompts."""

from matplotlib.figure import Figure

from arithscope.experiments.accuracy import Accuracy
from arithscope.figures.registry import figure
from arithscope.figures.style import SIGNS, table_figure


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

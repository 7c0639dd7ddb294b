"""Names and tokens from outside are drawn as they are, whatever characters they have."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from arithscope.figures.causal import knockout_by_heuristic
from arithscope.figures.heads import attention_patterns, circuit_diagram, head_roles
from arithscope.figures.studies import training_curves
from arithscope.figures.style import finish, literal, new_figure, outside_legend
from arithscope.results.run import Run
from arithscope.utils.printing import printable

HOSTILE = r"_$\frac{a}$ x^2 \$ <b>&--> \ $" + "\x00\x1b[31m\ufffe"


def svg(figure: Figure) -> ElementTree.Element:
    with io.BytesIO() as file:
        FigureCanvasSVG(figure).print_svg(file)
        return ElementTree.fromstring(file.getvalue())


def shown(texts: Any) -> list[str]:
    """What matplotlib draws; none of it may be a formula."""
    lines = [text._preprocess_math(text.get_text()) for text in texts]
    assert not any(is_formula for _, is_formula in lines)
    return [line for line, _ in lines]


@pytest.mark.filterwarnings("ignore:Glyph")  # missing from the font: drawn as a box
@settings(max_examples=25)
@given(st.text(max_size=20) | st.text("_$\\{}^\x00\x1b<&-a", max_size=20))
@example(f"{HOSTILE}\ud800")
@example("$")
def test_any_name_can_be_drawn(name: str) -> None:
    figure, [[axes]] = new_figure(9, 2)
    axes.plot([0, 1], [0, 1], label=literal(f"_{name}"))
    axes.set_xticks([0, 1], [literal(name), ""])
    outside_legend(figure, axes)
    above, _ = finish(figure, name, "caption")
    svg(figure)
    assert shown([above]) in ([printable(name)], [f"\N{ZERO WIDTH SPACE}{printable(name)}"])
    assert shown(figure.legends[0].get_texts()) == [f"\N{ZERO WIDTH SPACE}_{printable(name)}"]
    assert printable(name) in [label.removeprefix("\N{ZERO WIDTH SPACE}") for label in shown(axes.get_xticklabels())]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_tokens_are_drawn_as_they_are(adder_results: dict[str, Any]) -> None:
    heads = adder_results["heads"]
    place = heads.positions.index("operator")
    roles = heads.roles.assign(attends_to=heads.roles.attends_to.replace({"operator": HOSTILE}), reads=HOSTILE)
    positions = [*heads.positions[:place], HOSTILE, *heads.positions[place + 1 :]]
    hostile = replace(heads, roles=roles, positions=positions)
    diagram = circuit_diagram(adder_results["localize"], adder_results["circuit"], hostile)
    svg(diagram)
    assert any(f"reads \N{ZERO WIDTH SPACE}{printable(HOSTILE)} (" in line for line in shown(diagram.axes[0].texts))
    for draw in (attention_patterns, head_roles):
        figure = draw(hostile)
        svg(figure)
        assert f"\N{ZERO WIDTH SPACE}{printable(HOSTILE)}" in shown(figure.axes[0].get_xticklabels())


@pytest.mark.filterwarnings("ignore:Glyph")
def test_names_of_checkpoints_are_drawn_as_they_are(small_training_run: Any) -> None:
    training = Run(small_training_run).training
    first = training.checkpoints[0]
    tables = {
        name: table.assign(checkpoint=table.checkpoint.replace({first: HOSTILE}))
        for name, table in vars(training).items()
        if hasattr(table, "checkpoint")
    }
    figure = training_curves(replace(training, checkpoints=[HOSTILE, *training.checkpoints[1:]], **tables))
    svg(figure)
    assert f"\N{ZERO WIDTH SPACE}{printable(HOSTILE)}" in shown(figure.axes[-1].get_xticklabels())


@pytest.mark.filterwarnings("ignore:Glyph", "ignore:constrained_layout")  # names are longer than the figure is high
def test_heuristics_are_drawn_as_they_are(adder_results: dict[str, Any]) -> None:
    """Their names come from the tables of a run, which may be somebody else's."""
    knockout = adder_results["knockout"]
    hostile = replace(knockout, accuracy=knockout.accuracy.assign(heuristic=knockout.accuracy.heuristic + HOSTILE))
    figure = knockout_by_heuristic(hostile)
    svg(figure)
    labels = [label for axes in figure.axes for label in shown(axes.get_xticklabels())]
    assert any(printable(HOSTILE) in label for label in labels)

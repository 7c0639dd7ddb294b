"""Every figure shows the numbers of its result, has labels, and copes with small, large and empty results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.classify import Classification
from arithscope.experiments.heads import Heads
from arithscope.experiments.localize import MLP, Localization
from arithscope.figures.activation_maps import matching_walkthrough
from arithscope.figures.circuit import (
    circuit_table,
    faithfulness_by_heads,
    localization,
    localization_by_operator,
    probe_accuracy,
)
from arithscope.figures.heads import MOST_HEADS, MOST_ROWS, attention_patterns, circuit_diagram, head_roles
from arithscope.figures.neurons import first_mlp_faithfulness, number_tuning
from arithscope.figures.registry import FigureSpec, all_figures
from arithscope.figures.registry import figure as registered
from arithscope.figures.style import finish
from arithscope.heuristics.kinds import parse
from arithscope.pipeline.registry import stage_of
from tests.hand_built import ADDING_LAYER, OP1_HEAD, OP2_HEAD
from tests.strata import SUMS, accuracy_of


def drawn(figure: Figure) -> Figure:
    """Draw a figure with title and caption; its legends must fit between them."""
    above, below = finish(figure, "A title", "A caption that is long enough to be wrapped. " * 5)
    FigureCanvasAgg(figure).draw()
    for legend in figure.legends:  # the report shows only what is between title and caption
        assert legend.get_window_extent().y1 <= above.get_window_extent().y0
        assert legend.get_window_extent().y0 >= below.get_window_extent().y1
    return figure


def texts(figure: Figure) -> list[str]:
    return [t.get_text() for axes in figure.axes for t in axes.texts]


def big_localize(layers: int, heads: int) -> Localization:
    """Made-up effects of a large model, some of them negative or zero."""
    random = np.random.default_rng(0)
    keys = [
        (o, p, layer, head)
        for o in "+-*/"
        for p in ("op1", "operator", "op2", "last")
        for layer in range(layers)
        for head in [*range(heads), MLP]
    ]
    table = pd.DataFrame(keys, columns=["operator", "position", "layer", "head"])
    value = random.normal(0, 1, len(table)) ** 3
    both = [table.assign(measure=m, value=value, low=value - 1, high=value + 1, n=9, median=0.0) for m in EFFECT_NAMES]
    return Localization(pd.concat(both), pd.DataFrame())


EFFECT_NAMES = ("probability", "log_ratio", "logit")


def big_heads(n: int) -> Heads:
    """Made-up heads of circuits with n heads each, after a few-shot prefix."""
    random = np.random.default_rng(0)
    positions = ["<s>", "1", "+", "2", "=", "3", "op1", "operator", "op2", "last"]
    rows = [
        {
            "operator": o,
            "layer": i // 8,
            "head": i % 8,
            "shared": i < 3,
            "attends_to": positions[i % 10],
            "share": 0.5,
            "acts_at": ["last", "op2"][i % 2],
            "reads": positions[(i + 3) % 10],
            "reads_attention": 0.4,
        }
        for o in "+-"
        for i in range(n)
    ]
    patterns = random.dirichlet(np.ones(10), (2 * n, 10)).astype(np.float32)
    measured = {"measure": "faithfulness", "value": 0.9, "low": 0.8, "high": 1.0, "n": 9}
    isolation = [
        {**{k: row[k] for k in ("operator", "layer", "head")}, "when": when, **measured}
        for row in rows
        for when in ("before", "after", "change")
    ]
    return Heads(pd.DataFrame(rows), patterns, pd.DataFrame(isolation), positions)


def results_of(spec: FigureSpec, results: dict[str, Any]) -> list[Any]:
    return [results[stage_of(result).name] for result in spec.results]


OF_LAYOUTS = ("answers", "carries", "shared")  # sections about numbers of several tokens, drawn in test_steps.py
OF_A_RUN = [s for s in all_figures() if s.name not in ("training", "stability") and s.section not in OF_LAYOUTS]


@pytest.mark.parametrize("spec", OF_A_RUN, ids=lambda spec: spec.name)
def test_every_figure_of_a_real_run(spec: FigureSpec, adder_results: dict[str, Any]) -> None:
    figure = drawn(spec.draw(*results_of(spec, adder_results)))
    assert figure.axes
    for axes in figure.axes:
        has_data = axes.lines or axes.collections or axes.images or axes.texts or axes.patches
        assert has_data or not axes.get_visible()
    labelled = [axes for axes in figure.axes if axes.get_xlabel() or axes.get_ylabel() or axes.get_title()]
    assert labelled or spec.name in ("accuracy", "circuit-table", "worst-prompts")  # which are tables


def test_a_figure_from_outside_the_package() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arithscope.figures.registry._FIGURES", {spec.name: spec for spec in all_figures()})

        @registered("mine", Accuracy, title="Mine")
        def mine(accuracy: Accuracy) -> Figure:
            """{EFFECT} And
            more."""
            raise NotImplementedError

        *ours, last = all_figures()
        assert [spec.name for spec in ours] == [spec.name for spec in sorted(ours, key=lambda spec: spec.order)]
        assert (last.name, last.results, last.section) == ("mine", (Accuracy,), None)
        assert last.caption.startswith("The effect of an intervention (Eq. 1) is")
        assert last.caption.endswith(". And more.")
        assert mine.__module__ == __name__
        with pytest.raises(ValueError, match=r"arithscope\.figures\.circuit has registered a figure 'probe-accuracy'"):
            registered("probe-accuracy", Accuracy, title="Another")(mine)
    assert "mine" not in [spec.name for spec in all_figures()]


def test_the_heat_map_shows_the_effects(adder_results: dict[str, Any]) -> None:
    localize = adder_results["localize"]
    figure = drawn(localization_by_operator(localize))
    panels = [axes for axes in figure.axes if axes.get_title().startswith("position: ")]
    assert [axes.get_title() for axes in panels] == [f"position: {p}" for p in ("op1", "operator", "op2", "last")]
    heads, mlps = (mesh.get_array() for mesh in panels[3].collections)
    rows = localize.effects[(localize.effects.measure == "probability") & (localize.effects.position == "last")]
    values = rows.set_index(["layer", "head"]).value
    for layer, head in (OP1_HEAD, OP2_HEAD):
        assert heads[layer, head] == pytest.approx(values[layer, head])
    assert mlps[ADDING_LAYER, 0] == pytest.approx(values[ADDING_LAYER, MLP])
    assert heads.argmax() in [layer * 4 + head for layer, head in (OP1_HEAD, OP2_HEAD)]


def test_the_curve_shows_the_table_and_marks_the_choice(adder_results: dict[str, Any]) -> None:
    circuit = adder_results["circuit"]
    figure = drawn(faithfulness_by_heads(circuit))
    rows = circuit.curve[(circuit.curve.circuit == "found") & (circuit.curve.measure == "faithfulness")]
    lines = figure.axes[0].lines
    assert lines[0].get_ydata() == pytest.approx(rows.value.to_numpy())
    assert list(lines[2].get_xdata()) == [2]
    assert [axes.get_ylabel() for axes in figure.axes] == ["faithfulness", "accuracy", "mean P(answer)"]


def test_the_diagram_shows_the_known_circuit(adder_results: dict[str, Any]) -> None:
    figure = drawn(circuit_diagram(adder_results["localize"], adder_results["circuit"], adder_results["heads"]))
    labels = texts(figure)
    assert any(text.startswith("L1H2 reads op1 (100%)") for text in labels)
    assert any(text.startswith("L2H0 reads op2 (100%)") for text in labels)
    assert [text for text in labels if text.startswith("MLP") and len(text) < 6] == [f"MLP{ADDING_LAYER}"]


def test_the_table_lists_heads(adder_results: dict[str, Any]) -> None:
    cells = texts(drawn(circuit_table(adder_results["circuit"])))
    assert any("L1H2" in text and "L2H0" in text for text in cells)


def test_tuning_curves_are_the_activations(adder_results: dict[str, Any]) -> None:
    mlp0, accuracy = adder_results["mlp0"], adder_results["accuracy"]
    figure = drawn(number_tuning(mlp0, accuracy))
    for axes in figure.axes:
        neuron = int(axes.get_title().split()[1])
        assert axes.lines[0].get_ydata() == pytest.approx(mlp0.tuning[neuron])
        assert list(axes.lines[0].get_xdata()) == list(range(accuracy.stratum.op1[1] + 1))


def test_tuning_curves_begin_at_the_smallest_operand(adder_results: dict[str, Any]) -> None:
    """Operands of two digits begin at 10."""
    mlp0 = replace(
        adder_results["mlp0"], tuning=np.resize(adder_results["mlp0"].tuning, (len(adder_results["mlp0"].tuning), 90))
    )
    [line, *_] = drawn(number_tuning(mlp0, accuracy_of(SUMS))).axes[0].lines
    assert list(line.get_xdata()) == list(range(10, 100))


def test_probe_lines_are_the_table(adder_results: dict[str, Any]) -> None:
    probe = adder_results["probe"]
    figure = drawn(probe_accuracy(probe))
    rows = probe.table[(probe.table.operator == "all") & (probe.table.position == "last")]
    assert any(line.get_ydata() == pytest.approx(rows.value.to_numpy()) for line in figure.axes[0].lines[:4])


def test_large_models_stay_legible() -> None:
    for draw in (localization, localization_by_operator):
        assert max(drawn(draw(big_localize(32, 32))).get_size_inches()) < 20
    heads = big_heads(120)
    assert len(heads.top_rows(MOST_ROWS)) == MOST_ROWS
    assert heads.top_rows(MOST_ROWS).shared.sum() == 6
    for draw_heads in (attention_patterns, head_roles):
        assert max(drawn(draw_heads(heads)).get_size_inches()) < 20


def test_a_large_circuit_diagram(adder_results: dict[str, Any]) -> None:
    figure = drawn(circuit_diagram(big_localize(32, 8), adder_results["circuit"], big_heads(120)))
    assert max(figure.get_size_inches()) <= 16
    assert sum(" reads " in text for text in texts(figure)) <= MOST_HEADS


def test_a_circuit_without_heads(adder_results: dict[str, Any]) -> None:
    """If the MLPs alone suffice, there are no roles to draw."""
    circuit, heads = adder_results["circuit"], adder_results["heads"]
    circuit = replace(circuit, heads=circuit.heads.assign(in_circuit=False))
    heads = replace(heads, roles=heads.roles[:0], attention=heads.attention[:0], isolation=heads.isolation[:0])
    for figure in (
        circuit_table(circuit),
        faithfulness_by_heads(circuit),
        attention_patterns(heads),
        head_roles(heads),
        circuit_diagram(adder_results["localize"], circuit, heads),
    ):
        drawn(figure)


def test_without_any_faithfulness(adder_results: dict[str, Any]) -> None:
    """If the empty circuit does as well as the model, faithfulness is undefined."""
    circuit, mlp0 = (
        replace(
            adder_results[name],
            curve=adder_results[name].curve.assign(value=np.nan, low=np.nan, high=np.nan),
            table=adder_results[name].table.assign(value=np.nan, low=np.nan, high=np.nan),
        )
        for name in ("circuit", "mlp0")
    )
    for figure in (circuit_table(circuit), faithfulness_by_heads(circuit), first_mlp_faithfulness(mlp0)):
        drawn(figure)


def test_without_any_classified_neuron(adder_results: dict[str, Any]) -> None:
    classify = adder_results["classify"]
    nothing = replace(
        classify,
        matches=classify.matches[:0],
        shares=classify.shares[classify.shares.kind == "any"].assign(value=0.0, low=0.0, high=0.0),
        neurons=classify.neurons.assign(raw=False, calibrated=False),
    )
    for spec in all_figures():
        if Classification in spec.results:
            drawn(spec.draw(*results_of(spec, {**adder_results, "classify": nothing})))


def test_the_walkthrough_shows_the_score(adder_results: dict[str, Any]) -> None:
    """With a match made by hand: the black cells of (g) are its overlap."""
    patterns, classify = adder_results["patterns"], adder_results["classify"]
    row = classify.best[classify.best.heuristic.str.startswith("result in [")].iloc[:1]
    row = row.assign(size=40, calibrated=True, chance=0.1, expected=0.0, score=0.5)
    figure = drawn(matching_walkthrough(patterns, replace(classify, matches=row.assign(two_operands=1.0))))
    [found], [both] = ([a for a in figure.axes if a.get_title().startswith(f"({x})")] for x in "eg")
    top, shared = (np.nan_to_num(np.asarray(axes.images[0].get_array())) for axes in (found, both))
    assert top.sum() == 40
    rule = parse(row.heuristic.iloc[0])
    assert shared.sum() == sum(rule.low <= a + b <= rule.high for b, a in np.argwhere(top > 0))

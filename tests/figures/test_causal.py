"""Figures of knockouts, failures and training show the numbers of their results, and cope with empty and large ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from arithscope.experiments.bag import Bag
from arithscope.experiments.failures import Failures
from arithscope.experiments.knockout import Knockout
from arithscope.experiments.prompt_knockout import PromptKnockout
from arithscope.experiments.training import Training
from arithscope.figures.causal import (
    MOST_NAMES,
    bag_alone,
    failure_contributions,
    knockout_by_heuristic,
    prompt_knockout_curves,
    worst_prompts,
)
from arithscope.figures.studies import training_curves
from tests.experiments.test_failures import known  # noqa: F401 (a fixture)
from tests.figures.test_figures import drawn, texts
from tests.strata import OF_WHOLE_NUMBERS


def some_knockout(operators: str, heuristics: int) -> Knockout:
    random = np.random.default_rng(0)
    keys = [
        (o, c, f"op1 in [{h}, {h + 10}]", "range", "op1", 12, g, s)
        for o in operators
        for c in ("raw", "calibrated")
        for h in range(heuristics)
        for g in ("associated", "not_associated")
        for s in ("own", "unmatched", "random")
    ]
    columns = ["operator", "criterion", "heuristic", "kind", "on", "neurons", "group", "ablated"]
    table = pd.DataFrame(keys, columns=columns)
    value = random.random(len(table))
    table = table.assign(value=value, low=value - 0.05, high=value + 0.05, n=25)
    signs = [
        {"operator": o, "criterion": c, "difference": "prompts", "above": 7, "below": 2, "p": 0.03}
        for o in operators
        for c in ("raw", "calibrated")
    ]
    return Knockout(table, pd.DataFrame(), pd.DataFrame(), pd.DataFrame(signs))


def test_bars_are_sorted_by_the_drop_in_accuracy() -> None:
    knockout = some_knockout("+-", 8)
    figure = drawn(knockout_by_heuristic(knockout))
    table = knockout.accuracy
    rows = (
        table[(table.operator == "-") & (table.criterion == "calibrated")]
        .set_index(["ablated", "group", "heuristic"])
        .sort_index()
    )
    want = rows.loc[("own", "associated")].value.sort_values()
    panel = figure.axes[3]
    bars = [bar.get_height() for bar in panel.patches]
    assert bars[:8] == pytest.approx(want.tolist())
    assert bars[8:] == pytest.approx(rows.loc[("own", "not_associated")].value[want.index].tolist())
    assert [t.get_text() for t in panel.get_xticklabels()] == want.index.tolist()
    [dashes] = [line for line in panel.lines if line.get_marker() == "_"]
    assert list(dashes.get_ydata()) == pytest.approx(rows.loc[("unmatched", "associated")].value[want.index].tolist())
    assert "lose more for 7 heuristics, less for 2" in panel.get_title()


def test_many_heuristics_are_not_named_and_an_empty_panel_has_a_note() -> None:
    panel = drawn(knockout_by_heuristic(some_knockout("+", MOST_NAMES + 1))).axes[0]
    assert panel.get_xlabel() == f"{MOST_NAMES + 1} heuristics"
    empty = some_knockout("+", 1)
    empty = replace(empty, accuracy=empty.accuracy[:0], signs=empty.signs[:0])
    assert "no heuristic has enough neurons" in texts(drawn(knockout_by_heuristic(empty)))
    one = some_knockout("+", 3)
    one = replace(one, accuracy=one.accuracy[one.accuracy.criterion == "raw"], signs=one.signs[:1])
    assert "no heuristic has enough neurons" in drawn(knockout_by_heuristic(one)).axes[1].get_title()


def test_prompt_knockout_shows_its_curves(adder_results: dict[str, Any]) -> None:
    knockout: PromptKnockout = adder_results["prompt_knockout"]
    figure = drawn(prompt_knockout_curves(knockout))
    c = knockout.curve
    panel = figure.axes[1]
    for line, ablated in zip(panel.lines, ("associated", "other_heuristics", "unassociated", "random"), strict=True):
        rows = c[(c.measure == "accuracy") & (c.criterion == "calibrated") & (c.ablated == ablated)]
        assert list(line.get_ydata()) == pytest.approx(rows.value.tolist(), nan_ok=True)
        assert list(line.get_xdata()) == rows["size"].tolist()
    prompts = dict(zip(rows["size"], rows.n, strict=True))
    ticks = [label.get_text().split("\n") for label in panel.get_xticklabels()]
    assert ticks == [[str(size), str(prompts[size])] for size in (0, 1, 5, 25, 100, 500) if size in prompts]


def test_a_panel_without_comparable_prompts_says_so(adder_results: dict[str, Any]) -> None:
    knockout: PromptKnockout = adder_results["prompt_knockout"]
    none = knockout.curve.assign(n=knockout.curve.n.where(knockout.curve["size"] == 0, 0))
    panels = drawn(prompt_knockout_curves(replace(knockout, curve=none))).axes
    assert all("no prompt has enough" in panel.texts[0].get_text() for panel in panels)
    some = none.assign(n=none.n.where(none["size"] != 1, 1))
    assert not any(panel.texts for panel in drawn(prompt_knockout_curves(replace(knockout, curve=some))).axes)


def test_the_bag_shows_its_bars(adder_results: dict[str, Any]) -> None:
    bag: Bag = adder_results["bag"]
    figure = drawn(bag_alone(bag))
    rows = bag.curve[bag.curve.measure == "accuracy"].set_index("neurons").value
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    assert heights == pytest.approx([rows[name] for name in ("top", "raw", "calibrated", "random", "none")])


def test_failures_show_every_prompt(known: Any) -> None:  # noqa: F811
    failures: Failures = known[-1]
    figure = drawn(failure_contributions(failures))
    rows = failures.prompts[(failures.prompts.operator == "-") & ~failures.prompts.correct]
    dots = [line for line in figure.axes[3].lines if line.get_marker() == "."]
    assert sorted(dots[1].get_ydata()) == pytest.approx(sorted(rows.calibrated_contribution))
    cells = texts(drawn(worst_prompts(failures, OF_WHOLE_NUMBERS)))
    worst = failures.worst.iloc[0]
    assert f"{worst.op1}+{worst.op2}=" in cells
    assert str(worst.predicted) in cells


def test_figures_without_failures(adder_results: dict[str, Any]) -> None:
    assert adder_results["failures"].prompts.empty
    drawn(failure_contributions(adder_results["failures"]))
    drawn(worst_prompts(adder_results["failures"], adder_results["accuracy"]))


def some_training(checkpoints: int) -> Training:
    names = [f"step-{i}" for i in range(checkpoints)] + ["final"]
    mean = {"low": 0.4, "high": 0.6, "n": 9}

    def table(**columns: list[Any]) -> pd.DataFrame:
        keys = pd.MultiIndex.from_product(columns.values(), names=columns.keys()).to_frame(index=False)
        value = np.random.default_rng(1).random(len(keys))
        return keys.assign(value=value, **mean)

    operators, criteria = ["+", "/"], ["raw", "calibrated"]
    neurons = ["top", "none", *criteria, *(f"{c}_mutual" for c in criteria)]
    faithful = table(checkpoint=names, operator=operators, neurons=neurons, measure=["faithfulness", "accuracy"])
    faithful = faithful[(faithful.checkpoint != "final") | ~faithful.neurons.str.endswith("mutual")]
    return Training(
        table(checkpoint=names, operator=operators),
        table(checkpoint=names[1:-1], operator=operators, criterion=criteria),
        faithful,
        pd.DataFrame(),
        table(
            checkpoint=names[1:],
            operator=operators,
            criterion=criteria,
            ablated=["associated", "other_heuristics", "unassociated", "random"],
            size=[5, 10, 25],
        ),
        pd.DataFrame(),
        names,
        [],
    )


def test_training_shows_three_curves() -> None:
    training = some_training(4)
    figure = drawn(training_curves(training))
    left, middle, right = figure.axes[3:]
    present = training.present[(training.present.criterion == "calibrated") & (training.present.operator == "/")]
    shown = [list(line.get_ydata()) for line in left.lines]
    assert pytest.approx(present.value.tolist()) in shown
    assert list(left.lines[0].get_xdata()) == [1, 2, 3]  # the first checkpoint has none
    f = training.faithfulness[
        (training.faithfulness.measure == "faithfulness") & (training.faithfulness.operator == "+")
    ]
    mutual = f[f.neurons == "calibrated_mutual"].value.tolist()
    last = f[(f.neurons == "calibrated") & (f.checkpoint == "final")].value.tolist()
    assert pytest.approx(mutual + last) in [list(line.get_ydata()) for line in middle.lines]
    floor = f[f.neurons == "none"].value.tolist()
    assert pytest.approx(floor) in [list(line.get_ydata()) for line in middle.lines if line.get_linestyle() == ":"]
    for ablated, style in (("associated", "-"), ("other_heuristics", "--")):
        k = training.knockout
        k = k[(k.criterion == "calibrated") & (k.ablated == ablated) & (k["size"] == 25)]
        want = k.groupby("checkpoint", sort=False).value.mean().tolist()
        assert pytest.approx(want) in [list(line.get_ydata()) for line in right.lines if line.get_linestyle() == style]
    assert len(drawn(training_curves(some_training(150))).axes[3].get_xticklabels()) <= 15

"""Figures about answers of several tokens show the numbers of their results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from arithscope.experiments.carries import CARRY, Carries
from arithscope.experiments.digit_probes import DigitProbes
from arithscope.experiments.step_overlap import StepOverlap
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.figures.carries import carry_components, held, strongest_components
from arithscope.figures.digit_probes import digit_probes
from arithscope.figures.steps import carry_chains, step_overlap, whole_answers
from arithscope.pipeline.store import RunFolder
from tests.figures.test_figures import drawn, texts

OVERLAP = pd.DataFrame(
    [
        {"operator": "+", "step": 2, "other": 3, "components": name, "iou": iou, "expected": 0.1, "shared": 3}
        for name, iou in (("heads", 0.6), ("neurons", 0.3))
    ]
)


@pytest.fixture
def answers(layout_runs: Path) -> WholeAnswers:
    return RunFolder(layout_runs / "2-2-3").read(WholeAnswers)


@pytest.fixture
def carries(layout_runs: Path) -> Carries:
    return RunFolder(layout_runs / "2-2-3").read(Carries)


def test_bars_of_whole_answers_and_steps(answers: WholeAnswers) -> None:
    measures = ["accuracy", "accuracy_1", "accuracy_2", "accuracy_3"]
    table = answers.table.assign(value=answers.table.measure.map({m: 0.2 * i for i, m in enumerate(measures, 1)}))
    figure = drawn(whole_answers(replace(answers, table=table)))
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["whole answer", "hundreds", "tens", "units"]


def test_lines_of_carry_chains(answers: WholeAnswers) -> None:
    [panel] = drawn(carry_chains(answers)).axes
    rows = answers.chains[answers.chains.measure == "accuracy"].sort_values("chain")
    assert list(panel.lines[0].get_xdata()) == list(rows.chain)
    assert list(panel.lines[0].get_ydata()) == pytest.approx(list(rows.value))
    assert [text.get_text() for text in panel.get_xticklabels()] == [
        f"{r.chain}\nn = {r.n:,.0f}" for r in rows.itertuples()
    ]
    none = replace(answers, chains=answers.chains[:0])
    assert texts(drawn(carry_chains(none))) == ["no sums or differences"]


def test_heat_maps_of_carries(answers: WholeAnswers, carries: Carries) -> None:
    figure = drawn(held(answers, carries))
    [panel] = [axes for axes in figure.axes if axes.get_title(loc="left") == "+  another carry into the tens"]
    rows = carries.exchange[(carries.exchange.sources == CARRY) & (carries.exchange["sample"] == "evaluation")]
    shown: Any = panel.collections[0].get_array()
    positions = [text.get_text() for text in panel.get_xticklabels()]
    for row in rows.to_dict("records"):
        assert shown[row["layer"] + 1, positions.index(row["position"])] == row["value"]
    framed = {(positions[int(p.get_x())], int(p.get_y()) - 1) for p in panel.patches}  # type: ignore[attr-defined]
    best = carries.held[carries.held.sources == CARRY]
    assert framed == set(zip(best.position, best.layer, strict=True))
    nothing = Carries(carries.exchange[:0], carries.held[:0], carries.components[:0])
    assert "too few prompts" in texts(drawn(held(answers, nothing)))[0]
    assert "no step has a carry" in texts(drawn(carry_components(answers, nothing)))[0]


def test_the_strongest_components(answers: WholeAnswers, carries: Carries) -> None:
    [panel] = drawn(carry_components(answers, carries)).axes
    rows = carries.components[carries.components.measure == "log_ratio"]
    top = np.sort(rows.value)[::-1][: len(panel.patches)]
    assert [bar.get_width() for bar in panel.patches] == pytest.approx(list(top))
    best = strongest_components(carries.components, "+", 2).iloc[0]
    assert panel.get_yticklabels()[0].get_text().endswith(f" at {best.position}")


def test_overlaps_of_steps(answers: WholeAnswers) -> None:
    figure = drawn(step_overlap(answers, StepOverlap(OVERLAP, pd.DataFrame(), [2, 3], [])))
    assert [axes.patches[0].get_height() for axes in figure.axes] == [0.6, 0.3]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["random sets", "tens, units"]
    drawn(step_overlap(answers, StepOverlap(OVERLAP[:0], pd.DataFrame(), [], [])))


def test_the_first_readable_layers(layout_runs: Path) -> None:
    probes = RunFolder(layout_runs / "2-2-3").read(DigitProbes)
    panel = drawn(digit_probes(probes)).axes[0]
    positions = [text.get_text() for text in panel.get_xticklabels()]
    variables = [text.get_text() for text in panel.get_yticklabels()]
    shown = {(int(t.get_position()[0]), int(t.get_position()[1])): t.get_text() for t in panel.texts}
    expected = {
        (positions.index(row["position"]), variables.index(row["variable"])): str(row["layer"]).replace("-1", "–")
        for row in probes.first[~probes.first.given].to_dict("records")
    }
    assert shown == expected
    nothing = DigitProbes(probes.table[:0], probes.first[:0])
    assert texts(drawn(digit_probes(nothing))) == ["too few whole answers are right"]

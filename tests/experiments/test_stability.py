"""Comparison of repetitions, worked out by hand; and halves of the prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.experiments.accuracy import in_half
from arithscope.experiments.common.key_numbers import KEY_NUMBERS
from arithscope.experiments.stability import Repeat, Stability, compare_repeats
from arithscope.figures.studies import repeated_numbers
from arithscope.prompts import OPERATORS, legal_prompts
from arithscope.report.findings.studies import repeated
from arithscope.settings import PRESETS
from benchmarks.stability import tables
from tests.figures.test_figures import drawn


def mean(value: float, spread: float = 0.01) -> dict[str, Any]:
    return {"value": value, "low": value - spread, "high": value + spread, "n": 10}


def summary(accuracy: float, faithfulness: float, heads: int, layer: int) -> dict[str, Any]:
    return {
        "accuracy": {"+": {"accuracy": mean(accuracy)}, "mean": {"accuracy": mean(accuracy)}},
        "circuit": {"+": {"faithfulness": mean(faithfulness), "heads": heads}, "mean": {"shared_heads": ["L0H0"]}},
        "probe": {"all": {"first_answer_layer": layer}},
    }


def effects(values: list[float], first: int = 0) -> pd.Series[float]:
    places = pd.MultiIndex.from_tuples([(2, first + i) for i in range(len(values))], names=["layer", "neuron"])
    return pd.Series(values, index=places)


def matches(*rows: tuple[int, str]) -> pd.DataFrame:
    return pd.DataFrame([(2, n, kind, "op1") for n, kind in rows], columns=["layer", "neuron", "kind", "on"])


@pytest.fixture(scope="module")
def found() -> Stability:
    """A run, its halves, of which the second has an accuracy only, and two seeds."""
    heads = {"+": {(0, 0), (0, 1)}}
    return compare_repeats(
        [
            Repeat(
                "all",
                summary(0.9, 0.8, 2, 4),
                {
                    "neuron_correlation": {"+": effects([1.0, 2.0, 3.0, 4.0])},
                    "heads_iou": heads,
                    "neurons_iou": {"+": {(2, 2), (2, 3)}},
                    "raw_kept": {"+": matches((2, "range"), (2, "modulo"), (3, "range"))},
                    "calibrated_kept": {"+": matches()},
                },
            ),
            Repeat("half-1", summary(0.88, 0.7, 3, 4), {}),
            Repeat("half-2", {"accuracy": summary(0.92, 0, 0, 0)["accuracy"]}, {}),
            Repeat(
                "seed-1",
                summary(0.9, 0.85, 2, 5),
                {
                    "neuron_correlation": {"+": effects([40.0, 10.0, 30.0, 20.0], 1)},
                    "heads_iou": {"+": {(0, 0), (1, 1)}},
                    "neurons_iou": {"+": {(2, 3), (2, 4)}},
                    "raw_kept": {"+": matches((3, "modulo"), (4, "range"))},
                    "calibrated_kept": {"+": matches()},
                },
            ),
            Repeat(
                "seed-2",
                summary(0.9, 0.805, 1, 4),
                {
                    "neuron_correlation": {"+": effects([1.0, 2.0, 4.0, 3.0])},
                    "heads_iou": heads,
                    "neurons_iou": {"+": {(2, 2), (2, 3)}},
                    "raw_kept": {"+": matches((2, "modulo"))},
                    "calibrated_kept": {"+": matches((2, "modulo"))},
                },
            ),
        ]
    )


def test_numbers_of_repetitions_are_compared(found: Stability) -> None:
    table = found.table.set_index(["experiment", "measure", "operator"])
    faithful = table.loc[("circuit", "faithfulness", "+")]
    assert (faithful.value, faithful.half_1, faithful.repeats) == (0.8, 0.7, 3)
    assert np.isnan(faithful.half_2)
    assert np.isnan(faithful.halves)
    assert (faithful.seeds_low, faithful.seeds_high) == (0.8, 0.85)
    assert faithful.seeds == pytest.approx(0.05)
    assert faithful.largest == pytest.approx(0.1)
    assert faithful.clear == 2  # .7 and .85 are further from .8 than √2 · .01, and .805 is not
    right = table.loc[("accuracy", "accuracy", "+")]
    assert right.halves == pytest.approx(0.04)
    assert right.seeds == 0
    assert (right.clear, right.repeats) == (2, 4)
    heads = table.loc[("circuit", "heads", "+")]
    assert (heads.value, heads.half_1, heads.seeds, heads.largest) == (2, 3, 1, 1)
    assert np.isnan(heads.clear)
    assert table.loc[("probe", "first_answer_layer", "mean")].seeds == 1
    assert ("circuit", "shared_heads", "mean") not in table.index  # names, not numbers
    assert found.runs == ["all", "half-1", "half-2", "seed-1", "seed-2"]


def test_choices_of_repetitions_are_compared(found: Stability) -> None:
    assert set(found.choices.between) == {"seeds"}  # one of the halves has chosen nothing
    choices = found.choices.set_index(["choice", "one", "other"])
    # Neurons 1, 2, 3 are in both: 2 3 4 against 40 10 30, whose ranks are 1 2 3 and 3 1 2.
    correlation = choices.loc[("neuron_correlation", "all", "seed-1")]
    assert correlation.n == 3
    assert correlation.value == pytest.approx(1 - 6 * (4 + 1 + 1) / (3 * 8))
    assert choices.loc[("neuron_correlation", "all", "seed-2")].value == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert choices.loc[("heads_iou", "all", "seed-1")].value == pytest.approx(1 / 3)
    assert choices.loc[("heads_iou", "all", "seed-2")].value == 1
    assert choices.loc[("neurons_iou", "all", "seed-1")].value == pytest.approx(1 / 3)
    # Neuron 3 is classified in both, but with other kinds; neuron 2 keeps one of its two.
    assert choices.loc[("raw_kept", "all", "seed-1")].value == 0
    kept = choices.loc[("raw_kept", "all", "seed-2")]
    assert (kept.value, kept.n) == (pytest.approx(2 / 3), 3)
    assert np.isnan(choices.loc[("calibrated_kept", "all", "seed-1")].value)
    assert choices.loc[("calibrated_kept", "all", "seed-2")].value == 0


def test_summary(found: Stability) -> None:
    entries = found.summary()["+"]
    # Accuracy 0 of .9, faithfulness .05 of .8, heads 1 of 2; over the halves only accuracy is known twice.
    assert entries["seeds_relative"] == pytest.approx(0.05 / 0.8)
    assert entries["halves_relative"] == pytest.approx(0.04 / 0.9)
    assert (entries["clear_differences"], entries["of_comparisons"]) == (4, 7)
    pairs = found.choices[found.choices.choice == "heads_iou"]
    assert entries["seeds_heads_iou"] == pytest.approx(pairs.value.mean()) == pytest.approx((1 / 3 + 1 + 1 / 3) / 3)
    assert "halves_heads_iou" not in entries


def test_finding_and_figure(found: Stability) -> None:
    finding = repeated(found)
    assert (
        "varies most is faithfulness of the circuit: .800 [.790, .810] in the run, .700 (half-1), .850" in finding.text
    )
    assert "Of 7 comparisons of a key number with a repetition, 4 have an interval that excludes zero" in finding.text
    assert "Between the halves" not in finding.text
    assert finding.numbers["heads in the circuit"] == {"+": "2; halves 3; seeds 2, 1"}
    assert finding.numbers["accuracy"] == {"+": ".900; halves .880, .920; seeds .900, .900"}
    assert finding.numbers["first answer layer by probe"] == {"+": "4; halves 4; seeds 5, 4"}
    figure = drawn(repeated_numbers(found))
    [panel] = figure.axes
    names = [label.get_text() for label in panel.get_yticklabels()]
    assert names[:3] == ["accuracy", "faithfulness of the circuit", "rank correlation of neuron effects"]
    assert "top neurons" in names
    assert "heads in the circuit" not in names  # no share
    dots = [tuple(x) for line in panel.lines if line.get_color() == "#0072B2" for x in [line.get_xdata()]]
    assert dots[:2] == [(0.88, 0.92), (0.7,)]


def test_recorded_tables(found: Stability) -> None:
    made = tables({"one": found, "two": found})
    assert list(made) == ["one", "two", "seeds", "choices"]
    numbers = {(row[0], row[1]): row[2:] for row in made["one"].rows}
    assert numbers["faithfulness of the circuit", "+"] == [0.8, 0.79, 0.81, 0.7, None, 0.8, 0.85, 0.1]
    seeds = {row[0]: row[1:] for row in made["seeds"].rows}
    assert seeds["faithfulness of the circuit"] == [".800–.850, –"] * 2
    assert seeds["heads in the circuit"] == ["1–2, –"] * 2
    agreed = round((1 / 3 + 1 + 1 / 3) / 3, 4)
    assert ["heads_iou", "+", None, agreed, None, agreed] in made["choices"].rows


def test_names_of_key_numbers_are_unique() -> None:
    assert len({row.short for row in KEY_NUMBERS}) == len(KEY_NUMBERS)


@given(st.integers(1, 12), st.sampled_from(["+", "-*", "+-*/"]), st.integers(0, 3))
def test_halves_are_disjoint_and_cover_all_prompts(max_operand: int, operators: str, seed: int) -> None:
    prompts = legal_prompts(operators, max_operand, 130)
    first, second = (in_half(prompts, half, seed) for half in (1, 2))
    assert (first ^ second).all()
    for operator in operators:
        mine = prompts.operator == OPERATORS.index(operator)
        assert 0 <= (second & mine).sum() - (first & mine).sum() <= 1
    # An operator's halves do not depend on which others are studied.
    alone = legal_prompts(operators[0], max_operand, 130)
    assert (in_half(alone, 1, seed) == first[prompts.operator == OPERATORS.index(operators[0])]).all()


def test_halved_sizes() -> None:
    whole = PRESETS["paper"]
    half = whole.halved()
    assert (half.discovery, half.neurons, half.knockout, half.probe) == (50, 25, 50, 8000)
    assert (half.draws, half.permutations) == (whole.draws, whole.permutations)
    assert PRESETS["quick"].halved().probe == 2000

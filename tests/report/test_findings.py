"""What the report says of made-up results: no more than their intervals allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.bag import Bag
from arithscope.experiments.common.result import summary_table
from arithscope.experiments.failures import Failures
from arithscope.experiments.heads import Heads
from arithscope.experiments.knockout import Knockout
from arithscope.experiments.neurons import AGREEMENT, NeuronEffects
from arithscope.experiments.overlap import Overlap
from arithscope.experiments.probe import Probe
from arithscope.experiments.prompt_knockout import PromptKnockout
from arithscope.experiments.training import Training
from arithscope.figures.gallery import PLATES
from arithscope.report.findings import circuit, neurons, proof
from arithscope.report.findings.figures import FINDINGS
from arithscope.report.formatting import (
    grouped,
    listed,
    means_of,
    number,
    overall,
    p_value,
    shown,
    span,
    verdict,
)
from arithscope.stats.intervals import Mean

NAN = float("nan")
NOWHERE = pd.DataFrame()


def mean(value: float, low: float, high: float, n: int = 50) -> Mean:
    return Mean(value, low, high, n)


def row(value: float, low: float, high: float, **named: Any) -> dict[str, Any]:
    return {**named, "value": value, "low": low, "high": high, "n": 50}


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.957, ".957"),
        (-0.25, "−.250"),
        (1.0, "1.00"),
        (12.34, "12.3"),
        (7.7e6, "7.7×10⁶"),
        (-1234.0, "−1.2×10³"),
        (None, "–"),
        (NAN, "–"),
    ],
)
def test_numbers(x: float | None, expected: str) -> None:
    assert number(x) == expected


def test_means_and_lists() -> None:
    assert shown(mean(0.5, 0.25, 1.0)) == ".500 [.250, 1.00]"
    assert shown(mean(NAN, NAN, NAN, 0)) == "–"
    assert shown(mean(0.5, NAN, NAN)) == ".500"  # no interval
    assert overall({"+": mean(0.5, 0.4, 0.6)}) == ".500 [.400, .600] (n = 50)"
    both = {"+": mean(0.5, 0.4, 0.6), "-": mean(0.7, 0.6, 0.8), "mean": mean(0.6, 0.55, 0.65, 1000)}
    assert overall(both) == ".600 [.550, .650] (n = 1,000)"
    assert overall({}) == "–"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed([]) == "–"
    assert grouped({"+": "x", "-": "y", "*": "x"}) == "x for + and ×, y for −"
    assert grouped({"+": "x", "-": "x"}) == "x for all operators"
    assert (span({"+": 4, "-": 4}), span({"+": 4, "-": 1000})) == ("4", "4 to 1,000")
    assert (p_value(0.0001), p_value(0.25)) == ("p < .001", "p = .250")


def test_verdicts() -> None:
    up, down, unclear = mean(0.2, 0.1, 0.3), mean(-0.2, -0.3, -0.1), mean(0.1, -0.1, 0.3)
    said = verdict({"+": up, "-": down, "*": unclear, "/": up, "mean": up}, "it rises", "it falls")
    assert said == " For + and ÷ it rises; for − it falls; for × there is no clear difference."
    assert verdict({"+": up, "-": up}, "it rises", "it falls") == " For all operators it rises."
    assert verdict({"+": mean(0.0, 0.0, 0.0)}, "it rises", "it falls") == " For + there is no clear difference."
    assert verdict({"+": mean(NAN, NAN, NAN, 0)}, "up", "down", "nobody knows") == " For + nobody knows."
    assert verdict({}, "it rises", "it falls") == ""


def test_missing_means_are_left_out() -> None:
    table = summary_table({"+": {"x": mean(0.5, 0.4, 0.6)}, "-": {"x": mean(NAN, NAN, NAN, 0)}})
    assert list(means_of(table, "x")) == ["+", "mean"]
    assert means_of(NOWHERE, "x") == {}


def right_and_wrong(plus: Mean, times: Mean) -> Accuracy:
    prompts = pd.DataFrame({"correct": [True, False, False], "predicted": [3, 4, -1]})
    return Accuracy(prompts, summary_table({"+": {"accuracy": plus}, "*": {"accuracy": times}}))


def test_accuracy() -> None:
    said = circuit.accuracy(right_and_wrong(mean(0.9, 0.89, 0.91), mean(0.5, 0.45, 0.55))).says
    # The distances .01 and .05 add up to √(.01² + .05²) = .051.
    assert "It is best at + and worst at ×; the difference is .400 [.349, .451]." in said
    assert "It answers .700 [" in said
    assert said.endswith("Of 2 wrong answers, no number at all: 1.")
    unclear = circuit.accuracy(right_and_wrong(mean(0.9, 0.8, 1.0), mean(0.85, 0.7, 0.95))).says
    assert "No operator is clearly easier than another." in unclear
    assert "best at" not in unclear


def test_probes() -> None:
    places = {"op1": (0.1, 0.12), "last": (0.3, 0.9)}
    rows = [
        row(value, value - 0.02, value + 0.02, operator="all", position=position, layer=layer)
        for position, values in places.items()
        for layer, value in enumerate(values)
    ]
    said = circuit.probe_accuracy(Probe(pd.DataFrame(rows), {"all": 0.11}, 1, 1, 100)).says
    assert "behind layer 1 of layers 0 to 1, with an accuracy of .900 [.880, .920]" in said
    assert "most frequent answer would reach .110" in said
    assert "At op1 the best layer reaches .120 [.100, .140], not clearly above that." in said


def isolated(*changes: tuple[float, float, float]) -> Heads:
    rows = [
        row(*change, operator="+", layer=layer, head=0, when="change", measure="faithfulness")
        for layer, change in enumerate(changes)
    ]
    return Heads(NOWHERE, np.zeros((0, 5, 5), np.float32), pd.DataFrame(rows), [])


def test_isolation_names_a_head_only_if_its_change_is_clear() -> None:
    said = circuit.head_roles(isolated((0.0, 0.0, 0.0), (-0.2, -0.3, -0.1))).says
    assert "for 1 of 2 heads" in said
    assert "most for L1H0 for +, where it changes by −.200 [−.300, −.100] (n = 50)" in said
    assert circuit.head_roles(isolated((0.0, 0.0, 0.0), (-0.2, -0.5, 0.1))).says.endswith("0 of 2 heads (by operator).")


def test_neurons_counts_what_is_clear() -> None:
    entries = [(5.0, -1.0, 9.0), (0.2, 0.1, 0.3), (-0.2, -0.3, -0.1), (0.0, -0.1, 0.1)]
    table = pd.DataFrame(
        [
            {**row(*e, operator="+", layer=3, neuron=i), "measure": "probability", "method": "exact", "median": 0.5}
            for i, e in enumerate(entries)
        ]
    )
    nothing = pd.DataFrame(columns=list(AGREEMENT))
    found = neurons.neuron_effects(NeuronEffects(table, nothing, nothing, 3))
    assert found.says.startswith(
        "Of 4 neurons from layer 3 on, all measured exactly, 1 have a mean effect clearly above"
    )
    assert (found.numbers["clearly above zero"], found.numbers["clearly below zero"]) == ({"+": 1}, {"+": 1})
    assert found.numbers["strongest neuron"] == {
        "+": "L3N0"
    }  # although its effect is not clear, and its interval says so
    assert found.numbers["its mean effect"] == {"+": mean(5.0, -1.0, 9.0)}
    half = NeuronEffects(table.assign(method=["exact", "exact", "atp", "atp"]), nothing, nothing, 3)
    assert "50% of them measured exactly, the others estimated" in neurons.neuron_effects(half).says
    assert neurons.screens_against_exact(half).says.startswith("Not compared")


def test_overlap() -> None:
    pairs = [("+", "-", 0.5), ("+", "*", 0.2), ("-", "*", 0.3)]
    table = pd.DataFrame([{"operator": a, "other": b, "iou": x, "shared": 1, "union": 2} for a, b, x in pairs])
    said = neurons.neuron_overlap(Overlap(table, NOWHERE, ["+", "-", "*"])).says
    assert said.endswith("pairs: .333. Most alike: + and − (.500); least: + and × (.200).")
    assert "only one operator" in neurons.neuron_overlap(Overlap(table[:0], NOWHERE, ["+"])).says


def knocked_out(gap: Mean, control: Mean) -> Knockout:
    measures = {
        "calibrated_associated": mean(0.7, 0.6, 0.8, 12),
        "calibrated_not_associated": mean(0.9, 0.85, 0.95, 12),
        "calibrated_difference": gap,
        "calibrated_vs_unmatched": control,
    }
    signs = [{"operator": "+", "criterion": "calibrated", "difference": "prompts", "above": 11, "below": 1, "p": 0.006}]
    return Knockout(NOWHERE, NOWHERE, summary_table({"+": measures}), pd.DataFrame(signs))


def test_knockouts() -> None:
    found = proof.knockout_by_heuristic(knocked_out(mean(0.2, 0.1, 0.3), mean(0.1, -0.1, 0.3)))
    assert "left at .700 [.600, .800] (n = 12) on prompts that satisfy the heuristic, and at .900" in found.says
    assert "For + prompts that satisfy it clearly lose more." in found.says
    assert "For + as many other top neurons matter neither clearly more nor clearly less" in found.says
    assert "By raw matches no heuristic has enough neurons" in found.says
    assert found.numbers["calibrated: heuristics whose prompts lose more, sign test"] == {"+": "11 of 12, p = .006"}
    other = proof.knockout_by_heuristic(knocked_out(mean(0.1, -0.1, 0.3), mean(-0.2, -0.3, -0.1))).says
    assert "lose more" not in other
    assert "For + there is no clear difference." in other
    assert "For + as many other top neurons clearly matter more to these prompts." in other
    nothing = Knockout(NOWHERE, NOWHERE, summary_table({}), NOWHERE)
    assert proof.knockout_by_heuristic(nothing).says == "No heuristic has enough neurons to be tested."


def test_knockouts_by_prompt() -> None:
    measures = {
        "calibrated_associated_25": mean(0.5, 0.4, 0.6),
        "calibrated_vs_random_25": mean(-0.2, -0.3, -0.1),
        "raw_associated_25": mean(0.9, 0.8, 1.0),
        "raw_vs_random_25": mean(0.0, -0.05, 0.05),
    }
    said = proof.prompt_knockout(PromptKnockout(NOWHERE, NOWHERE, summary_table({"/": measures}))).says
    assert "accuracy is left at .500 [.400, .600] (n = 50)" in said
    assert "For ÷ random neurons clearly matter more." in said
    assert said.endswith("For ÷ there is no clear difference.")
    assert "nothing to silence" in proof.prompt_knockout(PromptKnockout(NOWHERE, NOWHERE, NOWHERE)).says


def test_the_bag_alone() -> None:
    found = {"top": 0.98, "raw": 0.9, "calibrated": 0.6, "random": 0.58}
    rows = [
        {**row(value, value - 0.05, value + 0.02, operator="+"), "neurons": name, "kept": 10, "measure": measure}
        for name, value in found.items()
        for measure in ("faithfulness", "accuracy")
    ]
    finding = proof.bag_alone(Bag(pd.DataFrame(rows), NOWHERE))
    assert "faithfulness is .600 [.550, .620] (n = 50)" in finding.says
    assert finding.says.endswith("For + there is no clear difference.")
    assert finding.numbers["heuristic neurons, of top neurons"] == {"+": "10 of 10"}


def failed(neurons: Mean, push: Mean, area: Mean) -> Failures:
    named = {"associated_neurons": neurons, "contribution": push, "auc": area}
    table = summary_table({"*": {f"calibrated_{name}": value for name, value in named.items()}})
    worst = pd.DataFrame(
        [
            {
                "operator": "*",
                "op1": 7,
                "op2": 8,
                "answer": 56,
                "predicted": 54,
                "p_answer": 0.2,
                "logit_difference": 1.5,
            },
            {
                "operator": "*",
                "op1": 9,
                "op2": 9,
                "answer": 81,
                "predicted": 72,
                "p_answer": 0.1,
                "logit_difference": -1.0,
            },
        ]
    )
    return Failures(NOWHERE, NOWHERE, NOWHERE, worst, table)


def test_failures() -> None:
    result = failed(mean(-5.0, -8.0, -2.0), mean(1.0, -1.0, 3.0), mean(0.6, 0.45, 0.7))
    said = proof.failure_contributions(result).says
    assert "For × right prompts clearly have fewer associated neurons." in said
    assert "For × there is no clear difference in the contribution." in said
    assert "For × both together do not clearly tell right from wrong." in said
    sure = failed(mean(0.0, -1.0, 1.0), mean(2.0, 1.0, 3.0), mean(0.8, 0.7, 0.9))
    assert "For × both together clearly tell right from wrong." in proof.failure_contributions(sure).says
    worst = proof.worst_prompts(result).says
    assert worst.startswith("In 1 of 2 mistakes")
    assert worst.endswith("for 9×9=: it is 81, and 72 was given.")
    nothing = Failures(NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE)
    assert "No operator has both" in proof.failure_contributions(nothing).says
    assert "no wrongly answered prompt" in proof.worst_prompts(nothing).says


def test_training() -> None:
    accuracy = pd.DataFrame([row(x, x, x, operator="+", checkpoint=c) for c, x in (("step 0", 0.1), ("final", 0.9))])
    present = pd.DataFrame([row(0.6, 0.5, 0.7, operator="+", checkpoint="step 0", criterion="raw")])
    share = summary_table({"+": {"raw_mutual_share": mean(0.8, 0.7, 0.9, 1)}})
    found = proof.training_curves(Training(accuracy, present, NOWHERE, NOWHERE, share, ["step 0", "final"], ["key"]))
    assert "compared with: 1." in found.says
    assert "carry .800 [.700, .900] (n = 1); n counts checkpoints." in found.says
    assert "No earlier checkpoint has calibrated matches" in found.says
    assert found.numbers["raw: half of them first there at"] == {"+": "step 0"}
    assert found.numbers["accuracy at final"] == {"+": mean(0.9, 0.9, 0.9)}


def test_every_figure_has_a_finding() -> None:
    assert list(FINDINGS.keys() - {plate.name for plate in PLATES}) == []
    assert {plate.name for plate in PLATES} <= FINDINGS.keys()

"""Findings on made-up results claim no more than their intervals allow."""

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
from arithscope.experiments.mlp0 import FirstMlp
from arithscope.experiments.neurons import NeuronEffects
from arithscope.experiments.overlap import Overlap
from arithscope.experiments.probe import Probe
from arithscope.experiments.prompt_knockout import PromptKnockout
from arithscope.experiments.training import Training
from arithscope.figures.registry import all_figures
from arithscope.report.findings import causal, circuit, neurons, studies
from arithscope.report.findings.finding import all_findings
from arithscope.report.formatting import (
    clear_sign,
    comparisons_in,
    grouped,
    listed,
    means_of,
    number,
    overall,
    p_value,
    span,
    verdict,
    with_interval,
)
from arithscope.stats.intervals import Mean
from tests.strata import OF_WHOLE_NUMBERS

NAN = float("nan")
EMPTY = pd.DataFrame()


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
        (-1234.0, "−1,234"),
        (1234.5, "1,230"),
        (999.96, "1,000"),
        (12345.6, "12,300"),
        (999_499.5, "999,000"),
        (999_600.5, "1.0×10⁶"),
        (None, "–"),
        (NAN, "–"),
    ],
)
def test_number_format(x: float | None, expected: str) -> None:
    assert number(x) == expected


def test_means_and_lists() -> None:
    assert with_interval(mean(0.5, 0.25, 1.0)) == ".500 [.250, 1.00]"
    assert with_interval(mean(NAN, NAN, NAN, 0)) == "–"
    assert with_interval(mean(0.5, NAN, NAN)) == ".500"  # no interval
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
    text = verdict({"+": up, "-": down, "*": unclear, "/": up, "mean": up}, "it rises", "it falls")
    assert text == " For + and ÷ it rises; for − it falls; for × there is no clear difference."
    assert verdict({"+": up, "-": up}, "it rises", "it falls") == " For all operators it rises."
    assert verdict({"+": mean(0.0, 0.0, 0.0)}, "it rises", "it falls") == " For + there is no clear difference."
    assert verdict({"+": mean(NAN, NAN, NAN, 0)}, "up", "down", "nobody knows") == " For + nobody knows."
    assert verdict({}, "it rises", "it falls") == ""


LIKELY = mean(0.2, 0.01, 0.39)  # its interval excludes zero, with a p of .04


def test_verdicts_are_corrected_for_the_number_of_comparisons() -> None:
    zero, sure = mean(0.0, -0.1, 0.1), mean(0.5, 0.4, 0.6)
    assert verdict({"+": LIKELY}, "it rises", "it falls") == " For + it rises."
    assert (
        verdict({"+": LIKELY, "-": zero}, "it rises", "it falls") == " For all operators there is no clear difference."
    )
    assert (
        verdict({"+": LIKELY, "-": sure}, "it rises", "it falls") == " For all operators it rises."
    )  # .05/2, then .05/1
    assert (
        verdict({"+": LIKELY, "mean": zero}, "it rises", "it falls") == " For + it rises."
    )  # an average is no comparison
    assert "no clear difference" in verdict({"+": LIKELY}, "it rises", "it falls", comparisons=2)
    assert (clear_sign(LIKELY), clear_sign(LIKELY, 2), clear_sign(sure, 1000)) == (1, 0, 1)
    assert comparisons_in({"+": LIKELY, "-": mean(0.1, NAN, NAN, 1), "mean": sure}, {"+": zero}) == 2


def test_findings_correct_for_all_comparisons_of_their_figure() -> None:
    """In each, the interval of one number excludes zero, and there are others."""
    nothing = mean(0.0, -0.1, 0.1)
    assert "clearly lose more" not in causal.knockout_by_heuristic(knocked_out(LIKELY, nothing)).text
    changes = isolated((0.0, -0.1, 0.1), (-0.2, -0.39, -0.01))
    assert circuit.head_roles(changes).text.endswith("0 of 2 heads (by operator).")
    gap = [mean(x, x - d, x + d) for x, d in ((0.9, 0.01), (0.5, 0.38), (0.7, 0.01))]
    three = accuracies(dict(zip("+-*", gap, strict=True)))
    assert "No operator is clearly easier" in circuit.accuracy(three).text
    effects = [row(*e, operator=o, neuron=i) for o in "+-" for i, e in enumerate([(0.2, 0.01, 0.39), (0.0, -0.1, 0.1)])]
    table = pd.DataFrame(effects).assign(measure="probability", position="mean", median=0.0)
    mlp = FirstMlp(*(table if name == "effects" else EMPTY for name in FirstMlp.schema()))
    assert neurons.first_mlp_effects(mlp).numbers["clearly above zero"] == {"+": 0, "-": 0}


def test_missing_means_are_left_out() -> None:
    table = summary_table({"+": {"x": mean(0.5, 0.4, 0.6)}, "-": {"x": mean(NAN, NAN, NAN, 0)}})
    assert list(means_of(table, "x")) == ["+", "mean"]
    assert means_of(EMPTY, "x") == {}


def accuracies(means: dict[str, Mean]) -> Accuracy:
    """With two wrong predictions, one of which is no number."""
    prompts = pd.DataFrame({"correct": [True, False, False], "predicted": [3, 4, -1]})
    table = summary_table({o: {"accuracy": m, "baseline": mean(0.25, NAN, NAN)} for o, m in means.items()})
    over_prompts = row(0.8, 0.75, 0.85, operator="mean", measure="accuracy_over_prompts")
    return Accuracy(prompts, pd.concat([table, pd.DataFrame([over_prompts])], ignore_index=True), {})


def right_and_wrong(plus: Mean, times: Mean) -> Accuracy:
    return accuracies({"+": plus, "*": times})


def test_accuracy() -> None:
    text = circuit.accuracy(right_and_wrong(mean(0.9, 0.89, 0.91), mean(0.5, 0.45, 0.55))).text
    # The distances .01 and .05 add up to √(.01² + .05²) = .051.
    assert "It is highest for + and lowest for ×; the difference is .400 [.349, .451]." in text
    assert text.startswith("Accuracy on legal prompts is .700 [")
    assert "if operators weigh the same, and .800 [.750, .850] if prompts do, as in the paper." in text
    assert "most frequent answer would be right in .250" in text
    assert text.endswith("Wrong predictions that are not numbers: 1 of 2.")
    unclear = circuit.accuracy(right_and_wrong(mean(0.9, 0.8, 1.0), mean(0.85, 0.7, 0.95))).text
    assert "No operator is clearly easier than another." in unclear
    assert "highest for" not in unclear


def test_probes() -> None:
    places = {"op1": (0.1, 0.12), "last": (0.3, 0.9)}
    rows = [
        row(value, value - 0.02, value + 0.02, operator="all", position=position, layer=layer)
        for position, values in places.items()
        for layer, value in enumerate(values)
    ]
    text = circuit.probe_accuracy(Probe(pd.DataFrame(rows), {"all": 0.11}, 1, 1, 100, "last")).text
    assert "after layer 1 of layers 0 to 1, with an accuracy of .900 [.880, .920]" in text
    assert "most frequent answer alone gives .110" in text
    assert "At op1 the best layer reaches .120 [.100, .140], not clearly above that." in text


def isolated(*changes: tuple[float, float, float]) -> Heads:
    rows = [
        row(*change, operator="+", layer=layer, head=0, when="change", measure="faithfulness")
        for layer, change in enumerate(changes)
    ]
    return Heads(EMPTY, np.zeros((0, 5, 5), np.float32), pd.DataFrame(rows), [])


def test_isolation_names_a_head_only_if_its_change_is_clear() -> None:
    text = circuit.head_roles(isolated((0.0, 0.0, 0.0), (-0.2, -0.3, -0.1))).text
    assert "for 1 of 2 heads" in text
    assert "most for L1H0 (+), where it changes by −.200 [−.300, −.100] (n = 50)" in text
    assert circuit.head_roles(isolated((0.0, 0.0, 0.0), (-0.2, -0.5, 0.1))).text.endswith("0 of 2 heads (by operator).")


def test_only_clear_effects_of_neurons_are_counted() -> None:
    entries = [(5.0, -1.0, 9.0), (0.2, 0.1, 0.3), (-0.2, -0.3, -0.1), (0.0, -0.1, 0.1)]
    table = pd.DataFrame(
        [
            {**row(*e, operator="+", layer=3, neuron=i), "measure": "probability", "method": "exact", "median": 0.5}
            for i, e in enumerate(entries)
        ]
    )
    nothing = pd.DataFrame()
    halves = pd.DataFrame(
        [
            {"operator": "+", "measure": "probability", "ranking": by, "rank_correlation": r}
            for by, r in (("mean", 0.3), ("mean_abs", 0.9), ("mean+std", 0.8))
        ]
    )
    logits = halves[:2].assign(measure="logit", rank_correlation=[0.1, 0.7])
    found = neurons.neuron_effects(NeuronEffects(table, nothing, halves, logits, {"+": 3}, "cause"))
    start = "4 neurons from layer 3 on (all effects exact): 1 with a mean effect clearly above zero,"
    assert found.text.startswith(start)
    assert found.numbers["clearly above zero"] == {"+": 1}
    assert found.numbers["strongest neuron"] == {"+": "L3N0"}  # though its interval includes zero
    assert found.numbers["its mean effect"] == {"+": mean(5.0, -1.0, 9.0)}
    assert "correlate by .300 if neurons are ranked by their mean effect" in found.text
    assert (
        "by .900 if by mean absolute effect; rankings by effects on logits and on probabilities by .700" in found.text
    )
    estimated = table.assign(method=["exact", "exact", "atp", "atp"])
    half = NeuronEffects(estimated, nothing, halves, logits, {"+": 3}, "cause")
    assert "50% of effects exact, the others estimated" in neurons.neuron_effects(half).text
    assert neurons.attribution_against_exact(half).text.startswith("Not compared")


def test_overlap() -> None:
    pairs = [("+", "-", 0.5), ("+", "*", 0.2), ("-", "*", 0.3)]
    table = pd.DataFrame([{"operator": a, "other": b, "iou": x, "shared": 1, "union": 2} for a, b, x in pairs])
    unique = pd.DataFrame([row(x, x - 0.1, x + 0.1, operator=o) for o, x in (("+", 0.2), ("-", 0.3), ("*", 0.4))])
    text = neurons.neuron_overlap(Overlap(table, EMPTY, unique, ["+", "-", "*"])).text
    assert "operators: .333. No other operator has .300 [" in text
    assert text.endswith("Largest: + and − (.500); smallest: + and × (.200).")
    assert "only one operator" in neurons.neuron_overlap(Overlap(table[:0], EMPTY, EMPTY, ["+"])).text


def knocked_out(gap: Mean, control: Mean) -> Knockout:
    measures = {
        "calibrated_associated": mean(0.7, 0.6, 0.8, 12),
        "calibrated_not_associated": mean(0.9, 0.85, 0.95, 12),
        "calibrated_difference": gap,
        "calibrated_vs_unmatched": control,
    }
    signs = [{"operator": "+", "criterion": "calibrated", "difference": "prompts", "above": 11, "below": 1, "p": 0.006}]
    return Knockout(EMPTY, EMPTY, summary_table({"+": measures}), pd.DataFrame(signs))


def test_knockouts() -> None:
    found = causal.knockout_by_heuristic(knocked_out(mean(0.2, 0.1, 0.3), mean(0.1, -0.1, 0.3)))
    assert "after ablation is .700 [.600, .800] (n = 12) on prompts that satisfy the heuristic and .900" in found.text
    assert "For + prompts that satisfy it clearly lose more." in found.text
    assert "For + ablating as many other top neurons costs them neither clearly more nor clearly less." in found.text
    assert "By raw matches, no heuristic has enough neurons" in found.text
    assert found.numbers["calibrated: heuristics whose prompts lose more, sign test"] == {"+": "11 of 12, p = .006"}
    other = causal.knockout_by_heuristic(knocked_out(mean(0.1, -0.1, 0.3), mean(-0.2, -0.3, -0.1))).text
    assert "lose more" not in other
    assert "For + there is no clear difference." in other
    assert "For + ablating as many other top neurons clearly costs them more." in other
    nothing = Knockout(EMPTY, EMPTY, summary_table({}), EMPTY)
    assert causal.knockout_by_heuristic(nothing).text == "No heuristic has enough neurons to be tested."


def test_knockouts_by_prompt() -> None:
    measures = {
        "calibrated_associated_25": mean(0.5, 0.4, 0.6),
        "calibrated_vs_other_heuristics_25": mean(0.3, 0.2, 0.4),
        "calibrated_vs_random_25": mean(-0.2, -0.3, -0.1),
        "raw_associated_25": mean(0.9, 0.8, 1.0),
        "raw_vs_other_heuristics_25": mean(0.0, -0.05, 0.05),
        "raw_vs_random_25": mean(0.0, -0.05, 0.05),
    }
    text = causal.prompt_knockout(PromptKnockout(EMPTY, EMPTY, summary_table({"/": measures}))).text
    assert "leaves an accuracy of .500 [.400, .600] (n = 50)" in text
    assert "For ÷ random neurons clearly matter more." in text
    assert "with as many neurons of other heuristics it is higher by .300 [.200, .400] (n = 50)" in text
    assert "For ÷ associated neurons clearly matter more than those of other heuristics." in text
    assert text.endswith("For ÷ they matter neither clearly more nor clearly less than random ones.")
    assert (
        "no prompt has as many neurons of other heuristics"
        in causal.prompt_knockout(PromptKnockout(EMPTY, EMPTY, EMPTY)).text
    )


def test_the_bag_alone() -> None:
    found = {"top": 0.98, "raw": 0.9, "calibrated": 0.6, "random": 0.58, "none": 0.5}
    rows = [
        {**row(value, value - 0.05, value + 0.02, operator="+"), "neurons": name, "kept": 10, "measure": measure}
        for name, value in found.items()
        for measure in ("faithfulness", "accuracy")
    ]
    above = pd.DataFrame([row(0.2, 0.1, 0.3, operator="+", neurons="calibrated")])
    finding = causal.bag_alone(Bag(pd.DataFrame(rows), above, EMPTY))
    assert "faithfulness is .600 [.550, .620] (n = 50)" in finding.text
    assert "with no neuron .500 [.450, .520] (n = 50)" in finding.text
    assert "heuristic neurons add .200 [.100, .300] (n = 50)" in finding.text
    unclear = causal.bag_alone(Bag(pd.DataFrame(rows), above.assign(value=np.nan), EMPTY))
    assert "do not clearly add to that floor" in unclear.text
    assert finding.text.endswith("For + there is no clear difference.")
    assert finding.numbers["heuristic neurons, of top neurons"] == {"+": "10 of 10"}


def failed(neurons: Mean, push: Mean, area: Mean, p: float) -> Failures:
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
    regression = pd.DataFrame([{"operator": "*", "criterion": "calibrated", "term": "auc", "p": p}])
    return Failures(EMPTY, EMPTY, regression, worst, table)


def test_failures() -> None:
    result = failed(mean(-5.0, -8.0, -2.0), mean(1.0, -1.0, 3.0), mean(0.6, 0.45, 0.7), 0.04)
    text = causal.failure_contributions(result).text
    assert "For × correct prompts clearly have fewer associated neurons." in text
    assert "For × there is no clear difference in the contribution." in text
    assert "For × both together do not clearly predict correctness." in text
    found = causal.failure_contributions(failed(mean(0.0, -1.0, 1.0), mean(2.0, 1.0, 3.0), mean(0.8, 0.7, 0.9), 0.001))
    assert "For × both together clearly predict correctness." in found.text
    assert found.numbers["AUC as large with shuffled outcomes"] == {"*": "p = .001"}
    # Three comparisons: .02 is more than .05/3, whatever the AUC's own interval.
    unsure = failed(mean(0.0, -1.0, 1.0), mean(2.0, 1.0, 3.0), mean(0.8, 0.7, 0.9), 0.02)
    assert "do not clearly predict correctness" in causal.failure_contributions(unsure).text
    worse = failed(mean(0.0, -1.0, 1.0), mean(2.0, 1.0, 3.0), mean(0.4, 0.3, 0.5), 0.001)
    assert "do not clearly predict correctness" in causal.failure_contributions(worse).text
    worst = causal.worst_prompts(result, OF_WHOLE_NUMBERS).text
    assert worst.startswith("In 1 of 2 errors")
    assert worst.endswith("that of 9×9=: 81, where 72 was predicted.")
    nothing = Failures(EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)
    assert "No operator has both" in causal.failure_contributions(nothing).text
    assert "no incorrect prompts" in causal.worst_prompts(nothing, OF_WHOLE_NUMBERS).text


def test_training() -> None:
    accuracy = pd.DataFrame([row(x, x, x, operator="+", checkpoint=c) for c, x in (("step 0", 0.1), ("final", 0.9))])
    present = pd.DataFrame([row(0.6, 0.5, 0.7, operator="+", checkpoint="step 0", criterion="raw")])
    measures = {"raw_mutual_share": mean(0.8, 0.7, 0.9, 1), "raw_mutual_share_above_floor": mean(0.3, 0.2, 0.4, 1)}
    share = summary_table({"+": measures})
    of_other = {"criterion": "raw", "ablated": "other_heuristics", "size": 25}
    left = pd.DataFrame(
        [row(x, 0, 1, operator="+", checkpoint=c, **of_other) for c, x in (("step 0", 0.7), ("final", 0.4))]
    )
    found = studies.training_curves(
        Training(accuracy, present, EMPTY, EMPTY, left, share, ["step 0", "final"], ["key"])
    )
    assert "checkpoints compared: 1." in found.text
    assert "carry .800 [.700, .900] (n = 1) of the faithfulness" in found.text
    assert "and .300 [.200, .400] (n = 1) of what these add to the circuit with no neuron" in found.text
    without = "raw: accuracy left without 25 neurons of other heuristics per layer"
    assert found.numbers[f"{without}, first checkpoint"]["+"] == mean(0.7, 0, 1)
    assert found.numbers[f"{without}, final checkpoint"]["+"] == mean(0.4, 0, 1)
    assert "No earlier checkpoint has calibrated matches" in found.text
    assert found.numbers["raw: half of them first present at"] == {"+": "step 0"}
    assert found.numbers["accuracy at final"] == {"+": mean(0.9, 0.9, 0.9)}


def test_every_figure_has_a_finding() -> None:
    specs, findings = {spec.name: spec for spec in all_figures()}, all_findings()
    assert findings.keys() == specs.keys()
    assert all(set(results) <= set(specs[name].results) for name, (results, _) in findings.items())

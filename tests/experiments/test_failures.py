"""What distinguishes correct from incorrect prompts, by enumeration, and on neurons that decide the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.classify import CALIBRATED, CRITERIA, RAW, Classification
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.failures import LISTED_HEURISTICS, WORST, Failures, failures
from arithscope.experiments.patterns import ActivationMaps
from arithscope.prompts import legal_prompts, whole_numbers
from arithscope.settings import SampleSizes, Settings
from arithscope.stats.intervals import Mean, clear_signs
from tests.contexts import context
from tests.experiments.bags import Match, made_up, together
from tests.families import small
from tests.heuristics import brute
from tests.notes import RecordedNotes

LIMIT, MOST = 60, 20
SIZES = SampleSizes(discovery=5, evaluation=5, first_mlp=1, probe=1, failures=30)
SETTINGS = Settings(custom_sizes=SIZES)
TOP = [(1, n) for n in range(5)] + [(2, n) for n in range(3)]
RULES = ["op1 in [0, 10]", "op2 mod 3 = 1", "result ~ .1.", "op1 = op2"]


@pytest.fixture(scope="module")
def known() -> tuple[Accuracy, ActivationMaps, Classification, Failures]:
    """Random neurons for two operators; the prompts with the smallest contribution to the answer count as incorrect."""
    random = np.random.default_rng(0)
    frames, bags, fields, logits = [], [], [], []
    for operator in "+-":
        matches: list[Match] = [(*n, RULES[i % 4], 0.6 + 0.04 * i, i % 3 > 0) for i, n in enumerate(TOP[:6])]
        bags.append(made_up(operator, TOP, matches))
        field = random.standard_normal((len(TOP), MOST + 1, MOST + 1)).astype(np.float16)
        values = random.standard_normal((len(TOP), LIMIT)).astype(np.float32)
        prompts = legal_prompts(operator, MOST, LIMIT)
        attribution = (field[:6, prompts.op1, prompts.op2].astype(float) * values[:6, prompts.answer]).sum(0)
        right = attribution > np.quantile(attribution, 0.3)
        wrong = (prompts.answer + 1 + random.integers(0, 5, len(prompts))) % LIMIT
        frames.append(
            pd.DataFrame(
                {
                    "operator": operator,
                    "op1": prompts.op1,
                    "op2": prompts.op2,
                    "answer": prompts.answer,
                    "predicted": np.where(right, prompts.answer, np.where(random.random(len(right)) < 0.1, -1, wrong)),
                    "correct": right,
                    "whole": right,
                    "p_answer": random.random(len(right)).astype(np.float32),
                }
            )
        )
        fields.append(field)
        logits.append(values)
    studied = whole_numbers(MOST, LIMIT).as_json()
    accuracy = Accuracy(pd.concat(frames, ignore_index=True), pd.DataFrame(), studied)
    classify = together(*bags)
    patterns = ActivationMaps(classify.neurons, np.concatenate(fields), np.concatenate(logits), studied)
    return accuracy, patterns, classify, failures(context(small("llama"), SETTINGS, accuracy, patterns, classify))


def attributed(patterns: ActivationMaps, row: dict[str, Any], neuron: int, number: int) -> float:
    at = patterns.place(row["operator"], *TOP[neuron])
    return float(patterns.activations[at, row["op1"], row["op2"]]) * float(patterns.logits[at, number])


def test_features_by_enumeration(known: Any) -> None:
    _, patterns, classify, found = known
    assert len(found.prompts) == 2 * 2 * 30
    for row in found.prompts.iloc[::7].to_dict("records"):
        for criterion in CRITERIA:
            m = classify.matches[classify.matches.operator == row["operator"]]
            m = m if criterion == RAW else m[m.calibrated]
            neurons = {TOP.index(n) for n in zip(m.layer, m.neuron, strict=True)}
            associated = {
                TOP.index((layer, n))
                for layer, n, text in zip(m.layer, m.neuron, m.heuristic, strict=True)
                if brute.rule(text)(row["op1"], row["op2"], row["answer"])
            }
            assert row[f"{criterion}_associated_neurons"] == len(associated)
            for name, some in (("contribution", neurons), ("associated_contribution", associated)):
                want = sum(attributed(patterns, row, i, row["answer"]) for i in some)
                assert row[f"{criterion}_{name}"] == pytest.approx(want, abs=1e-6)


def test_the_sample_is_balanced_and_held_out(known: Any) -> None:
    """As many incorrect as correct prompts; the correct ones are used for nothing else."""
    accuracy, _, _, found = known
    for operator, split in split_prompts(accuracy, SIZES, 0).items():
        rows = found.prompts[found.prompts.operator == operator]
        assert rows.correct.sum() == (~rows.correct).sum() == 30
        used = {(a, b) for p in (split.discovery, split.evaluation) for a, b in zip(p.op1, p.op2, strict=True)}
        right = rows[rows.correct]
        assert not set(zip(right.op1, right.op2, strict=True)) & used
        assert not rows.duplicated(["op1", "op2"]).any()


def test_differences_and_regression(known: Any) -> None:
    """Here raw contributions decide whether a prompt is correct, and the number of associated neurons does not."""
    found = known[-1]
    gaps = found.differences.set_index(["operator", "criterion", "feature"])
    regression = found.regression.set_index(["operator", "criterion", "term"])
    numbers = [gaps.loc[(operator, RAW, "associated_neurons")] for operator in "+-"]
    assert clear_signs([Mean(few.value, few.low, few.high, int(few.n)) for few in numbers]) == [0, 0]
    for operator in "+-":
        rows = found.prompts[found.prompts.operator == operator]
        for criterion in CRITERIA:
            for feature in ("associated_neurons", "contribution"):
                values = rows[f"{criterion}_{feature}"]
                row = gaps.loc[(operator, criterion, feature)]
                assert row.value == pytest.approx(values[rows.correct].mean() - values[~rows.correct].mean())
                assert row.value == pytest.approx(row.correct - row.incorrect)
        gap = gaps.loc[(operator, RAW, "contribution")]
        assert gap.low > 0
        assert regression.loc[(operator, RAW, "auc")].value > 0.98
        assert regression.loc[(operator, RAW, "contribution")].low > 1
        assert regression.loc[(operator, CALIBRATED, "auc")].value < 1
        assert regression.loc[(operator, RAW, "auc")].p == 1 / 1001
        assert np.isnan(regression.loc[(operator, RAW, "contribution")].p)
    summary, area = found.summary()["+"], regression.loc[("+", RAW, "auc")]
    assert summary["raw_auc"] == {name: area[name] for name in ("value", "low", "high", "n")}
    assert summary["raw_auc_p"] == area.p == found.auc_p(RAW)["+"]


def test_shuffled_correctness_is_rarely_predicted(known: Any) -> None:
    """20 shuffles of which prompts are correct: as few have p ≤ .05 as chance allows, and the AUC is ½ on average."""
    accuracy, patterns, classify, _ = known
    rows, random = accuracy.prompts[accuracy.prompts.operator == "+"], np.random.default_rng(0)
    areas = []
    for seed in range(20):
        noise = replace(accuracy, prompts=rows.assign(correct=random.permutation(rows.correct)))
        settings = replace(SETTINGS, operators=("+",), seed=seed)
        found = failures(context(small("llama"), settings, noise, patterns, classify)).regression
        areas.append(found[found.term == "auc"].set_index("criterion").loc[list(CRITERIA)])
    for criterion in CRITERIA:
        value, p = np.array([[each.value[criterion], each.p[criterion]] for each in areas]).T
        assert (p <= 0.05).sum() <= binom.ppf(0.999, 20, 0.05)
        assert value.mean() == pytest.approx(0.5, abs=3 * value.std() / np.sqrt(20))


def test_the_worst_prompts(known: Any) -> None:
    accuracy, patterns, classify, found = known
    for operator in "+-":
        rows = accuracy.prompts[(accuracy.prompts.operator == operator) & ~accuracy.prompts.correct]
        rows = rows[rows.predicted >= 0].sort_values("p_answer").head(WORST)
        worst = found.worst[found.worst.operator == operator]
        assert worst.op1.tolist() == rows.op1.tolist()
        assert len(worst) == WORST
        m = classify.matches[(classify.matches.operator == operator) & classify.matches.calibrated]
        for row in worst.to_dict("records"):
            by_rule: dict[str, float] = {}
            for layer, n, text in zip(m.layer, m.neuron, m.heuristic, strict=True):  # one calibrated match each
                i = TOP.index((layer, n))
                gap = attributed(patterns, row, i, row["predicted"]) - attributed(patterns, row, i, row["answer"])
                by_rule[text] = by_rule.get(text, 0.0) + gap
            assert row["logit_difference"] == pytest.approx(sum(by_rule.values()), abs=1e-6)
            most = sorted((t for t in by_rule if by_rule[t] > 0), key=lambda t: -by_rule[t])[:LISTED_HEURISTICS]
            assert list(row["heuristics"]) == most
            assert list(row["logit_differences"]) == pytest.approx([by_rule[t] for t in most])


def test_a_model_that_is_always_right_has_no_failures(known: Any) -> None:
    accuracy, patterns, classify, _ = known
    right = replace(
        accuracy, prompts=accuracy.prompts.assign(correct=True, whole=True, predicted=accuracy.prompts.answer)
    )
    progress = RecordedNotes()
    found = failures(context(small("llama"), SETTINGS, right, patterns, classify, progress=progress))
    assert found.prompts.empty
    assert found.worst.empty
    assert len(progress.notes) == 2
    assert all("left out" in note for note in progress.notes)

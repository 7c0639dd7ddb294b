from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from arithscope.experiments.accuracy import Accuracy, accuracy, measure_accuracy
from arithscope.experiments.common.result import AVERAGE
from arithscope.experiments.means import MeanActivations, means
from arithscope.prompts import OPERATORS, Prompts, legal_prompts, operand_grid
from tests.contexts import compute, context
from tests.families import NUMBERS, small


@pytest.fixture(scope="module")
def result() -> Accuracy:
    return measure_accuracy(small("llama", "sdpa"), legal_prompts(OPERATORS, 12, NUMBERS))


@torch.no_grad()
def test_every_legal_prompt_against_a_full_pass(result: Accuracy) -> None:
    model = small("llama", "sdpa")
    prompts = legal_prompts("+-*/", 12, NUMBERS)
    frame = result.prompts
    assert len(frame) == len(prompts)
    for i in range(0, len(prompts), 17):
        row, alone = frame.iloc[i], prompts[[i]]
        logits = model.logits(model.encode(alone))[0]
        token = int(model.answers(alone))
        assert (row.op1, row.operator, row.op2) == (alone.op1[0], OPERATORS[alone.operator[0]], alone.op2[0])
        assert row.answer == alone.answer[0]
        assert row.correct == (int(logits.argmax()) == token)
        assert row.p_answer == pytest.approx(float(logits.softmax(-1)[token]), abs=1e-6)
        predicted = model.encoder.tokens([int(logits.argmax())])[0]
        assert row.predicted == (int(predicted) if predicted.isdigit() else -1)


@pytest.mark.parametrize("operators", ["+-*/", "-/"])
def test_the_sweep_of_mean_activations_gives_the_same_accuracy(operators: str) -> None:
    model = small("llama", "sdpa")
    alone = measure_accuracy(model, legal_prompts(operators, 12, model.limit))
    results = compute(context(model, operators=operators, max_operand=12, seed=3), means, accuracy)
    found, swept = results[Accuracy], results[MeanActivations]
    pd.testing.assert_frame_equal(found.prompts, alone.prompts, rtol=1e-4)
    pd.testing.assert_frame_equal(found.table, alone.table, rtol=1e-4)
    legal = operand_grid("+-*/", 12).legal(model.limit)
    assert np.isnan(swept.p_answer).tolist() == (~legal).tolist()


def test_table_and_summary(result: Accuracy) -> None:
    frame, summary = result.prompts, result.summary()
    assert list(summary) == [*OPERATORS, AVERAGE]
    for operator in OPERATORS:
        rows = frame[frame.operator == operator]
        entry = summary[operator]["accuracy"]
        assert entry["value"] == pytest.approx(rows.correct.mean())
        assert entry["n"] == len(rows)
        assert entry["low"] <= entry["value"] <= entry["high"]
    values = [summary[o]["accuracy"]["value"] for o in OPERATORS]
    assert summary[AVERAGE]["accuracy"]["value"] == pytest.approx(np.mean(values))
    assert summary[AVERAGE]["accuracy_over_prompts"]["value"] == pytest.approx(frame.correct.mean())
    assert summary[AVERAGE]["accuracy_over_prompts"]["value"] != summary[AVERAGE]["accuracy"]["value"]


def test_the_baseline_of_division_is_always_0(result: Accuracy) -> None:
    quotients = [a // b for a in range(13) for b in range(1, 13)]
    assert result.summary()["/"]["baseline"]["value"] == pytest.approx(quotients.count(0) / len(quotients))
    products = [a * b for a in range(13) for b in range(13) if a * b < NUMBERS]
    most = max(products.count(x) for x in products)
    assert result.summary()["*"]["baseline"]["value"] == pytest.approx(most / len(products))


def test_correct_prompts(result: Accuracy) -> None:
    rows = result.prompts[result.prompts.correct & (result.prompts.operator == "+")]
    assert len(rows)
    got: Prompts = result.correct("+")
    assert got.op1.tolist() == rows.op1.tolist()
    assert set(got.operator.tolist()) == {0}
    assert len(result.correct()) == result.prompts.correct.sum()

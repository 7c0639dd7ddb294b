"""Patching for several answer steps at once gives each step what it gets by itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from arithscope.experiments.accuracy import Accuracy, accuracy_of
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.common.shared_steps import shared_steps
from arithscope.experiments.common.stage import Context
from arithscope.experiments.localize import SharedLocalization, localize, localize_steps
from arithscope.experiments.mlp0 import ALL_POSITIONS, _effects, mlp0_steps
from arithscope.experiments.whole_answers import WholeAnswers, right_values, whole_answers
from arithscope.models.engine.full_pass import FullPass
from arithscope.models.model import Model
from arithscope.prompts import Layout, Prompts, Stratum, counterfactuals, random_source
from arithscope.settings import SampleSizes
from tests.contexts import context
from tests.families import FAMILY_AND_ATTENTION, STRATA, small

SIZES = SampleSizes(discovery=4, evaluation=3, first_mlp=2, probe=50, selection=3)
FEW = {
    "digits": Stratum((10, 29), (85, 99), (100, 128), Layout((1, 0), (1, 0), (2, 1, 0))),
    "three_chunks": Stratum((1000, 1019), (10_990, 11_009), (11_990, 12_028), Layout((1, 0), (2, 0), (2, 0))),
}
KINDS = [
    ("llama", "sdpa", "three_chunks"),
    *((family, attention, "digits") for family, attention in FAMILY_AND_ATTENTION),
]


@cache
def at_last(family: str, attention: str, numbers: str) -> tuple[Model, WholeAnswers]:
    """A model at its last answer step, and its answers as if all were right."""
    model = small(family, attention, numbers=numbers).at(FEW[numbers].every_step()[-1])
    found = whole_answers(context(model, operators=("+",)))
    right = right_values(found.stratum, found.prompts.answer.to_numpy()).astype(np.int32)
    return model, replace(found, predicted=right)


def accuracies(model: Model, answers: WholeAnswers) -> dict[int, Accuracy]:
    steps = [view.encoder.step for view in model.every_step()]
    return {step: accuracy_of(answers.means_at(step), ["+"]) for step in steps if "+" not in answers.left_out(step)}


def joined(model: Model, answers: WholeAnswers, **changes: Any) -> Context:
    return context(model, None, answers, operators=("+",), custom_sizes=SIZES, **changes)


def close(shared: pd.DataFrame, alone: pd.DataFrame) -> None:
    """Equal, but for rounding: some effects are relative to a logit near 0."""
    assert list(shared) == list(alone)
    assert len(shared) == len(alone)
    for name in shared:
        if shared[name].dtype.kind == "f":
            np.testing.assert_allclose(shared[name], alone[name], rtol=1e-2, atol=2e-4, err_msg=name)
        else:
            assert shared[name].tolist() == alone[name].tolist(), name


@pytest.mark.parametrize(("family", "attention", "numbers"), KINDS)
def test_each_step_has_the_effects_that_it_has_alone(family: str, attention: str, numbers: str) -> None:
    model, answers = at_last(family, attention, numbers)
    components = localize_steps(joined(model, answers))
    first_mlp = mlp0_steps(joined(model, answers))
    steps = accuracies(model, answers)
    assert set(components.effects.step) == set(steps)
    for step, accuracy in steps.items():
        ctx = context(model.every_step()[step - 1], None, accuracy, operators=("+",), custom_sizes=SIZES)
        given = replace(ctx, results=ctx.results.only((Accuracy,)))
        given.results.add(components)
        alone, taken = localize(ctx), localize(given)
        close(taken.effects, alone.effects)
        pd.testing.assert_frame_equal(taken.prompts, alone.prompts)
        own = first_mlp.effects[first_mlp.effects.step == step].drop(columns="step").reset_index(drop=True)
        close(own, _effects(ctx, split_prompts(accuracy, SIZES, 0), lambda n: None))
        assert set(own.position) == {*[name for name, _ in ctx.model.positions.names[:-1]], ALL_POSITIONS}


def test_the_slow_engine_finds_the_same() -> None:
    model, answers = at_last("llama", "sdpa", "digits")
    slow = model.with_engine(FullPass())
    for stage in (localize_steps, mlp0_steps):
        close(stage(joined(model, answers)).effects, stage(joined(slow, answers)).effects)


def test_steps_share_prompts_whose_whole_answers_are_right() -> None:
    """Prompts that are wrong at one step are in no step's discovery, selection or evaluation prompts, but held out where the
    step itself is right."""
    model, answers = at_last("llama", "sdpa", "digits")
    predicted = answers.predicted.copy()
    wrong = np.flatnonzero(np.arange(predicted.shape[1]) % 3 == 0)
    predicted[1, wrong] = (predicted[1, wrong] + 1) % 10
    answers = replace(answers, predicted=predicted)
    [shared] = shared_steps(joined(model, answers)).values()
    assert list(shared.steps) == [2, 3]  # the first digit of all these sums is 1
    rows = answers.prompts.iloc[wrong].query("operator == '+'")
    bad = set(zip(rows.op1, rows.op2, strict=True))

    def operands(prompts: Prompts) -> set[tuple[int, int]]:
        return set(zip(prompts.op1.tolist(), prompts.op2.tolist(), strict=True))

    for step, accuracy in accuracies(model, answers).items():
        split = split_prompts(accuracy, SIZES, 0)["+"]
        assert operands(split.discovery) == operands(shared.split.discovery)
        for some in (split.discovery, split.counterfactuals, split.selection, split.evaluation):
            assert not operands(some) & bad
        assert len(operands(split.held_out) & bad) == (len(bad) if step == 3 else 0)
        for each in (2, 3):  # counterfactuals differ at every step
            place = answers.stratum.at_step(each).asked
            assert (place.of(split.discovery.answer) != place.of(split.counterfactuals.answer)).all()


def test_steps_with_few_whole_answers_have_prompts_of_their_own() -> None:
    model, answers = at_last("llama", "sdpa", "digits")
    predicted = answers.predicted.copy()
    some = np.arange(predicted.shape[1]) % 5 < 2  # one of the two steps is wrong in every prompt
    predicted[1, some] = (predicted[1, some] + 1) % 10
    predicted[2, ~some] = (predicted[2, ~some] + 1) % 10
    answers = replace(answers, predicted=predicted)
    assert set(accuracies(model, answers)) == {2, 3}
    assert shared_steps(joined(model, answers)) == {}
    for stage in (localize_steps, mlp0_steps):
        found = stage(joined(model, answers)).effects
        assert found.empty
        assert list(found)
    accuracy = accuracies(model, answers)[2]
    ctx = context(model.every_step()[1], None, accuracy, operators=("+",), custom_sizes=SIZES)
    alone = localize(ctx)
    ctx.results.add(localize_steps(joined(model, answers)))
    pd.testing.assert_frame_equal(localize(ctx).effects, alone.effects)
    assert len(split_prompts(accuracy, SIZES, 0)["+"].discovery) == SIZES.discovery


def test_estimated_effects_are_not_shared() -> None:
    model, answers = at_last("llama", "sdpa", "digits")
    assert mlp0_steps(joined(model, answers, neurons="atp+exact")).effects.empty


def test_counterfactuals_that_cannot_differ_everywhere_differ_in_their_result() -> None:
    stratum = STRATA["digits"].at_step(3)
    pool = stratum.prompts("+")
    pool = pool[(pool.answer // 10 % 10 == 0) | (pool.answer == 119)]  # another tens digit: only with 9 units
    places = [each.asked for each in stratum.every_step()]
    nines = pool[pool.answer == 109]
    drawn = counterfactuals(nines, pool, random_source(0, "x"), places)
    assert (drawn.result != nines.result).all()
    others = pool[pool.answer == 103]
    drawn = counterfactuals(others, pool, random_source(0, "x"), places)
    assert set(drawn.answer) == {119}


def test_results_are_declared_as_shared() -> None:
    assert SharedLocalization.columns("effects")[:2] == ["operator", "step"]

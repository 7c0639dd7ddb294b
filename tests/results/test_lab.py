"""Experiments in memory: the numbers of a run, samples from given prompts, and no stage computed twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import arithscope
from arithscope import Lab
from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.stage import Stage
from arithscope.models.load import load
from arithscope.pipeline import runner
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import compute_stage
from arithscope.prompts import OPERATORS, Prompts
from arithscope.results import lab as lab_module
from arithscope.results.explanation import explain_prompt
from arithscope.settings import SampleSizes
from arithscope.utils.progress import Silent
from tests.conftest import SMALL_SAMPLES, smaller
from tests.families import small
from tests.hand_built import ADDING_LAYER, OPERANDS, copy_and_add
from tests.results.test_run import assert_same

FEW = SampleSizes(
    discovery=5, evaluation=6, first_mlp=2, probe=60, selection=6, draws=2, permutations=2, prompt_knockout=4
)
ARGUMENTS: dict[str, Any] = {"operators": "+", "max_operand": 5, "neurons": "atp", "topk": 10}


def rows(prompts: Prompts) -> set[tuple[int, str, int]]:
    return {(a, OPERATORS[o], b) for a, o, b in zip(prompts.op1, prompts.operator, prompts.op2, strict=True)}


def test_a_lab_gives_the_numbers_of_a_run(tmp_path: Path) -> None:
    """Every stage but the two slowest, which work like the others."""
    stages = [stage.name for stage in all_stages() if not stage.on_request and stage.name not in ("mlp0", "knockout")]
    runner.run_stages(copy_and_add(), smaller(**ARGUMENTS), tmp_path / "run", stages, Silent())
    run, lab = arithscope.open(tmp_path / "run"), Lab(copy_and_add(), sizes=SMALL_SAMPLES, **ARGUMENTS)
    for name in reversed(stages):  # each with all that it needs
        assert_same(lab.result(name), run.result(name))
    assert_same(lab.explain("5+4="), explain_prompt(copy_and_add(), run.classify, run.prompt("5+4="), "calibrated", 0))
    own = run.topk.top[run.topk.top.layer == ADDING_LAYER].neuron.iloc[0]
    found, want = (x.neuron(ADDING_LAYER, own, "+") for x in (lab, run))
    assert repr(found) == repr(want)
    assert found.activation_map is not None
    assert found.activation_map.tokens[0] == sum(divmod(own, OPERANDS))


def test_samples_are_drawn_from_the_given_prompts() -> None:
    everything = arithscope.legal_prompts("+", 30, 61)
    chosen = everything[(everything.op1 % 2 == 0) & (everything.op2 > 20)]
    lab = Lab(copy_and_add(), chosen, FEW, neurons="atp")
    assert (lab.operators, lab.stratum.op1) == (("+",), (0, 30))
    assert rows(lab.accuracy.correct()) == rows(chosen)
    used = lab.localize.prompts
    assert len(used) == FEW.discovery
    for names in (("op1", "operator", "op2"), ("counterfactual_op1", "counterfactual_operator", "counterfactual_op2")):
        assert set(used[list(names)].itertuples(index=False, name=None)) <= rows(chosen)
    assert set(lab.localize.effects.n) == {FEW.discovery}
    curve = lab.circuit.curve
    assert set(curve[(curve.circuit == "found") & (curve.measure == "accuracy")].n) == {FEW.evaluation}
    assert set(lab.neurons.effects.n) == {FEW.discovery}
    assert lab.probe.training_prompts == 0.8 * FEW.probe
    assert lab.means.stratum.op2 == (0, 30)  # means are taken over the whole grid, as in a run


def test_prompts_of_several_operators_and_larger_settings() -> None:
    prompts = arithscope.legal_prompts("-+", 5, 40)[::2]
    lab = Lab(small("llama", "sdpa"), prompts, max_operand=20)
    assert (lab.operators, lab.stratum.op1) == (("+", "-"), (0, 20))
    assert len(lab.accuracy.prompts) == len(prompts)
    single = Prompts(np.array([0, 0]), np.array([0, 1]), np.array([0, 0]))
    assert Lab(small("llama", "sdpa"), single).stratum.op1 == (0, 1)  # the least that can be studied


def test_duplicate_prompts_count_once() -> None:
    """Else a prompt could be in both discovery and evaluation."""
    prompts = arithscope.legal_prompts("+", 9, 61)
    twice = prompts[np.concatenate([np.arange(100), np.arange(50)])]
    assert_same(Lab(copy_and_add(), twice).accuracy, Lab(copy_and_add(), prompts).accuracy)


def test_stages_are_computed_once_and_only_if_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def counted(stage: Stage, *arguments: Any) -> Any:
        computed.append(stage.name)
        return compute_stage(stage, *arguments)

    monkeypatch.setattr(lab_module, "compute_stage", counted)
    lab = Lab(copy_and_add(), sizes=FEW, **ARGUMENTS)
    assert lab.circuit is lab.circuit
    assert computed == ["means", "accuracy", "localize", "circuit"]
    _ = lab.localize
    assert computed == ["means", "accuracy", "localize", "circuit"]
    computed.clear()
    known = {name: lab.result(name) for name in ("means", "accuracy", "circuit")}
    other = Lab(copy_and_add(), sizes=FEW, known=known, **ARGUMENTS)
    assert other.circuit is lab.circuit
    assert_same(other.heads, lab.heads)
    assert computed == ["heads", "heads"]


def test_sizes_set_the_samples() -> None:
    some, more = (Lab(copy_and_add(), sizes=replace(FEW, discovery=n), **ARGUMENTS) for n in (5, 8))
    assert (len(some.localize.prompts), len(more.localize.prompts)) == (5, 8)
    assert (some.settings.sizes.discovery, Lab(copy_and_add(), **ARGUMENTS).settings.sizes.discovery) == (5, 50)


KNOWN = Accuracy(pd.DataFrame(), pd.DataFrame(), {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompts": Prompts(*np.zeros((3, 0)))}, "no prompts to study"),
        ({"prompts": Prompts(*np.array([[1], [1], [2]]))}, "1-2= is not a legal prompt"),
        ({"prompts": Prompts(*np.array([[6], [3], [0]]))}, "6/0= is not a legal prompt"),
        ({"prompts": Prompts(*np.array([[1], [0], [40]]))}, "need another study; use --max-operand 39"),
        ({"prompts": Prompts(*np.array([[7], [0], [2]])), "max_operand": 5}, "operands up to 5; leave these settings out"),
        ({"prompts": Prompts(*np.array([[7], [0], [2]])), "operators": "-"}, "beyond operators -"),
        ({"known": {"lunch": 1}}, "no stage 'lunch'; choose from means"),
        ({"known": {"training": 1}}, "no stage 'training'"),
        ({"prompts": Prompts(*np.array([[7], [0], [2]])), "known": {"accuracy": KNOWN}}, "exclude each other"),
        ({"max_operand": 40}, "use --max-operand 39"),
        ({"max_operand": 5, "topk": 49}, "the 48 neurons"),
        ({"operators": "%", "max_operand": 5}, "not an operator"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Lab(small("llama", "sdpa"), **given)


def test_unknown_stages_are_refused() -> None:
    lab = Lab(small("llama", "sdpa"), max_operand=5)
    with pytest.raises(UserError, match="no stage 'lunch'; choose from means, accuracy"):
        lab.result("lunch")
    with pytest.raises(UserError, match="'training' needs a run folder"):
        _ = lab.training


def test_the_repr_of_a_lab() -> None:
    lab = Lab(load("tiny-llama"), operators="+-", max_operand=5)
    assert "operators + -, computed: nothing yet" in repr(lab)
    _ = lab.accuracy
    assert "computed: means, accuracy)" in repr(lab)
    assert len(repr(lab)) < 500

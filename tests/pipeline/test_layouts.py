"""A study of numbers of several tokens: a run for each layout, and in it one for each answer step."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import arithscope
from arithscope.errors import UserError
from arithscope.experiments.means import means
from arithscope.models.load import load
from arithscope.models.model import Model
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.study import study
from arithscope.results.run import Run, runs_in
from arithscope.settings import Settings
from tests.command_line import call
from tests.conftest import SMALL_SAMPLES
from tests.contexts import context
from tests.notes import RecordedNotes

OF_A_STEP = [stage.name for stage in all_stages() if not stage.on_request]
JOINED = ["whole_answers", "carries", "digit_probes"]
OF_SEVERAL_STEPS = ["localize_steps", "mlp0_steps", "step_overlap"]


@pytest.fixture(scope="module")
def digits() -> Model:
    return load("tiny-digits")


def test_every_layout_and_step_has_a_run(small_layouts: Path) -> None:
    """2-2-3 has no first step, as it asks for 1 in all prompts; 2-2-1 has one step, so that there is nothing to share."""
    runs = {path.name: Run(path) for path in runs_in(small_layouts)}
    assert {name: [*run.steps] for name, run in runs.items()} == {"2-2-1": [1], "2-2-2": [1, 2], "2-2-3": [2, 3]}
    assert {name: run.operators for name, run in runs.items()} == {"2-2-1": ["-"], "2-2-2": ["+", "-"], "2-2-3": ["+"]}
    for name, run in runs.items():
        assert run.stages == JOINED + OF_SEVERAL_STEPS * (len(run.steps) > 1), name
        for step, own in run.steps.items():
            assert own.stages == OF_A_STEP
            assert own.stratum == run.stratum.at_step(step)


def test_steps_have_the_answers_of_the_whole_sweep(small_layouts: Path) -> None:
    for run in map(Run, runs_in(small_layouts)):
        answers = run.whole_answers
        for step, own in run.steps.items():
            measured = own.accuracy.prompts
            studied = answers.prompts.operator.isin(own.operators)
            np.testing.assert_array_equal(measured.correct, answers.right()[step - 1][studied])
            np.testing.assert_allclose(np.log(measured.p_answer), answers.log_p[step - 1][studied], atol=1e-4)
        both = np.logical_and.reduce(answers.right())
        np.testing.assert_array_equal(answers.prompts.correct, both)


def test_steps_have_the_means_that_they_have_alone(small_layouts: Path, digits: Model) -> None:
    run = Run(small_layouts / "2-2-2").steps[2]
    alone, shared = means(context(digits.at(run.stratum), operators=("+", "-"))), run.means
    for name in ("heads", "neurons", "p_answer"):
        np.testing.assert_allclose(getattr(shared, name), getattr(alone, name), atol=2e-5)


def test_a_second_study_computes_nothing_again(small_layouts: Path, tmp_path: Path, digits: Model) -> None:
    folder = Path(shutil.copytree(small_layouts, tmp_path / "again"))
    before = {path: path.read_bytes() for path in folder.rglob("stage.json")}
    settings = Settings(("+", "-"), operands=((40, 69), (20, 59)), topk=16, custom_sizes=SMALL_SAMPLES)
    study(digits, settings, folder)
    assert {path: path.read_bytes() for path in folder.rglob("stage.json")} == before


def test_other_operands_need_another_folder(small_layouts: Path, tmp_path: Path, digits: Model) -> None:
    folder = Path(shutil.copytree(small_layouts, tmp_path / "other"))
    settings = Settings(("+",), operands=((30, 69), (20, 59)), topk=16, custom_sizes=SMALL_SAMPLES)
    with pytest.raises(UserError, match="--overwrite"):
        study(digits, settings, folder)


def test_what_is_left_out_is_said(tmp_path: Path, digits: Model) -> None:
    progress = RecordedNotes()
    settings = Settings(("+",), operands=((60, 69), (50, 59)), custom_sizes=SMALL_SAMPLES)
    [run] = study(digits, settings, tmp_path / "run", ["whole_answers", "accuracy"], progress=progress)
    assert run.path.name == "2-2-3"
    assert "+ is left out: 1 is asked for in all prompts" in progress.notes
    assert [*Run(run.path).steps] == [2, 3]


def test_an_explanation_names_the_steps(small_layouts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert call("explain", small_layouts / "2-2-2", "45 + 38 =") == 0
    output = capsys.readouterr().out
    assert "45 + 38 = 8·3: tens, units" in output
    assert [*Run(small_layouts / "2-2-2").explain_steps("45+38")] == [1, 2]


def test_neurons_of_a_step(small_layouts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = arithscope.open(small_layouts / "2-2-2").steps[2]
    layer, neuron = run.patterns.neurons[["layer", "neuron"]].iloc[0].tolist()
    found = run.neuron(layer, neuron, "+")
    assert found.activation_map is not None
    assert found.activation_map.activations.shape == (30, 40)
    capsys.readouterr()
    assert call("neuron", small_layouts / "2-2-2", layer, neuron, "--step", "2") == 0
    assert f"L{layer}N{neuron}" in capsys.readouterr().out

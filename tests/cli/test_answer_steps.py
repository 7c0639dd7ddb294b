"""Commands that read a run, given a layout's folder, that of one of its answer steps, or a folder around them."""

from __future__ import annotations

from pathlib import Path

import pytest

import arithscope
from tests.command_line import call, error_message
from tests.pipeline.tree import tree

# What each command gets after the name of the run.
COMMANDS = {
    "neuron": ("2", "5"),
    "verify": (),
    "report": (),
    "compare": ("tests",),  # a second folder, which is not looked at
    "explore": ("--no-browser", "--port", "0"),
    "explain": ("85+68",),
}
READS_SEVERAL = {"report", "explore", "explain"}  # the runs of all layouts


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in READS_SEVERAL])
def test_a_folder_of_layouts_is_refused_with_their_names(
    command: str, small_steps_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = error_message(capsys, command, small_steps_run, *COMMANDS[command])
    assert f"There is no run at {small_steps_run} itself, but there are runs inside (2-2-3)" in text
    assert f"name one: {small_steps_run / '2-2-3'}." in text


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("2-2-3/steps", "is only a part of a run; name the run folder"),
        ("2-2-3/steps/1", "There is no run at"),  # the step that was left out
        ("3-3-3", "There is no run at"),
    ],
)
def test_places_without_a_run_are_refused(
    command: str, place: str, reason: str, small_steps_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(small_steps_run)
    assert reason in error_message(capsys, command, small_steps_run / place, *COMMANDS[command])
    assert tree(small_steps_run) == before


@pytest.mark.parametrize(
    ("place", "options", "reason"),
    [
        ("2-2-3", (), "has several answer steps; choose one with --step (studied: 2, 3)."),
        ("2-2-3", ("--step", "1"), "has no answer step 1; choose one with --step (studied: 2, 3)."),
        ("2-2-3", ("--step", "-1"), "has no answer step -1"),
        ("2-2-3", ("--step", "two"), "should be a valid integer"),
        ("2-2-3/steps/2", ("--step", "2"), "holds no answer steps, so there is no step 2; leave out --step."),
    ],
)
def test_neuron_needs_a_step(
    place: str, options: tuple[str, ...], reason: str, small_steps_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in error_message(capsys, "neuron", small_steps_run / place, "2", "5", *options)


def test_a_neuron_of_a_step_is_shown_by_either_name(small_steps_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = small_steps_run / "2-2-3"
    top = arithscope.open(layout).steps[2].patterns.neurons.iloc[0]
    shown = []
    for arguments in ((layout, top.layer, top.neuron, "--step", 2), (layout / "steps" / "2", top.layer, top.neuron)):
        assert call("neuron", *map(str, arguments)) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert f"L{top.layer}N{top.neuron} of tiny-digits" in shown[0]


@pytest.mark.parametrize("written", ["85+68=", "85 + 68 =", " 85+ 68", "85+68"])
def test_prompts_are_explained_however_they_are_spaced(
    written: str, small_steps_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("explain", small_steps_run, written) == 0
    output = capsys.readouterr().out
    assert "85+68=1" in output  # the second step is given the first token
    assert "85+68=15" in output


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("5+68=", "5 is below 60, the smallest operand here"),
        ("85+99", "99 is beyond 89, the largest operand here"),
        (f"85+{'9' * 400}", "is beyond 89, the largest operand here"),
        ("85−68", "The operator - was not studied in this run; choose from +."),
        ("085+68", "'085' is not a whole number"),
        ("85+68=153", "'68=153' is not a whole number"),
        ("85 plus 68", "has none of the operators"),
        ("−85+68", "In '−85+68', an operand is missing"),
        ("", "The prompt is empty"),
    ],
)
@pytest.mark.parametrize("place", ["", "2-2-3", "2-2-3/steps/2"])
def test_explain_refuses(
    prompt: str, reason: str, place: str, small_steps_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in error_message(capsys, "explain", small_steps_run / place, prompt)

"""A study of numbers of several tokens: each layout of tokens has a run folder, and in it a run folder for each answer step.

    OUT/2-2-3/              whole answers, and what joins the steps: the stages with `joins_steps`
    OUT/2-2-3/steps/1/      the study of the first token of the answer: all stages of a study of whole numbers
    OUT/2-2-3/steps/2/      …

1. `whole_answers` runs every prompt with its answer once. Accuracy and mean activations of all steps come from this sweep; the
   other stages run step by step, as each asks for another token.
2. An operator is left out of a step that asks for the same token in all its prompts (the first digit of all three-digit sums
   of two-digit numbers is 1), or that the model gets right no more often than one fixed answer would be.
3. The stages that join the steps run last.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from arithscope.errors import UserError
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common.result import Result
from arithscope.experiments.common.samples import TooFewCorrect
from arithscope.experiments.common.stage import Stage
from arithscope.experiments.step_overlap import StepResults
from arithscope.experiments.topk import TopK
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.models.layouts import find_strata, stratum_names
from arithscope.models.model import Model
from arithscope.pipeline.configuration import stored_stratum
from arithscope.pipeline.registry import all_stages, chosen_stages, stage_named, stage_of
from arithscope.pipeline.runner import Given, check_folder
from arithscope.pipeline.store import MANIFEST, RunFolder, RunWriter, SchemaMismatch, plain, runs_inside
from arithscope.prompts import Operands, Stratum, operands_of_digits
from arithscope.settings import Settings
from arithscope.utils.files import child
from arithscope.utils.progress import Progress

STEPS = "steps"  # subfolder of a layout's run, with a run folder for each answer step
DEFAULT_DIGITS = "2"  # studied where the tokenizer cuts numbers into digits, unless operands are named

Shared = Mapping[str, Callable[[], Result]]


# Studies one answer step. Stages in the fourth argument are not computed again; stages may be given results in the last one.
StudyStep = Callable[[Model, Settings, Path, Shared, Sequence[Given]], RunWriter]
# Runs stages that join answer steps into a layout's run folder, with these results of the steps.
RunJoined = Callable[[Model, Settings, Path, Sequence[str], Sequence[Given]], RunWriter]


def operands_of(model: Model, settings: Settings, progress: Progress) -> Operands | None:
    """The operands of a study of numbers of several tokens; None for one of whole numbers. Where only digits are single tokens
    and no other operands are named, these are numbers of two digits."""
    if settings.operands is None and model.limit == 10 and settings.max_operand == Settings.max_operand:
        progress.note(
            "The tokenizer cuts numbers into digits, so operands have two digits; choose others with --digits."
        )
        return operands_of_digits(DEFAULT_DIGITS)
    return settings.operands


def study_layouts(
    model: Model,
    settings: Settings,
    operands: Operands,
    out: Path,
    stages: Sequence[str] | None,
    study_step: StudyStep,
    run_joined: RunJoined,
    progress: Progress,
    overwrite: bool,
) -> list[RunWriter]:
    """Study every layout of a model's numbers.

    Args:
        model: The model.
        settings: What to study, and how.
        operands: Ranges of op1 and op2.
        out: The folder for the layouts' run folders.
        stages: Names of stages to run, with all that they need; None runs the default ones.
        study_step: Studies one answer step.
        run_joined: Runs stages that join the steps.
        progress: Where progress is shown.
        overwrite: Whether results of other settings in these folders may be replaced.

    Returns:
        The run folder of each layout.

    Raises:
        UserError: If operands are cut in several ways, no layout has enough prompts, any of the folders cannot be written, or
            the model gets almost no prompt of any layout right; or as `run_stages` does.
    """
    strata = find_strata(model.encoder, settings.operators, operands)
    layouts = []
    for name, stratum in zip(stratum_names(strata), strata, strict=True):
        operators = tuple(o for o in settings.operators if len(stratum.prompts(o)))
        own = replace(settings, operands=operands, operators=operators)
        layouts.append((model.at(stratum.every_step()[-1]), own, child(out, name), stratum.described()))
    if not overwrite:
        _refuse_other_operands(out, operands)
        for asked, own, folder, _ in layouts:  # before anything is computed
            _check_folders(asked, own, folder)
    runs, refused = [], []
    for asked, own, folder, described in layouts:
        progress.note(f"layout {folder.name}: operands {described}, {' '.join(own.operators)}")
        run, too_few = _study_layout(asked, own, folder, stages, study_step, run_joined, progress)
        runs.append(run)
        refused.append(too_few)
    if all(refused):
        raise TooFewCorrect
    return runs


def _refuse_other_operands(out: Path, operands: Operands) -> None:
    """Raise UserError if a folder for layouts is a run folder itself, or holds layouts of other operands."""
    if (out / MANIFEST).exists():
        raise UserError(f"{out} is a run folder, and runs of layouts cannot be inside one; choose another --out.")
    for folder in runs_inside(out):
        known = RunFolder(folder).manifest["configuration"].get("operands")
        if known != plain(operands):
            shown = "others" if known is None else ",".join(f"{low}-{high}" for low, high in known)
            advice = "choose another --out, or allow it with --overwrite (in Python, overwrite=True)"
            raise UserError(f"{out} holds results of other settings (operands {shown}, in {folder.name}); {advice}.")


def _check_folders(model: Model, settings: Settings, folder: Path) -> None:
    """Raise UserError if the folder of a layout, or those of its answer steps, hold results of other settings."""
    check_folder(model, settings, folder, (), joined_stages())
    if (answers := _stored_answers(folder)) is None:  # then no step was begun
        return
    for view in model.every_step():
        if operators := _studied_operators(answers, settings, view.encoder.step):
            own = replace(settings, operators=operators)
            check_folder(view, own, step_folder(folder, view.encoder.step), (), all_stages())


def _stored_answers(folder: Path) -> WholeAnswers | None:
    """The whole answers in the folder of a layout; None if there are none that can be read."""
    if (folder / MANIFEST).exists() and (run := RunFolder(folder)).is_done(stage_of(WholeAnswers).name):
        with suppress(SchemaMismatch):  # then they are computed again
            return run.read(WholeAnswers)
    return None


def _studied_operators(answers: WholeAnswers, settings: Settings, step: int) -> tuple[str, ...]:
    left_out = answers.left_out(step)
    return tuple(operator for operator in settings.operators if operator not in left_out)


def _study_layout(
    model: Model,
    settings: Settings,
    out: Path,
    stages: Sequence[str] | None,
    study_step: StudyStep,
    run_joined: RunJoined,
    progress: Progress,
) -> tuple[RunWriter, bool]:
    """The run folder of a layout, and whether no answer step could be studied, as the model gets too few of each right."""
    named = [stage for stage in joined_stages() if stages is None or stage.name in stages]
    of_step = _stages_of_a_step(stages)
    shared_stages = _shared_stages(of_step, named if stages else []) if len(model.every_step()) > 1 else []
    alone = [stage for stage in named if not stage.given and not _is_shared(stage)]
    first = [stage_of(WholeAnswers), *(stage for stage in alone if stage.result is not WholeAnswers), *shared_stages]
    run = run_joined(model, settings, out, [stage.name for stage in first], [])
    studied, refused = 0, 0
    if of_step:
        answers, given = run.read(WholeAnswers), [Given("", run.read(stage.result)) for stage in shared_stages]
        for view in model.every_step():
            stratum = view.encoder.stratum
            assert stratum is not None
            about = f"{out.name}, answer step {stratum.step} of {stratum.steps} ({stratum.token_name})"
            progress.note(about)
            for operator, why in answers.left_out(stratum.step).items():
                if operator in settings.operators:
                    progress.note(f"{operator} is left out: {why}")
            if not (operators := _studied_operators(answers, settings, stratum.step)):
                refused += 1
                continue
            shared: Shared = {"means": partial(answers.means_at, stratum.step)}
            try:
                own = replace(settings, operators=operators)
                study_step(view, own, step_folder(out, stratum.step), shared, given)
                studied += 1
            except TooFewCorrect:
                refused += 1
                progress.note(f"{about} is left out: the model gets almost no prompt right")
    joining = [stage.name for stage in named if stage.given]
    found = step_results(run)
    if joining and len(found.circuits) > 1:
        run = run_joined(model, settings, out, joining, [Given("", found)])
    return run, refused > 0 and not studied


def _stages_of_a_step(names: Sequence[str] | None) -> list[Stage]:
    """The stages that each answer step runs; no names are the default ones."""
    chosen = None if names is None else [name for name in names if not stage_named(name).joins_steps]
    return [] if chosen == [] else [stage for stage in chosen_stages(chosen) if not stage.on_request]


def _shared_stages(of_step: Sequence[Stage], named: Sequence[Stage]) -> list[Stage]:
    """The stages, named or needed by some of a step, that compute for all answer steps together."""
    wanted = {kind for stage in of_step for kind in stage.given} | {stage.result for stage in named}
    return [stage for stage in joined_stages() if _is_shared(stage) and stage.result in wanted]


def _is_shared(stage: Stage) -> bool:
    """Whether a stage that joins answer steps computes what stages of each step take over."""
    return any(stage.result in each.given for each in all_stages() if not each.joins_steps)


def joined_stages() -> list[Stage]:
    """The stages that run once for all answer steps."""
    return [stage for stage in all_stages() if stage.joins_steps]


def step_folder(run: Path, step: int) -> Path:
    return child(run / STEPS, str(step))


def steps_of(run: RunFolder) -> list[RunFolder]:
    """The run folders of a layout's answer steps, in order; empty for another run."""
    found = [folder.parent for folder in (run.path / STEPS).glob(f"*/{MANIFEST}") if folder.parent.name.isdecimal()]
    return [RunFolder(child(run.path / STEPS, folder.name)) for folder in sorted(found, key=lambda x: int(x.name))]


def is_layout(run: RunFolder) -> bool:
    """Whether a run folder is that of a layout, rather than of an answer step or of whole numbers."""
    return stage_of(WholeAnswers).name in run.manifest["stages"]


def layout_of(step: RunFolder) -> Path | None:
    """The run folder of the layout that an answer step's run lies in; None for another run."""
    steps, layout = step.path.parent, step.path.parent.parent
    return layout if steps.name == STEPS and (layout / MANIFEST).is_file() else None


def only_token(stratum: Stratum, operators: Sequence[str]) -> int | None:
    """The value of the token that a step asks for in all prompts, if there is only one."""
    values = np.unique(stratum.prompts(operators).result)
    return int(values[0]) if len(values) == 1 else None


def left_out_steps(run: RunFolder) -> dict[int, str]:
    """Why answer steps of a layout's run have no run of their own, by step."""
    configuration, studied = run.manifest["configuration"], {int(step.path.name) for step in steps_of(run)}
    stratum = stored_stratum(configuration, int(run.manifest["model"]["limit"]))
    answers = _stored_answers(run.path)
    missing = [step for step in range(1, stratum.steps + 1) if step not in studied]
    return {step: f"not studied: {_why_left_out(answers, configuration['operators'], step)}" for step in missing}


def _why_left_out(answers: WholeAnswers | None, operators: Sequence[str], step: int) -> str:
    reasons = {} if answers is None else answers.left_out(step)
    if missing := [operator for operator in operators if operator not in reasons]:
        return f"the study of {' '.join(missing)} is not finished"
    different = {reasons[operator] for operator in operators}
    return different.pop() if len(different) == 1 else "; ".join(f"{o}: {reasons[o]}" for o in operators)


def step_results(run: RunFolder) -> StepResults:
    """Circuits and top neurons of the answer steps that are done."""
    circuits, neurons, keys = {}, {}, []
    for step in steps_of(run):
        if step.is_done("circuit") and step.is_done("topk"):
            number = int(step.path.name)
            circuits[number], neurons[number] = step.read(Circuit), step.read(TopK)
            keys += [step.key("circuit") or "", step.key("topk") or ""]
    return StepResults(circuits, neurons, keys)


def refuse_joined_stages(stages: Sequence[str] | None) -> None:
    """Raise UserError if a stage joins answer steps, where numbers are whole and there is one step."""
    if wrong := [stage.name for stage in joined_stages() if stage.name in (stages or ())]:
        raise UserError(
            f"The stage {wrong[0]} needs answers of several tokens; choose operands with --digits or --operands."
        )

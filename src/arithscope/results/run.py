"""What a notebook opens: a finished run in a folder. A study in memory is a `Lab` (lab.py)."""

import html
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from arithscope.errors import UserError
from arithscope.experiments.classify import CALIBRATED
from arithscope.experiments.common.result import MEAN, summary_numbers
from arithscope.experiments.common.stage import Results
from arithscope.models.load import QUANTIZATIONS, LoadOptions, check_options, load
from arithscope.models.model import Model
from arithscope.models.sources import ModelNotFound
from arithscope.pipeline.configuration import encoding_of, stored_encoding, stored_stratum
from arithscope.pipeline.layouts import is_layout, steps_of
from arithscope.pipeline.registry import all_stages, stage_named, stage_of
from arithscope.pipeline.schema import check_description
from arithscope.pipeline.store import RunFolder, plain, runs_inside
from arithscope.pipeline.study import study
from arithscope.prompts import (
    OPERATORS,
    Operands,
    parse_operands,
    template_from_json,
)
from arithscope.results.explanation import Explanation
from arithscope.results.neuron import NeuronFinder
from arithscope.results.study_results import R, StudyResults
from arithscope.settings import Settings
from arithscope.utils.files import user_path
from arithscope.utils.printing import printable
from arithscope.utils.progress import Progress


def open(path: str | Path, elsewhere: str | None = None, options: LoadOptions | None = None) -> "Run":
    """Open a run folder for reading.

    Args:
        path: The run folder.
        elsewhere: Where the run's model is now if it has moved, or a hub id to download.
        options: How to load the model once it is needed.

    Raises:
        UserError: If the folder holds no run, or one that this version cannot read.

    Example:
        >>> run = arithscope.open("runs/tiny-llama")
        >>> run.circuit.kept("+")
    """
    return Run(path, elsewhere, options)


def run(
    model: Model | str,
    out: str | Path,
    stages: Sequence[str] | None = None,
    progress: Progress | None = None,
    cluster: str | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> "Run":
    """Study a model and write a run folder, like the command `arithscope run` but without figures.

    Args:
        model: A loaded model, or the name of one to load.
        out: The run folder. Stages that it already holds are not computed again.
        stages: Names of stages to run, with those they need. By default all; with the preset `paper`, the study is then
            repeated to see how stable its numbers are.
        progress: Where progress is shown.
        cluster: Address of a Ray cluster to run on, or `local`.
        overwrite: Whether results of other settings in the folder may be replaced.
        **settings: Fields of `Settings`: `run(model, "runs/mine", operators="+-")`.

    Raises:
        UserError: If the model cannot be loaded or studied with these settings, the folder cannot be written, or it holds
            results of other settings.
    """
    chosen, path = Settings(**settings), user_path(out)
    if chosen.operands is not None:
        raise UserError("Operands of several tokens give a run for each layout; use `run_layouts`.")
    [folder] = study(model, chosen, path, stages, cluster=cluster, overwrite=overwrite, progress=progress)
    return Run(folder.path)


def run_layouts(
    model: Model | str,
    out: str | Path,
    operands: str | Operands,
    stages: Sequence[str] | None = None,
    progress: Progress | None = None,
    cluster: str | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> "dict[str, Run]":
    """Study numbers of several tokens: a run for each layout of tokens, with a run for each token of the answer in `steps`.

    Args:
        model: A loaded model, or the name of one to load.
        out: The folder for the layouts' run folders.
        operands: Which operands: "10-99", "10-99,1-9", or ((10, 99), (1, 9)).
        stages: Names of stages to run, with those they need; by default all.
        progress: Where progress is shown.
        cluster: Address of a Ray cluster to run on, or `local`.
        overwrite: Whether results of other settings in the folder may be replaced.
        **settings: Other fields of `Settings`.

    Returns:
        The runs by layout: tokens of op1, op2 and the answer, as in `runs["2-2-3"].steps[2].neuron(3, 17, "+")`.

    Raises:
        UserError: As for `run`; or if no layout can be studied.
    """
    chosen = Settings(operands=parse_operands(operands) if isinstance(operands, str) else operands, **settings)
    options: dict[str, Any] = dict(cluster=cluster, overwrite=overwrite, progress=progress)
    folders = study(model, chosen, user_path(out), stages, **options)
    return {folder.path.name: Run(folder.path) for folder in folders}


class Run(StudyResults):
    """A run folder, opened for reading; see `open`. Results are read on first use, and activation maps are memory-mapped."""

    operators: list[str]

    def __init__(self, path: str | Path, elsewhere: str | None = None, options: LoadOptions | None = None):
        self.path = user_path(path)
        self._read_folder()
        self.elsewhere = elsewhere
        self.options = options or LoadOptions()
        check_options(self.options)  # report mistakes now, not when the model is first needed
        self._results = Results()
        self._whole: Run | None = None  # the run of the layout, for the run of an answer step

    def _read_folder(self) -> None:
        self.folder = RunFolder(self.path)
        check_description(self.manifest, self.path)
        self.operators = list(self.configuration["operators"])
        self.limit = int(self.manifest["model"]["limit"])
        self.stratum = stored_stratum(self.configuration, self.limit)
        self.seed = int(self.configuration["seed"])

    @property
    def manifest(self) -> dict[str, Any]:
        """What was run on what: model, versions, configuration, and each stage's status."""
        return self.folder.manifest

    @property
    def name(self) -> str:
        """The model's name, with its revision."""
        model = self.manifest["model"]
        return str(model["name"]) + (f"@{model['revision']}" if model.get("revision") else "")

    @property
    def configuration(self) -> dict[str, Any]:
        """The settings of the run, from its manifest."""
        return self.manifest["configuration"]

    @property
    def stages(self) -> list[str]:
        """Names of the stages that are done."""
        status = self.manifest["stages"]
        return [stage.name for stage in all_stages() if status.get(stage.name, {}).get("status") == "done"]

    def __getitem__(self, kind: type[R]) -> R:
        if kind not in self._results:
            stage = stage_of(kind).name
            if stage not in self.stages:  # it may have been computed since the folder was opened
                self._read_folder()
            if stage not in self.stages:
                missing = f"{stage!r} (it is {self.manifest['stages'].get(stage, {}).get('status', 'missing')})"
                raise UserError(f"The run in {self.path} has no complete stage {missing}; run it again to compute it.")
            self._results.add(self.folder.read(kind))
        return self._results[kind]

    @cached_property
    def steps(self) -> "dict[int, Run]":
        """The runs of the answer steps, from 1, that a layout's run holds; empty where numbers are whole."""
        found = {int(step.path.name): Run(step.path, self.elsewhere, self.options) for step in steps_of(self.folder)}
        for run in found.values():
            run._whole = self
        return found

    def explain_steps(self, prompt: str, criterion: str = CALIBRATED) -> "dict[int, Explanation]":
        """Explain every answer step of a prompt, each given the right answer's tokens before it.

        Args:
            prompt: A prompt such as `45+38=`.
            criterion: Which matches to use: `raw` or `calibrated`.

        Returns:
            The explanations by step; a step that was left out of the study has none.

        Raises:
            UserError: As for `explain`.
        """
        operator = OPERATORS[int(self.prompt(prompt).operator[0])]
        studied = [
            s for s, run in self.steps.items() if "classify" in run.stages and operator in run.classify.operators
        ]
        if not studied:
            raise UserError(f"The run in {self.path} found no neurons for {operator} at any answer step.")
        return {step: self.steps[step].explain(prompt, criterion) for step in studied}

    @property
    def summary(self) -> pd.DataFrame:
        """Every number of summary.json: experiment, operator, measure, value, low, high, n."""
        summaries = self.folder.summary.items()
        rows = [{"experiment": name, **row} for name, summary in summaries for row in summary_numbers(summary)]
        return pd.DataFrame(rows, columns=["experiment", "operator", "measure", *MEAN])

    @cached_property
    def _finder(self) -> NeuronFinder:
        maps, classification = (self.result(s) if s in self.stages else None for s in ("patterns", "classify"))
        return NeuronFinder(self.result("neurons"), maps, classification)

    @cached_property
    def model(self) -> Model:
        """The run's model, loaded on first use and compared with the one that was studied.

        The manifest may come from a stranger, so the source it names is only looked for on this machine. A model is
        downloaded only if you name it yourself, with `elsewhere`.

        Raises:
            UserError: If it cannot be found or loaded, or is not the same model.
        """
        if self.owner is not self:
            return self.owner.model.at(self.stratum)
        known = self.manifest["model"]
        quantize = known["quantization"] if known["quantization"] in QUANTIZATIONS else None
        source = known["source"] if self.elsewhere is None else self.elsewhere
        template = template_from_json(self.configuration)
        options = replace(self.options, dtype=known["dtype"], quantize=quantize)
        if self.elsewhere is None:
            options = replace(options, local_files_only=True)
        try:
            model = load(source, template, options)
        except ModelNotFound as error:
            if self.elsewhere is not None:
                raise
            if error.hub:
                named = f"The run in {self.path} names the hub model {source}, which is not on this machine"
                raise UserError(f"{named}; to download it, use --model {source} (in Python, `elsewhere`).") from None
            moved = f"The model of the run in {self.path} is not at {source} any more"
            raise UserError(f"{moved}; say where it is with --model (in Python, with `elsewhere`).") from None
        if any(getattr(model.identity, k) != known[k] for k in ("weight_hash", "tokenizer_hash")):
            raise UserError(
                f"{source} is not the model of the run in {self.path}: its weights or its tokenizer differ; name the right one "
                "with --model (in Python, with `elsewhere`)."
            )
        model = model if self.stratum.whole else model.at(self.stratum)
        if encoding_of(model).get("surroundings") != self.configuration.get("surroundings"):
            problem = "writes something else around a message than when the run was made"
            raise UserError(
                f"The chat template of {source} {problem} ({self.path}); name the right model with --model."
            )
        return model

    @property
    def owner(self) -> "Run":
        """The run whose model this one uses: for an answer step that of its layout, otherwise the run itself."""
        return self._whole or self

    def release(self) -> None:
        """Drop the loaded model to free its memory."""
        for run in (self, *self.__dict__.get("steps", {}).values()):
            run.__dict__.pop("model", None)

    def reopened(self) -> "Run":
        """The run as it is on disk now. Results that have not changed are not read again; the model stays with this one."""
        run = Run(self.path, self.elsewhere, self.options)
        unchanged = run.folder.unchanged_since(self.folder).intersection(run.stages)
        run._results = self._results.only([stage_named(name).result for name in unchanged])
        if self._whole is not None:
            run._whole = self._whole
            self._whole.steps[self.stratum.step] = run
        return run

    def take_model(self, earlier: "Run") -> None:
        """Take over the model that an earlier opening of this run has loaded, if it is still the model of the run."""
        model = earlier.__dict__.pop("model", None)
        if model is not None and self._studied == earlier._studied:
            self.__dict__["model"] = model

    @property
    def _studied(self) -> tuple[Any, ...]:
        """What the loaded model depends on."""
        return self.manifest["model"], stored_encoding(self.configuration)

    def __repr__(self) -> str:
        studied = (
            f"{''.join(self.operators)}, operands {self.stratum.described()}, {self.configuration['preset']} preset"
        )
        return f"Run({self.name}, {studied}, {len(self.stages)} stages, in {self.path})"

    def _repr_html_(self) -> str:
        seconds = {name: self.manifest["stages"].get(name, {}).get("seconds", "") for name in self.stages}
        rows = "".join(f"<tr><td>{name}</td><td>{time}</td></tr>" for name, time in seconds.items())
        return f"<b>{html.escape(repr(self))}</b><table><tr><th>stage</th><th>seconds</th></tr>{rows}</table>"


def runs_in(path: str | Path) -> list[Path]:
    """The run folders that a path stands for: itself, or where it holds the runs of several layouts, these."""
    folder = user_path(path)
    return runs_inside(folder) or [folder]


def run_of_step(run: Run, step: int | None) -> Run:
    """The run of an answer step of a layout; without a step, the run itself.

    Raises:
        UserError: If there is no such step, or a layout's run is named without one.
    """
    if step is None and not run.steps:
        return run
    if not run.steps:
        raise UserError(f"The run in {run.path} holds no answer steps, so there is no step {step}; leave out --step.")
    if step not in run.steps:
        known = ", ".join(map(str, run.steps))
        problem = "has several answer steps" if step is None else f"has no answer step {step}"
        raise UserError(f"The run in {run.path} {problem}; choose one with --step (studied: {known}).")
    return run.steps[step]


def explanation_as_json(explanation: Explanation) -> dict[str, Any]:
    """An explanation as plain values for JSON; tables become lists of rows."""
    fields = asdict(explanation)
    return plain({name: x.to_dict("records") if isinstance(x, pd.DataFrame) else x for name, x in fields.items()})


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """A printable name for each run: the model's, with layout and answer step if there are any; the folder's, if those repeat;
    or else the path."""
    titles = list(map(_title, runs))
    for names in (list(map(printable, titles)), [printable(run.path.resolve().name) for run in runs]):
        if len(set(names)) == len(names):
            return names
    return [printable(str(run.path)) for run in runs]


def _title(run: Run) -> str:
    """The model's name; `tiny-digits-2-2-3` for a layout, `tiny-digits-2-2-3-step-2` for an answer step."""
    if run.stratum.whole:
        return run.name
    layout = f"{run.name}-{run.stratum.layout_name}"
    return layout if is_layout(run.folder) else f"{layout}-step-{run.stratum.step}"

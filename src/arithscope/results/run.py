"""A finished run: its results as dataframes and arrays, its neurons, and its model for whatever is computed live."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from arithscope.errors import UserError
from arithscope.experiments.common.result import MEAN, summary_numbers
from arithscope.experiments.common.stage import Results
from arithscope.models.load import QUANTIZATIONS, LoadOptions, check_options, load
from arithscope.models.model import Model
from arithscope.pipeline.registry import all_stages, stage_of
from arithscope.pipeline.schema import check_description
from arithscope.pipeline.store import RunFolder, plain
from arithscope.pipeline.study import study
from arithscope.prompts import Template
from arithscope.results.explanation import Explanation
from arithscope.results.neuron import NeuronFinder
from arithscope.results.study_results import R, StudyResults
from arithscope.settings import Settings
from arithscope.utils.paths import user_path
from arithscope.utils.progress import Progress


def open(path: str | Path, elsewhere: str | None = None, options: LoadOptions | None = None) -> Run:
    """Open a run folder for reading.

    Args:
        path: The run folder.
        elsewhere: Where the run's model is now, if it has moved.
        options: How to load the model once it is needed.

    Raises:
        UserError: If there is no run, or it was written by another version.

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
    **settings: Any,
) -> Run:
    """Study a model into a run folder, as the command `arithscope run` does, but without figures.

    Args:
        model: A loaded model, or a name to load.
        out: The run folder; one with some of the stages in it is completed.
        stages: Names of stages to run, with all that they need; by default all, and with the preset `paper` the study is
            then repeated to see how stable its numbers are.
        progress: Where progress is shown.
        cluster: Address of a Ray cluster that does the work, or `local`.
        **settings: Fields of `Settings`: `run(model, "runs/mine", operators="+-")`.

    Raises:
        UserError: If the model cannot be loaded or studied so, or the folder cannot be written.
    """
    folder = study(model, Settings(**settings), user_path(out), stages, cluster=cluster, progress=progress)
    return Run(folder.path)


class Run(StudyResults):
    """A run folder, opened as by `open`. Results are read when first used; activation maps stay on disk and are mapped into
    memory."""

    operators: list[str]

    def __init__(self, path: str | Path, elsewhere: str | None = None, options: LoadOptions | None = None):
        self.path = user_path(path)
        self._read_folder()
        self.elsewhere, self.options = elsewhere, options or LoadOptions()
        check_options(self.options)  # report mistakes now, not when the model is first needed
        self._results = Results()

    def _read_folder(self) -> None:
        self.folder = RunFolder(self.path)
        check_description(self.manifest, self.path)
        self.operators, self.limit = list(self.configuration["operators"]), int(self.manifest["model"]["limit"])
        self.max_operand, self.seed = int(self.configuration["max_operand"]), int(self.configuration["seed"])

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
                missing = f"{stage!r} (it is {self.manifest['stages'].get(stage, {}).get('status', 'not there')})"
                raise UserError(f"The run in {self.path} has no complete stage {missing}; run it again to compute it.")
            self._results.add(self.folder.read(kind))
        return self._results[kind]

    @property
    def summary(self) -> pd.DataFrame:
        """Every headline number: experiment, operator, measure, value, low, high, n."""
        summaries = self.folder.summary.items()
        rows = [{"experiment": name, **row} for name, summary in summaries for row in summary_numbers(summary)]
        return pd.DataFrame(rows, columns=["experiment", "operator", "measure", *MEAN])

    @cached_property
    def _finder(self) -> NeuronFinder:
        maps, classification = (self.result(s) if s in self.stages else None for s in ("patterns", "classify"))
        return NeuronFinder(self.result("neurons"), maps, classification)

    @cached_property
    def model(self) -> Model:
        """The run's model, loaded when first used and compared with the one that was studied.

        Raises:
            UserError: If it cannot be loaded, or is another model.
        """
        known = self.manifest["model"]
        quantize = known["quantization"] if known["quantization"] in QUANTIZATIONS else None
        source = known["source"] if self.elsewhere is None else self.elsewhere
        template = Template(self.configuration["template"], self.configuration["prefix"])
        model = load(source, template, replace(self.options, dtype=known["dtype"], quantize=quantize))
        if any(getattr(model.identity, k) != known[k] for k in ("weight_hash", "tokenizer_hash")):
            raise UserError(
                f"{source} is not the model of the run in {self.path}: its weights or its tokenizer differ; name the right one "
                "with --model (in Python, with `elsewhere`)."
            )
        return model

    def release(self) -> None:
        """Drop the loaded model to free its memory."""
        self.__dict__.pop("model", None)

    def __repr__(self) -> str:
        studied = f"{''.join(self.operators)}, operands 0…{self.max_operand}, {self.configuration['preset']} preset"
        return f"Run({self.name}, {studied}, {len(self.stages)} stages, in {self.path})"

    def _repr_html_(self) -> str:
        seconds = {name: self.manifest["stages"].get(name, {}).get("seconds", "") for name in self.stages}
        rows = "".join(f"<tr><td>{name}</td><td>{time}</td></tr>" for name, time in seconds.items())
        return f"<b>{html.escape(repr(self))}</b><table><tr><th>stage</th><th>seconds</th></tr>{rows}</table>"


def explanation_as_json(explanation: Explanation) -> dict[str, Any]:
    """An explanation as JSON holds it: tables as lists of rows."""
    fields = asdict(explanation)
    return plain({name: x.to_dict("records") if isinstance(x, pd.DataFrame) else x for name, x in fields.items()})


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its model's, or its folder's where models' names repeat."""
    for names in ([run.name for run in runs], [run.path.resolve().name for run in runs]):
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]

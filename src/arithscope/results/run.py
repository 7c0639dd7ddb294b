"""A finished run: its results as dataframes and arrays, its neurons, and its subject for whatever is computed live."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from arithscope.errors import UserError
from arithscope.experiments.common.result import MEAN, numbers_of
from arithscope.models.load import QUANTIZATIONS, LoadOptions, check_options, load
from arithscope.models.model import Model
from arithscope.pipeline.ray_executor import working
from arithscope.pipeline.registry import STAGES
from arithscope.pipeline.repeats import asks_for_repeats, repeat
from arithscope.pipeline.runner import chosen_stages
from arithscope.pipeline.runner import run as run_stages
from arithscope.pipeline.schema import check_description
from arithscope.pipeline.store import RunFolder, plain
from arithscope.prompts import Template
from arithscope.results.explanation import Explanation
from arithscope.results.neuron import NeuronFinder
from arithscope.results.results import Results
from arithscope.settings import Settings
from arithscope.utils.paths import user_path
from arithscope.utils.progress import Progress, Silent

_KINDS: Mapping[str, type] = {stage.name: stage.result for stage in STAGES}


def open(path: str | Path, elsewhere: str | None = None, options: LoadOptions | None = None) -> Run:
    """Open a run folder for reading. If the run's subject is no longer where it was, say where with `elsewhere`."""
    return Run(path, elsewhere, options)


def run(
    model: Model | str,
    out: str | Path,
    stages: Sequence[str] | None = None,
    progress: Progress | None = None,
    cluster: str | None = None,
    **settings: Any,
) -> Run:
    """Study a subject into a run folder, as the command `arithscope run` does, but without figures. A folder with some of
    the stages in it is completed. With the preset `paper`, unless stages are named, the study is then repeated to see how
    stable its numbers are. `cluster` is the address of a Ray cluster that does the work, or `local`. Settings are those of
    `Settings`: `run(subject, "runs/mine", operators="+-")`."""
    asked, told = Settings(**settings), progress or Silent()
    with working(cluster, Template(), LoadOptions(), told) as (executor, load_it):
        loaded = load_it(model) if isinstance(model, str) else model
        repeated = asks_for_repeats(asked, stages)
        names = stages if not repeated else [stage.name for stage in chosen_stages(stages) if not stage.asked]
        folder = run_stages(loaded, asked, user_path(out), names, told, executor=executor)
        if repeated:
            folder = repeat(loaded, asked, folder, told, executor=executor)
    return Run(folder.path)


class Run(Results):
    """A run folder. Results are read when first asked for; patterns stay on disk and are mapped into memory.

    Where the run's subject is not where it was, say so by setting `elsewhere`; `options` say how it is loaded."""

    def __init__(self, path: str | Path, elsewhere: str | None = None, options: LoadOptions | None = None):
        self.folder = RunFolder(user_path(path))
        check_description(self.folder.manifest, self.path)
        self.elsewhere, self.options = elsewhere, options or LoadOptions()
        check_options(self.options)  # what is wrong with them is told now, not once a subject is asked for
        self._results: dict[str, Any] = {}

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def manifest(self) -> dict[str, Any]:
        """What was run on what: subject, versions, configuration, and each stage's status."""
        return self.folder.manifest

    @property
    def name(self) -> str:
        """The subject, with its revision."""
        known = self.manifest["model"]
        return str(known["name"]) + (f"@{known['revision']}" if known.get("revision") else "")

    @property
    def configuration(self) -> dict[str, Any]:
        return self.manifest["configuration"]

    @property
    def operators(self) -> list[str]:
        return list(self.configuration["operators"])

    @property
    def seed(self) -> int:
        return int(self.configuration["seed"])

    @property
    def max_operand(self) -> int:
        return int(self.configuration["max_operand"])

    @property
    def limit(self) -> int:
        limit = self.manifest["model"].get("limit")
        if limit is None:
            raise UserError(
                f"The run in {self.path} is of an earlier version of arithscope; run it again to look at prompts."
            )
        return int(limit)

    @property
    def stages(self) -> list[str]:
        """The stages that are done."""
        said = self.manifest["stages"]
        return [name for name in _KINDS if said.get(name, {}).get("status") == "done"]

    def result(self, stage: str) -> Any:
        if stage not in _KINDS:
            raise UserError(f"There is no stage {stage!r}; choose from {', '.join(_KINDS)}.")
        if stage not in self._results:
            if stage not in self.stages:  # it may have been computed since the folder was opened
                self.folder = RunFolder(self.path)
            if stage not in self.stages:
                raise UserError(
                    f"The run in {self.path} has no complete stage {stage!r} (it is "
                    f"{self.manifest['stages'].get(stage, {}).get('status', 'not there')}); run it again to compute it."
                )
            self._results[stage] = self.folder.read(stage, _KINDS[stage])
        return self._results[stage]

    @property
    def summary(self) -> pd.DataFrame:
        """Every headline number: experiment, operator, measure, value, low, high, n."""
        rows = [
            {"experiment": experiment, **row}
            for experiment, found in self.folder.summary.items()
            for row in numbers_of(found)
        ]
        return pd.DataFrame(rows, columns=["experiment", "operator", "measure", *MEAN])

    @cached_property
    def _finder(self) -> NeuronFinder:
        there = {name: self.result(name) if name in self.stages else None for name in ("patterns", "classify")}
        return NeuronFinder(self.neurons, there["patterns"], there["classify"])

    @cached_property
    def model(self) -> Model:
        """The run's subject as it was then; loaded when first asked for, and compared with what the run was made from."""
        known = self.manifest["model"]
        quantize = known["quantization"] if known["quantization"] in QUANTIZATIONS else None
        source = known["source"] if self.elsewhere is None else self.elsewhere
        template = Template(self.configuration["template"], self.configuration["prefix"])
        model = load(source, template, replace(self.options, dtype=known["dtype"], quantize=quantize))
        if any(getattr(model.identity, k) != known[k] for k in ("weight_hash", "tokenizer_hash")):
            raise UserError(
                f"{source} is not the subject of the run in {self.path}, as its weights or its tokenizer differ; "
                "name the right one with --subject (in Python, with `elsewhere`)."
            )
        return model

    def release(self) -> None:
        """Forget the loaded subject, and so its memory."""
        self.__dict__.pop("model", None)

    def __repr__(self) -> str:
        c = self.configuration
        return (
            f"Run({self.name}, {''.join(c['operators'])}, operands 0…{c['max_operand']}, {c['preset']} preset, "
            f"{len(self.stages)} stages, in {self.path})"
        )

    def _repr_html_(self) -> str:
        timed = [(name, self.manifest["stages"].get(name, {}).get("seconds", "")) for name in self.stages]
        rows = "".join(f"<tr><td>{name}</td><td>{seconds}</td></tr>" for name, seconds in timed)
        head = "<tr><th>stage</th><th>seconds</th></tr>"
        return f"<b>{html.escape(repr(self))}</b><table>{head}{rows}</table>"


def explanation_as_json(explanation: Explanation) -> dict[str, Any]:
    """An explanation for programs: tables as lists of rows."""
    fields = asdict(explanation)
    return plain({name: x.to_dict("records") if isinstance(x, pd.DataFrame) else x for name, x in fields.items()})


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its subject's, or its folder's where these are the same."""
    for names in ([run.name for run in runs], [run.path.resolve().name for run in runs]):
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]

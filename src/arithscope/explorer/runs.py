"""The served runs by name, as they are on disk now: their tables, filtered, sorted and paged, and their models, of which at
most two are in memory."""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from threading import Lock
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from fastapi import HTTPException
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from arithscope.errors import UserError
from arithscope.experiments.classify import CRITERIA, RAW, Classification
from arithscope.experiments.common.result import mean_entry
from arithscope.experiments.knockout import GROUPS, OWN, Knockout
from arithscope.experiments.neurons import neuron_name
from arithscope.experiments.patterns import ActivationMaps
from arithscope.experiments.whole_answers import written_numbers
from arithscope.heuristics.kinds import kind_name
from arithscope.models.model import Model
from arithscope.pipeline.layouts import is_layout, left_out_steps
from arithscope.pipeline.store import manifest_stamp
from arithscope.pipeline.study import CHECKPOINTS
from arithscope.results.comparison import Comparison, compare
from arithscope.results.run import Run, distinct_names
from arithscope.utils.files import child
from arithscope.utils.out_of_memory import explain_out_of_memory

NEURON = ["operator", "layer", "neuron"]
HEURISTIC = ["operator", "heuristic"]
MAX_ROWS = 500  # of a table, per reply
MAX_MODELS = 2  # kept in memory
MAX_MAPS = 32  # activation maps of a run computed here and kept in memory

Operator = Literal["+", "-", "*", "/"]
Criterion = Literal["raw", "calibrated"]
ShortText = Annotated[str, Field(max_length=100)]


class TableQuery(BaseModel):
    """A page of a table, optionally sorted by one of its columns."""

    model_config = ConfigDict(extra="forbid")
    sort: ShortText | None = None
    descending: bool = True
    offset: int = Field(default=0, ge=0, le=10**9)
    size: int = Field(default=50, ge=1, le=MAX_ROWS)


class _MatchQuery(TableQuery):
    criterion: Criterion = "calibrated"
    operator: Operator | None = None
    kind: ShortText | None = None


class NeuronQuery(_MatchQuery):
    """A page of the top neurons. `kind` and `heuristic` select neurons that match such a heuristic."""

    layer: int | None = Field(default=None, ge=0, lt=2**15)
    heuristic: ShortText | None = None
    classified: Literal["any", "classified", "unclassified"] = "any"
    sort: ShortText | None = "effect"


class HeuristicQuery(_MatchQuery):
    """A page of the matched heuristics. `search` is part of a heuristic's text; `tested` selects those with a knockout."""

    search: ShortText = ""
    tested: bool = False
    sort: ShortText | None = "neurons"


def page(rows: pd.DataFrame, query: TableQuery) -> dict[str, Any]:
    """One page of a table, and its number of rows. Missing values sort last; ties keep their order."""
    if query.sort is not None:
        if query.sort not in rows:
            raise HTTPException(422, f"The table has no column {query.sort!r}; choose from {', '.join(rows.columns)}")
        try:
            rows = rows.sort_values(query.sort, ascending=not query.descending, kind="stable", na_position="last")
        except (TypeError, ValueError):
            raise UserError(f"The column {query.sort} cannot be sorted; choose another one.") from None
    shown = rows.iloc[query.offset : query.offset + query.size]
    listed = shown.map(lambda cell: cell.tolist() if isinstance(cell, np.ndarray) else cell)
    return {"rows": listed.to_dict("records"), "total": len(rows)}


def _where(rows: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Rows whose columns have these values; None leaves a column unrestricted."""
    for column, value in values.items():
        if value is not None:
            rows = rows[rows[column] == value]
    return rows


def _matches(classify: Classification, criterion: str) -> pd.DataFrame:
    """Matches of all operators, with full names of kinds; the least probable under the permutation null come first."""
    rows = classify.matched(None, criterion).sort_values("neg_log10_p", ascending=False, kind="stable")
    rows = rows.drop_duplicates([*NEURON, "heuristic"])  # of two signs, the more significant
    return rows.assign(kind=[kind_name(*names) for names in zip(rows.kind, rows.on, strict=True)])


class NeuronTable:
    """The top neurons of all operators, each with its number of matched heuristics and the best of them."""

    def __init__(self, maps: ActivationMaps, classify: Classification):
        self._matches = {criterion: _matches(classify, criterion) for criterion in CRITERIA}
        coverage = classify.neurons[[*NEURON, *(f"coverage_{criterion}" for criterion in CRITERIA)]]
        neurons = maps.neurons.drop(columns="tokens").merge(coverage, on=NEURON, how="left")
        self._tables = {criterion: self._with_matches(neurons, criterion) for criterion in CRITERIA}
        self.kinds = sorted(self._matches[RAW].kind.unique())
        self.layers = sorted(neurons.layer.unique())

    def _with_matches(self, neurons: pd.DataFrame, criterion: str) -> pd.DataFrame:
        matches = self._matches[criterion]
        counted = matches.assign(heuristics=matches.groupby(NEURON).layer.transform("size"))
        best = counted.drop_duplicates(NEURON)[[*NEURON, "heuristics", "heuristic", "kind", "score"]]
        table = neurons.merge(best, on=NEURON, how="left")
        return table.assign(
            name=[neuron_name(*neuron) for neuron in zip(table.layer, table.neuron, strict=True)],
            heuristics=table.heuristics.fillna(0).astype(int),
            coverage=table[f"coverage_{criterion}"],
            rank=table["rank"] + 1,
        )

    def page(self, query: NeuronQuery) -> dict[str, Any]:
        """One page of the neurons that the query selects, and their number."""
        rows = _where(self._tables[query.criterion], operator=query.operator, layer=query.layer)
        if query.classified != "any":
            rows = rows[(rows.heuristics > 0) == (query.classified == "classified")]
        if query.kind is not None or query.heuristic is not None:
            matches = _where(self._matches[query.criterion], kind=query.kind, heuristic=query.heuristic)
            rows = rows.merge(matches[NEURON].drop_duplicates(), on=NEURON)
        return page(rows, query)


class HeuristicTable:
    """The heuristics that top neurons match: number of neurons per layer, and the result of the knockout if tested."""

    def __init__(self, classify: Classification, knockout: Knockout | None):
        self._tables = {}
        for criterion in CRITERIA:
            groups = _matches(classify, criterion).groupby(HEURISTIC, sort=True)
            layers: list[Any] = [rows.value_counts().sort_index().to_dict() for _, rows in groups.layer]
            table = groups[["kind", "direct", "size"]].first().assign(neurons=groups.size(), by_layer=layers)
            knocked_out = _knockouts(knockout, criterion)
            self._tables[criterion] = table.reset_index().merge(knocked_out, on=HEURISTIC, how="left")

    def page(self, query: HeuristicQuery) -> dict[str, Any]:
        """One page of the heuristics that the query selects, and their number."""
        rows = _where(self._tables[query.criterion], operator=query.operator, kind=query.kind)
        rows = rows[rows.heuristic.str.contains(query.search, regex=False)]
        if query.tested:
            rows = rows[rows.knockout.notna()]
        return page(rows, query)

    def by_kind(self, criterion: str, operator: str | None) -> list[dict[str, Any]]:
        """The number of heuristics and of matches of each kind, and its matches by layer."""
        summary = []
        for kind, rows in _where(self._tables[criterion], operator=operator).groupby("kind", sort=True):
            layers = sum(map(Counter, rows.by_layer), Counter[int]())
            summary.append({"kind": kind, "heuristics": len(rows), "matches": layers.total(), "by_layer": dict(layers)})
        return summary


def _knockouts(knockout: Knockout | None, criterion: str) -> pd.DataFrame:
    """For each heuristic, accuracy on both groups of prompts with its own neurons ablated, their difference, and all means."""
    rows = []
    if knockout is not None:
        accuracy = knockout.accuracy.assign(mean=knockout.accuracy.ablated + "_" + knockout.accuracy.group)
        differences = knockout.differences.assign(mean="difference_" + knockout.differences.difference)
        means = _where(pd.concat([accuracy, differences]), criterion=criterion)
        for names, group in means.groupby(HEURISTIC):
            entries = {row["mean"]: mean_entry(row) for row in group.to_dict("records")}
            accuracies = [entries[f"{OWN}_{prompts}"]["value"] for prompts in GROUPS]
            rows.append((*names, *accuracies, entries["difference_prompts"]["value"], entries))
    return pd.DataFrame(rows, columns=[*HEURISTIC, *GROUPS, "difference", "knockout"])


class NotFound(UserError):
    """The request names something that does not exist."""


class MapName(NamedTuple):
    """Which activation map: of a neuron under an operator, at a checkpoint or (None) in the final model."""

    operator: str
    layer: int
    neuron: int
    checkpoint: str | None


class ServedRun:
    """A run as it was when its manifest was read, with derived tables that are computed once.

    Attributes:
        layout: The run of the layout, for its answer steps and itself; None for other runs.
    """

    def __init__(self, name: str, run: Run, layout: "ServedRun | None" = None):
        self.name, self.run, self.stamp = name, run, run.folder.stamp
        self.layout = self if is_layout(run.folder) else layout
        self.predictions = cache(self._predictions)
        self._maps: dict[MapName, NDArray[np.float32]] = {}  # computed here

    def require(self, *stages: str) -> None:
        """Raise NotFound if one of the stages is not done."""
        for stage in stages:
            if stage not in self.run.stages:
                raise NotFound(f"The run {self.name} has no stage {stage[:80]!r}; run it again with all stages.")

    @cached_property
    def neurons(self) -> NeuronTable:
        self.require("patterns", "classify")
        return NeuronTable(self.run.patterns, self.run.classify)

    @cached_property
    def heuristics(self) -> HeuristicTable:
        self.require("patterns", "classify")
        return HeuristicTable(self.run.classify, self.run.knockout if "knockout" in self.run.stages else None)

    def step_name(self, step: int) -> str:
        """Of a layout's run: the name of the run of an answer step."""
        return f"{self.name}-step-{step}"

    @cached_property
    def left_out(self) -> dict[int, str]:
        """Of a layout's run: why answer steps have no run."""
        return left_out_steps(self.run.folder)

    def _predictions(self, operator: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Over the operand grid: predicted number (−1: not a number, −2: illegal prompt) and p_answer; of a layout's run, those
        of whole answers."""
        if self.layout is self:
            answers = self.run.whole_answers
            written = written_numbers(answers.stratum, answers.predicted)
            prompts = answers.prompts.assign(predicted=written, p_answer=np.exp(answers.prompts.log_p))
        else:
            self.require("accuracy")
            prompts = self.run.accuracy.prompts
        if operator not in set(prompts.operator):
            raise NotFound(f"The run {self.name} has no prompts with {operator}.")
        grid = self.run.stratum.grid(operator)
        keys = {"operator": operator, "op1": grid.op1, "op2": grid.op2}
        rows = pd.DataFrame(keys).merge(prompts, how="left", on=list(keys), validate="many_to_one")
        return rows.predicted.fillna(-2).to_numpy("<i4"), rows.p_answer.to_numpy("<f4")

    @cached_property
    def checkpoints(self) -> dict[str, Run]:
        """Runs of the earlier checkpoints, in training order."""
        names = self.run.training.checkpoints[:-1] if "training" in self.run.stages else []
        return {name: Run(child(self.run.path / CHECKPOINTS, name), options=self.run.options) for name in names}

    def at(self, checkpoint: str | None) -> Run:
        """The run of a checkpoint; without one, of the final model."""
        if checkpoint is None:
            return self.run
        if checkpoint not in self.checkpoints:
            known = ", ".join(self.checkpoints) or "none"
            raise NotFound(f"The run {self.name} has no checkpoint {checkpoint[:80]!r}; choose from: {known}.")
        return self.checkpoints[checkpoint]

    def known_map(self, wanted: MapName) -> NDArray[np.float32] | None:
        """An activation map that is stored, or kept from an earlier request; None if it has to be computed."""
        run = self.at(wanted.checkpoint)
        sizes = run.manifest["model"]["sizes"]
        operator, layer, neuron, _ = wanted
        if layer >= sizes["layers"] or neuron >= sizes["neurons"]:
            raise NotFound(f"The model has no neuron L{layer}N{neuron}.")
        if operator not in run.operators:
            raise NotFound(f"The run {self.name} does not include {operator}.")
        if {"neurons", "patterns"} <= set(run.stages) and (row := run.map_row(layer, neuron, operator)) is not None:
            return run.patterns.activations[row].astype("<f4")
        return self._maps.get(wanted)

    def keep_map(self, name: MapName, activations: NDArray[np.float32]) -> None:
        """Keep an activation map that was computed, and forget the one kept longest if there are too many."""
        self._maps[name] = activations
        if len(self._maps) > MAX_MAPS:
            self._maps.pop(next(iter(self._maps)))


class RunRegistry:
    """Runs by name. Requests look runs up here, so that no part of a request becomes a path."""

    def __init__(self, runs: Sequence[Run]):
        names = [re.sub(r"[^A-Za-z0-9._@-]+", "-", name).strip("-") or "run" for name in distinct_names(runs)]
        if len(set(names)) < len(names):
            names = [f"{name}-{i}" for i, name in enumerate(names, start=1)]
        self._runs: dict[str, ServedRun] = {}
        for name, run in zip(names, runs, strict=True):
            self._serve(name, run)
        self._lock = Lock()
        self._loaded: OrderedDict[str, Run] = OrderedDict()
        self._compared: tuple[list[Run], Comparison] | None = None

    def _serve(self, name: str, run: Run) -> None:
        """Serve a run, and those of its answer steps beside it."""
        served = self._runs[name] = ServedRun(name, run)
        for step, own in run.steps.items():
            self._runs[served.step_name(step)] = ServedRun(served.step_name(step), own, served)

    def __getitem__(self, name: str) -> ServedRun:
        """A run as it is on disk now; as it last was, if its folder can no longer be read."""
        if name not in self._runs:
            raise NotFound(f"There is no run {name[:80]!r} here; choose from {', '.join(self._runs)}.")
        with self._lock:
            served = self._runs[name]
            if manifest_stamp(served.run.path) != served.stamp:
                with suppress(UserError):
                    run = served.run.reopened()
                    if run.owner is run:
                        self._serve(name, run)
                    else:
                        self._runs[name] = ServedRun(name, run, served.layout)
            return self._runs[name]

    def __iter__(self) -> Iterator[ServedRun]:
        return (self[name] for name in list(self._runs))

    @contextmanager
    def model(self, run: Run) -> Iterator[Model]:
        """A run's model. Only the thread of live work uses models, for one request at a time: edits are hooks on the model and
        must not mix."""
        owner = run.owner
        earlier = self._loaded.pop(str(owner.path), owner)
        if earlier is not owner:
            owner.take_model(earlier)
        self._loaded[str(owner.path)] = owner
        while len(self._loaded) > MAX_MODELS:
            self._loaded.popitem(last=False)[1].release()
        with explain_out_of_memory(f"the model of {run.path} or a pass through it"):
            yield run.model

    @property
    def comparison(self) -> Comparison:
        """Summaries and curves of all runs."""
        runs = [served.run for served in self]
        if self._compared is None or self._compared[0] != runs:
            self._compared = runs, compare(runs)
        return self._compared[1]

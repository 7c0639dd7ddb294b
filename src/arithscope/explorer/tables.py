"""Tables to filter, sort and page, and the queries for them: neurons, heuristics, and any table of a stage's result."""

from collections import Counter
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field

from arithscope.errors import UserError
from arithscope.experiments.classify import CRITERIA, RAW, Classification
from arithscope.experiments.common.result import mean_entry
from arithscope.experiments.knockout import GROUPS, OWN, Knockout
from arithscope.experiments.neurons import neuron_name
from arithscope.experiments.patterns import ActivationMaps
from arithscope.heuristics.kinds import kind_name

NEURON = ["operator", "layer", "neuron"]
HEURISTIC = ["operator", "heuristic"]
MAX_ROWS = 500  # of a table, per reply

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
    """A page of the matched heuristics. `search` is part of a heuristic's text; `tested` selects those knocked out."""

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
            self._tables[criterion] = table.reset_index().merge(
                _knockouts(knockout, criterion), on=HEURISTIC, how="left"
            )

    def page(self, query: HeuristicQuery) -> dict[str, Any]:
        rows = _where(self._tables[query.criterion], operator=query.operator, kind=query.kind)
        rows = rows[rows.heuristic.str.contains(query.search, regex=False)]
        return page(rows[rows.knockout.notna()] if query.tested else rows, query)

    def by_kind(self, criterion: str, operator: str | None) -> list[dict[str, Any]]:
        """Per kind, the number of heuristics and of matches, and matches per layer."""
        summary = []
        for kind, rows in _where(self._tables[criterion], operator=operator).groupby("kind", sort=True):
            layers = sum(map(Counter, rows.by_layer), Counter[int]())
            summary.append({"kind": kind, "heuristics": len(rows), "matches": layers.total(), "by_layer": dict(layers)})
        return summary


def _knockouts(knockout: Knockout | None, criterion: str) -> pd.DataFrame:
    """Per heuristic, accuracy with its own neurons ablated on both groups of prompts, the difference, and all means."""
    rows = []
    if knockout is not None:
        accuracy = knockout.accuracy.assign(mean=knockout.accuracy.ablated + "_" + knockout.accuracy.group)
        differences = knockout.differences.assign(mean="difference_" + knockout.differences.difference)
        means = _where(pd.concat([accuracy, differences]), criterion=criterion)
        for names, group in means.groupby(HEURISTIC):
            entries = {row["mean"]: mean_entry(row) for row in group.to_dict("records")}
            left = [entries[f"{OWN}_{prompts}"]["value"] for prompts in GROUPS]
            rows.append((*names, *left, entries["difference_prompts"]["value"], entries))
    return pd.DataFrame(rows, columns=[*HEURISTIC, *GROUPS, "difference", "knockout"])

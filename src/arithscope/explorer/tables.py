"""Tables to filter, sort and page: neurons and heuristics of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.classify import CALIBRATED, CRITERIA, Classification
from arithscope.experiments.common.result import mean_entry
from arithscope.experiments.knockout import GROUPS, OWN, Knockout
from arithscope.experiments.neurons import neuron_name
from arithscope.experiments.patterns import ActivationMaps
from arithscope.explorer.request_models import HeuristicsAsked, NeuronsAsked
from arithscope.heuristics.kinds import kind_name

KNOCKOUT = (*GROUPS, "difference", "knockout")  # columns of what a knockout says


@dataclass(frozen=True)
class Page:
    """Some rows of those that fit, and how many fit."""

    rows: list[dict[Any, Any]]
    total: int


def _page(rows: pd.DataFrame, asked: NeuronsAsked | HeuristicsAsked) -> Page:
    """Missing values come last in either direction; rows that are equal keep their order."""
    ordered = rows.sort_values(asked.sort, ascending=not asked.descending, kind="stable", na_position="last")
    return Page(ordered.iloc[asked.offset : asked.offset + asked.size].to_dict("records"), len(rows))


class NeuronTable:
    """The top neurons of all operators, with what they match by either criterion: how many heuristics, and the one furthest
    beyond what is expected."""

    def __init__(self, patterns: ActivationMaps, classify: Classification):
        self._classify = classify
        top = patterns.neurons.drop(columns="tokens").reset_index(drop=True)
        own = classify.neurons[["operator", "layer", "neuron", "coverage_raw", "coverage_calibrated"]]
        self._tables = {c: self._described(top.merge(own, on=list(_WHO), how="left"), c) for c in CRITERIA}

    def _described(self, table: pd.DataFrame, criterion: str) -> pd.DataFrame:
        matches = self._classify.matched(None, criterion).sort_values("neg_log10_p", ascending=False, kind="stable")
        counts = matches.groupby(list(_WHO)).size().rename("heuristics").reset_index()
        main = matches.drop_duplicates(list(_WHO))[[*_WHO, "heuristic", "kind", "on", "score"]]
        table = table.merge(counts, on=list(_WHO), how="left").merge(main, on=list(_WHO), how="left")
        names = [neuron_name(*x) for x in zip(table.layer, table.neuron, strict=True)]
        kinds = [None if pd.isna(k) else kind_name(k, on) for k, on in zip(table.kind, table.on, strict=True)]
        return table.drop(columns=["kind", "on"]).assign(
            name=names,
            kind=pd.Series(kinds, dtype=object),
            heuristics=table.heuristics.fillna(0).astype(int),
            heuristic=table.heuristic.astype(object).where(table.heuristic.notna(), None),
            coverage=table[f"coverage_{criterion}"],
            rank=table["rank"] + 1,
        )

    def page(self, asked: NeuronsAsked) -> Page:
        rows = self._tables[asked.criterion]
        if asked.operator is not None:
            rows = rows[rows.operator == asked.operator]
        if asked.layer is not None:
            rows = rows[rows.layer == asked.layer]
        if asked.classified != "any":
            rows = rows[(rows.heuristics > 0) == (asked.classified == "classified")]
        if asked.kind is not None or asked.heuristic is not None:
            rows = rows[self._having(rows, asked.criterion, asked.kind, asked.heuristic)]
        return _page(rows, asked)

    def _having(
        self, rows: pd.DataFrame, criterion: str, kind: str | None, heuristic: str | None
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which neurons match some heuristic of a kind, or this heuristic."""
        matches = self._classify.matched(None, criterion)
        if heuristic is not None:
            matches = matches[matches.heuristic == heuristic]
        if kind is not None:
            named = [kind_name(k, on) == kind for k, on in zip(matches.kind, matches.on, strict=True)]
            matches = matches[np.array(named, dtype=np.bool_)]
        who = pd.MultiIndex.from_frame(rows[list(_WHO)])
        return np.asarray(who.isin(pd.MultiIndex.from_frame(matches[list(_WHO)])))

    @cached_property
    def kinds(self) -> list[tuple[str, str]]:
        m = self._classify.matches
        return sorted(set(zip(m.kind, m.on, strict=True)))

    @cached_property
    def layers(self) -> list[int]:
        return sorted(int(x) for x in self._tables[CALIBRATED].layer.unique())


_WHO = ("operator", "layer", "neuron")


class HeuristicTable:
    """The heuristics that some top neuron matches, by either criterion: how many neurons in each layer, and what is left of
    accuracy without them, where that was tested."""

    def __init__(self, classify: Classification, knockout: Knockout | None):
        self._tables = {c: _heuristics(classify, c) for c in CRITERIA}
        if knockout is not None:
            for c, table in self._tables.items():
                self._tables[c] = table.merge(_knocked_out(knockout, c), on=["operator", "heuristic"], how="left")

    def page(self, asked: HeuristicsAsked) -> Page:
        rows = self._tables[asked.criterion]
        if asked.operator is not None:
            rows = rows[rows.operator == asked.operator]
        if asked.kind is not None:
            rows = rows[rows.kind == asked.kind]
        if asked.search:
            rows = rows[rows.heuristic.str.contains(asked.search, regex=False)]
        for missing in set(KNOCKOUT) - set(rows.columns):
            rows = rows.assign(**{missing: None})
        if asked.tested:
            rows = rows[rows.knockout.notna()]
        return _page(rows, asked)

    def by_kind(self, criterion: str, operator: str | None) -> list[dict[str, Any]]:
        """For each kind its heuristics and matches, and the matches by layer."""
        rows = self._tables[criterion]
        rows = rows if operator is None else rows[rows.operator == operator]
        found = []
        for kind, some in rows.groupby("kind", sort=True):
            layers: dict[int, int] = {}
            for by_layer in some.by_layer:
                for layer, n in by_layer.items():
                    layers[layer] = layers.get(layer, 0) + n
            found.append(
                {"kind": kind, "heuristics": len(some), "matches": int(some.neurons.sum()), "by_layer": layers}
            )
        return found


def _heuristics(classify: Classification, criterion: str) -> pd.DataFrame:
    matches = classify.matched(None, criterion)
    rows = []
    for (operator, heuristic), some in matches.groupby(["operator", "heuristic"], sort=True):
        first = some.iloc[0]
        layers = some.layer.value_counts().sort_index()
        rows.append(
            {
                "operator": operator,
                "heuristic": heuristic,
                "kind": kind_name(str(first.kind), str(first.on)),
                "direct": bool(first.direct),
                "size": int(first["size"]),
                "neurons": len(some),
                "by_layer": {int(str(layer)): int(n) for layer, n in layers.items()},
            }
        )
    columns = ["operator", "heuristic", "kind", "direct", "size", "neurons", "by_layer"]
    return pd.DataFrame(rows, columns=columns)


def _knocked_out(knockout: Knockout, criterion: str) -> pd.DataFrame:
    """One row a heuristic: accuracy left on associated and other prompts with its own neurons silenced, and all numbers."""
    left = knockout.accuracy[knockout.accuracy.criterion == criterion]
    gaps = knockout.differences[knockout.differences.criterion == criterion]
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in left.to_dict("records"):
        entry = _entry(rows, row)
        entry["knockout"][f"{row['ablated']}_{row['group']}"] = mean_entry(row)
        if row["ablated"] == OWN:
            entry[str(row["group"])] = row["value"]
    for row in gaps.to_dict("records"):
        entry = _entry(rows, row)
        entry["knockout"][f"difference_{row['difference']}"] = mean_entry(row)
        if row["difference"] == "prompts":
            entry["difference"] = row["value"]
    return pd.DataFrame(list(rows.values()), columns=["operator", "heuristic", *KNOCKOUT])


def _entry(rows: dict[tuple[str, str], dict[str, Any]], row: Mapping[Any, Any]) -> dict[str, Any]:
    named = {"operator": str(row["operator"]), "heuristic": str(row["heuristic"])}
    return rows.setdefault((named["operator"], named["heuristic"]), {**named, "knockout": {}})

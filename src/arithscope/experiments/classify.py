"""Which heuristics the top neurons implement, which matches can be trusted, and how much of the patterns they explain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.neurons import neuron_name
from arithscope.experiments.patterns import Patterns
from arithscope.experiments.result import Result, by_operator, of_neuron, table_of
from arithscope.heuristics import classification
from arithscope.heuristics.catalogue import Catalogue, catalogue
from arithscope.heuristics.classification import Neurons
from arithscope.heuristics.kinds import BOTH, RESULT, parse
from arithscope.heuristics.one_operand import permutations, remaining, takes_both
from arithscope.heuristics.variance import Coverage
from arithscope.measures import Mean, bootstrap_mean
from arithscope.progress import Progress
from arithscope.prompts import random_source
from arithscope.threads import workers

RAW, CALIBRATED = CRITERIA = ("raw", "calibrated")
ANY = "any"  # kind of heuristic
ALL_LAYERS = -1


@dataclass(frozen=True, repr=False)
class Classify(Result):
    """matches: every neuron and heuristic with a score of at least 0.6, with its calibration. `op1_only` and `op2_only` are the
    mean scores that remain if activations depend on one operand only, and `two_operands` says whether the score goes clearly
    beyond both; they are there for calibrated matches about the result or both operands. best: for each neuron and kind the
    heuristic furthest beyond expectation, match or not. neurons: all top neurons, classified or not. coverage: the share of the
    pattern's variance that the matched heuristics explain together, all of them (raw) or the calibrated ones.
    shares: of neurons with a match, by operator, layer (−1: all), and kind of heuristic."""

    matches: pd.DataFrame  # operator, layer, neuron, heuristic, kind, on, direct, sign, size, score, chance, …
    best: pd.DataFrame  # the same columns
    neurons: pd.DataFrame  # operator, layer, neuron, raw, calibrated, coverage_raw, coverage_calibrated, …
    shares: pd.DataFrame  # operator, layer, kind, on, criterion, value, low, high, n
    table: pd.DataFrame  # operator, measure, value, low, high, n

    @property
    def operators(self) -> list[str]:
        return [str(o) for o in self.neurons.operator.unique()]

    def matched(self, operator: str | None, criterion: str) -> pd.DataFrame:
        """An operator's matches, or those of all operators: all of them (raw) or the calibrated ones."""
        found = self.matches if operator is None else self.matches[self.matches.operator == operator]
        return found if criterion == RAW else found[found.calibrated]

    def of_neuron(self, operator: str, layer: int, neuron: int) -> pd.DataFrame:
        """A neuron's matches, those first that are furthest beyond what its value vector alone brings."""
        return of_neuron(self.matches, operator, layer, neuron).sort_values("beyond", ascending=False, kind="stable")

    def summary(self) -> dict[str, Any]:
        return by_operator(self.table)


def classify(
    patterns: Patterns, both_operands: bool, null_draws: int, seed: int, device: Any, progress: Progress
) -> Classify:
    """Operator after operator: match, calibrate, look at one operand at a time, and add up what is explained."""
    found: dict[str, list[pd.DataFrame]] = {"matches": [], "best": [], "neurons": []}
    with progress.task("classify", 2 * len(patterns.neurons)) as advance:
        for operator in patterns.operators:
            sets = catalogue(operator, patterns.max_operand, patterns.limit, both_operands, device)
            rows = patterns.rows(operator)
            neurons = Neurons(patterns.activations[rows], patterns.logits[rows])
            who = patterns.neurons.iloc[rows][["operator", "layer", "neuron"]].reset_index(drop=True)
            names = [neuron_name(*x) for x in zip(who.layer, who.neuron, strict=True)]
            tables = classification.classify(neurons, sets, null_draws, seed, names, advance)
            matches, coverage = _looked_closer(neurons, sets, tables.matches, seed, advance)
            described = tables.neurons.join(coverage).assign(**_flags(matches, len(who)))
            for name, table in (("matches", matches), ("best", tables.best), ("neurons", described)):
                known = who.iloc[table.row.to_numpy()].reset_index(drop=True)
                found[name].append(known.join(table.drop(columns="row").reset_index(drop=True)))
    matches, best, described = (pd.concat(tables, ignore_index=True) for tables in found.values())
    return Classify(matches, best, described, shares(described, matches, seed), _table(described, seed))


def _flags(matches: pd.DataFrame, rows: int) -> dict[str, NDArray[np.bool_]]:
    """Which neurons have a match, a calibrated one, and a calibrated one that takes both operands."""
    chosen = {RAW: matches, CALIBRATED: matches[matches.calibrated], "two_operands": matches[matches.two_operands == 1]}
    return {name: np.isin(np.arange(rows), some.row) for name, some in chosen.items()}


def _looked_closer(
    neurons: Neurons, sets: Catalogue, matches: pd.DataFrame, seed: int, advance: Callable[[int], None]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The matches with what is left of them if one operand counts, and each neuron's coverage."""
    cover, permuted = Coverage(sets), permutations(sets, seed)
    heuristics = [parse(h) for h in matches.heuristic]
    calibrated, direct, sign = (matches[name].to_numpy() for name in ("calibrated", "direct", "sign"))
    of_two = calibrated & matches.on.isin([RESULT, BOTH]).to_numpy()
    size, overlap = (torch.tensor(matches[name].to_numpy()) for name in ("size", "overlap"))
    left = np.full((len(matches), 3), np.nan, dtype=np.float32)  # op1_only, op2_only, two_operands
    coverage = np.empty((len(neurons), len(CRITERIA)))
    own_matches = {int(str(row)): np.asarray(places) for row, places in matches.groupby("row").indices.items()}

    def look(row: int) -> None:
        own = own_matches.get(row, np.empty(0, dtype=np.int64))
        [pattern], [on_answer] = neurons.on_prompts(range(row, row + 1), sets)
        every = np.ones(len(own), dtype=np.bool_)
        coverage[row] = cover(pattern.cpu().numpy(), [heuristics[i] for i in own], every, calibrated[own])
        for is_direct, which in {(bool(direct[i]), int(sign[i])) for i in own[of_two[own]]}:
            some = own[of_two[own] & (direct[own] == is_direct) & (sign[own] == which)]
            weights = on_answer if is_direct else torch.full_like(on_answer, which)
            of_some, largest = [heuristics[i] for i in some], int(size[some].max())
            means = remaining(pattern, weights, of_some, largest, sets, permuted).cpu()
            left[some, 1::-1] = (means / size[some]).T.numpy()
            left[some, 2] = takes_both(overlap[some], size[some], means).numpy()
        advance(1)

    with workers() as pool:
        list(pool.map(look, range(len(neurons))))
    more = pd.DataFrame(left, columns=["op1_only", "op2_only", "two_operands"], index=matches.index)
    return matches.join(more), pd.DataFrame(coverage, columns=[f"coverage_{c}" for c in CRITERIA])


def shares(neurons: pd.DataFrame, matches: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The share of neurons with at least one match, by operator, layer and kind, of both criteria."""
    kinds = [(ANY, ANY), *sorted(set(zip(matches.kind, matches.on, strict=True)))]
    rows = []
    for operator, of_operator in neurons.groupby("operator", sort=False):
        for layer in (ALL_LAYERS, *sorted(of_operator.layer.unique())):
            mine = of_operator if layer == ALL_LAYERS else of_operator[of_operator.layer == layer]
            who = pd.MultiIndex.from_frame(mine[["layer", "neuron"]])
            found = matches[matches.operator == operator]
            for kind, on in kinds:
                of_kind = found if kind == ANY else found[(found.kind == kind) & (found.on == on)]
                for criterion, chosen in ((RAW, of_kind), (CALIBRATED, of_kind[of_kind.calibrated])):
                    has = who.isin(pd.MultiIndex.from_frame(chosen[["layer", "neuron"]]))
                    random = random_source(seed, "shares", str(operator), int(layer), kind, on, criterion)
                    share = asdict(bootstrap_mean(has, random))
                    rows.append(
                        {"operator": operator, "layer": layer, "kind": kind, "on": on, "criterion": criterion, **share}
                    )
    return pd.DataFrame(rows)


def _table(neurons: pd.DataFrame, seed: int) -> pd.DataFrame:
    columns = {
        "raw_share": "raw",
        "calibrated_share": "calibrated",
        "coverage_raw": "coverage_raw",
        "coverage_calibrated": "coverage_calibrated",
        "two_operand_share": "two_operands",
    }
    measured: dict[str, dict[str, Mean]] = {}
    for operator, rows in neurons.groupby("operator", sort=False):
        measured[str(operator)] = {
            name: bootstrap_mean(rows[column].astype(np.float64), random_source(seed, "classify", name, str(operator)))
            for name, column in columns.items()
        }
    return table_of(measured)

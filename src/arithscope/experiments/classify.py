"""Which heuristics the top neurons implement, which matches can be trusted, and how much of the patterns they explain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common.result import Result, by_operator, of_neuron, summary_table
from arithscope.experiments.neurons import neuron_name
from arithscope.experiments.patterns import ActivationMaps
from arithscope.heuristics.catalogue import Catalogue, catalogue
from arithscope.heuristics.classification import Matched, NeuronBatch, calibrate, match, null_of_indirect, tries
from arithscope.heuristics.kinds import BOTH, RESULT, parse
from arithscope.heuristics.one_operand import permutations, remaining, takes_both
from arithscope.heuristics.variance import Coverage
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, random_source
from arithscope.stats.measures import Mean, bootstrap_mean
from arithscope.utils.executor import LOCAL, Executor, split_evenly
from arithscope.utils.progress import Advance, Progress
from arithscope.utils.threads import workers

RAW, CALIBRATED = CRITERIA = ("raw", "calibrated")
ANY = "any"  # kind of heuristic
ALL_LAYERS = -1
NEURONS_IN_UNIT = 256

# Operator, largest operand, limit, and whether heuristics about both operands are tried.
Vocabulary = tuple[str, int, int, bool]
Columns = dict[str, Any]  # of a table, as arrays, or lists of texts


@dataclass(frozen=True, repr=False)
class Classification(Result):
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
        return of_neuron(self.matches, operator, layer, neuron).sort_values(
            "neg_log10_p", ascending=False, kind="stable"
        )

    def summary(self) -> dict[str, Any]:
        return by_operator(self.table)


def classify(
    model: Model,
    patterns: ActivationMaps,
    both_operands: bool,
    null_draws: int,
    seed: int,
    progress: Progress,
    executor: Executor = LOCAL,
) -> Classification:
    """Match every neuron, calibrate operator by operator, look at one operand at a time, and add up what is explained. The
    subject only says where that is computed."""
    who = patterns.neurons[["operator", "layer", "neuron"]].reset_index(drop=True)
    names = [neuron_name(*x) for x in zip(who.layer, who.neuron, strict=True)]
    words = {o: (o, patterns.max_operand, patterns.limit, both_operands) for o in patterns.operators}
    some = [(o, rows) for o in words for rows in _blocks(patterns.rows(o))]
    arrays = [tuple(np.asarray(x[rows]) for x in (patterns.activations, patterns.logits)) for _, rows in some]
    with progress.task("classify", 2 * len(who)) as advance:
        asked = [(words[o], null_draws, seed, names[rows], *x) for (o, rows), x in zip(some, arrays, strict=True)]
        found = executor.map(matched, model, asked, advance)
        nulls = executor.map(null_and_tries, model, [(words[o], seed) for o in words], advance)
        tables = {}
        for o, (null, *tried) in zip(words, nulls, strict=True):
            together = _together([part for (of, _), part in zip(some, found, strict=True) if of == o])
            tables[o] = calibrate(together, null, (tried[0], tried[1]))
        own = [_of_rows(tables[o].matches, rows, patterns.rows(o)) for o, rows in some]
        closer = [(words[o], seed, columns_of(t), *x) for (o, _), t, x in zip(some, own, arrays, strict=True)]
        looked = iter(executor.map(looked_closer, model, closer, advance))
    results: dict[str, list[pd.DataFrame]] = {"matches": [], "best": [], "neurons": []}
    for o, table in tables.items():
        left, coverage = zip(*(next(looked) for of, _ in some if of == o), strict=True)
        more = pd.DataFrame(np.concatenate(left), columns=["op1_only", "op2_only", "two_operands"])
        matches = table.matches.join(more)
        covered = pd.DataFrame(np.concatenate(coverage), columns=[f"coverage_{c}" for c in CRITERIA])
        described = table.neurons.join(covered).assign(**_flags(matches, len(covered)))
        mine = who.iloc[patterns.rows(o)]
        for name, frame in (("matches", matches), ("best", table.best), ("neurons", described)):
            known = mine.iloc[frame.row.to_numpy()].reset_index(drop=True)
            results[name].append(known.join(frame.drop(columns="row").reset_index(drop=True)))
    matches, best, described = (pd.concat(frames, ignore_index=True) for frames in results.values())
    return Classification(matches, best, described, shares(described, matches, seed), summary_table(described, seed))


def _blocks(rows: slice) -> Iterator[slice]:
    """The rows of an operator, some at a time."""
    for block in split_evenly(rows.stop - rows.start, NEURONS_IN_UNIT):
        yield slice(rows.start + block.start, rows.start + block.stop)


@lru_cache(maxsize=len(OPERATORS))
def _sets(words: Vocabulary, device: torch.device) -> Catalogue:
    """Kept, as several units of an operator need them."""
    return catalogue(*words, device)


@lru_cache(maxsize=len(OPERATORS))
def _closer_look(words: Vocabulary, seed: int, device: torch.device) -> tuple[Coverage, Tensor]:
    """What is looked at more closely with, kept for the same reason."""
    sets = _sets(words, device)
    return Coverage(sets), permutations(sets, seed)


def matched(
    model: Model,
    words: Vocabulary,
    draws: int,
    seed: int,
    names: Sequence[str],
    activations: NDArray[np.float16],
    logits: NDArray[np.float32],
    *,
    advance: Advance,
) -> tuple[Columns, Columns, NDArray[np.float64]]:
    """A unit: some neurons of an operator against all of its heuristics; the fields of `Matched`."""
    sets = _sets(words, model.device)
    with workers() as pool:
        found = match(NeuronBatch(activations, logits), sets, draws, seed, names, pool, advance)
    return columns_of(found.matches), columns_of(found.best), found.null


def null_and_tries(
    model: Model, words: Vocabulary, seed: int, *, advance: Advance
) -> tuple[NDArray[np.float64], int, int]:
    """A unit: what an operator's matches are compared with."""
    sets = _sets(words, model.device)
    return null_of_indirect(sets, seed), *tries(sets)


def columns_of(table: pd.DataFrame) -> Columns:
    return {str(n): x.to_numpy() if x.dtype.kind in "biuf" else [str(v) for v in x] for n, x in table.items()}


def _together(parts: Sequence[tuple[Columns, Columns, NDArray[np.float64]]]) -> Matched:
    """The neurons of all units of an operator."""
    matches, best, nulls = zip(*parts, strict=True)
    first = np.cumsum([0, *map(len, nulls[:-1])])
    tables = []
    for some in (matches, best):
        moved = [_frame({**x, "row": x["row"] + start}) for x, start in zip(some, first, strict=True)]
        tables.append(pd.concat(moved, ignore_index=True))
    return Matched(tables[0], tables[1], np.concatenate(nulls))


def _frame(columns: Columns) -> pd.DataFrame:
    texts = {name: np.array(x, dtype=object) for name, x in columns.items() if isinstance(x, list)}
    return pd.DataFrame({**columns, **texts})


def _of_rows(matches: pd.DataFrame, rows: slice, of_operator: slice) -> pd.DataFrame:
    """The matches of a unit's neurons, numbered from its first one."""
    row = matches.row.to_numpy() + of_operator.start
    return matches[(row >= rows.start) & (row < rows.stop)].assign(row=lambda t: t.row + of_operator.start - rows.start)


def _flags(matches: pd.DataFrame, rows: int) -> dict[str, NDArray[np.bool_]]:
    """Which neurons have a match, a calibrated one, and a calibrated one that takes both operands."""
    chosen = {RAW: matches, CALIBRATED: matches[matches.calibrated], "two_operands": matches[matches.two_operands == 1]}
    return {name: np.isin(np.arange(rows), some.row) for name, some in chosen.items()}


def looked_closer(
    model: Model,
    words: Vocabulary,
    seed: int,
    columns: Columns,
    activations: NDArray[np.float16],
    logits: NDArray[np.float32],
    *,
    advance: Advance,
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """A unit: what is left of some neurons' matches if one operand counts (op1_only, op2_only, two_operands), and each neuron's
    coverage."""
    sets, neurons, matches = _sets(words, model.device), NeuronBatch(activations, logits), _frame(columns)
    cover, permuted = _closer_look(words, seed, model.device)
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
    return left, coverage


def shares(neurons: pd.DataFrame, matches: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The share of neurons with at least one match, by operator, layer and kind, of both criteria."""
    kinds = [(ANY, ANY), *sorted(set(zip(matches.kind, matches.on, strict=True)))]
    rows = []
    for operator, of_operator in neurons.groupby("operator", sort=False):
        found, layers = matches[matches.operator == operator], of_operator.layer.to_numpy()
        who, whose = (pd.MultiIndex.from_frame(x[["layer", "neuron"]]) for x in (of_operator, found))
        place, has = who.get_indexer(whose), {}
        for kind, on in kinds:
            of_kind = ((found.kind == kind) & (found.on == on)).to_numpy() | (kind == ANY)
            for criterion, chosen in ((RAW, of_kind), (CALIBRATED, of_kind & found.calibrated.to_numpy())):
                has[kind, on, criterion] = np.isin(np.arange(len(who)), place[chosen])
        for layer in (ALL_LAYERS, *sorted(of_operator.layer.unique())):
            mine = (layers == layer) | (layer == ALL_LAYERS)
            for (kind, on, criterion), those in has.items():
                random = random_source(seed, "shares", str(operator), int(layer), kind, on, criterion)
                share = asdict(bootstrap_mean(those[mine], random))
                named = {"operator": operator, "layer": layer, "kind": kind, "on": on, "criterion": criterion}
                rows.append({**named, **share})
    return pd.DataFrame(rows)


def summary_table(neurons: pd.DataFrame, seed: int) -> pd.DataFrame:
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
    return summary_table(measured)

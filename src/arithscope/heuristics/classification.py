"""From activations and value vectors to matches: every neuron of an operator against every heuristic, with calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics.calibration import (
    CLASSES,
    LEVEL,
    SIGNS,
    Direct,
    chance_of,
    direct,
    false_discovery_rate,
    indirect_null,
)
from arithscope.heuristics.catalogue import Catalogue, Side
from arithscope.heuristics.kinds import Heuristic
from arithscope.heuristics.matching import is_match, order, overlaps
from arithscope.heuristics.multi_result import how_many_sets
from arithscope.heuristics.tails import evidence as one_evidence
from arithscope.prompts import random_source

CPU_CELLS, GPU_CELLS = 2**19, 2**25  # neurons × prompts that are sorted at a time


@dataclass(frozen=True, eq=False)
class Neurons:
    """Patterns of neurons over the operand square [neurons, cells], and their value vectors' logits of the numbers
    [neurons, numbers]."""

    activations: NDArray[np.float16]
    logits: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.activations)

    def on_prompts(self, rows: range, catalogue: Catalogue) -> tuple[Tensor, Tensor]:
        """Activations, and logits of the answer, over the catalogue's prompts: [rows, prompts] each."""
        activations, logits = (
            torch.from_numpy(np.array(x[rows.start : rows.stop])).to(catalogue.cells.device)
            for x in (self.activations, self.logits)
        )
        return activations.flatten(1)[:, catalogue.cells].float(), logits[:, catalogue.answers].float()


@dataclass(frozen=True)
class Classification:
    """matches: every pair of neuron and heuristic with a score of at least THRESHOLD. best: for each neuron and each kind of
    heuristic the one with most evidence, match or not. neurons: what the calibration rests on.

    Scores come with chance = k/N and corrected = (score − chance)/(1 − chance); evidence = −log₁₀ of the hypergeometric tail
    probability; expected, the score that the value vector alone brings (for indirect heuristics, chance), and beyond, p and fdr
    (see `calibration`). calibrated: score ≥ THRESHOLD and fdr ≤ LEVEL."""

    matches: pd.DataFrame  # row, heuristic, kind, on, direct, sign, size, overlap, and the above
    best: pd.DataFrame
    neurons: pd.DataFrame  # row, p, fdr


def classify(
    neurons: Neurons,
    catalogue: Catalogue,
    draws: int,
    seed: int,
    names: Sequence[str],
    advance: Callable[[int], None],
) -> Classification:
    """Score, calibrate with so many permutations of each neuron, and tabulate. A neuron's name seeds its permutations, so that
    they depend on no other neuron."""
    size = rows_at_a_time(catalogue)

    def work(start: int) -> _Part:
        rows = range(start, min(start + size, len(neurons)))
        done = _part(neurons, rows, catalogue, draws, seed, names)
        advance(len(rows))
        return done

    with workers(catalogue) as pool:
        parts = list(pool.map(work, range(0, len(neurons), size)))
        random = random_source(seed, "indirect null", catalogue.operator)
        null = {False: indirect_null(catalogue, random, size).cpu().numpy()}
    null[True] = np.concatenate([part.null for part in parts])
    tries = {
        False: SIGNS * len(catalogue.indirect.heuristics),
        True: len(catalogue.direct.heuristics) + how_many_sets(catalogue),
    }
    matches, best = (
        _with_chances(pd.concat(tables, ignore_index=True), len(catalogue))
        for tables in ([part.matches for part in parts], [part.best for part in parts])
    )

    def p_of(frame: pd.DataFrame) -> NDArray[np.float64]:
        found, direct = frame.beyond.to_numpy(), frame.direct.to_numpy()
        by_class = [chance_of(found, null[c], tries[c]) for c in (True, False)]
        return np.minimum(CLASSES * np.where(direct, *by_class), 1.0)

    own = best.assign(p=p_of(best)).groupby("row").p.min().to_numpy()

    def calibrated(frame: pd.DataFrame) -> pd.DataFrame:
        p = p_of(frame)
        fdr = false_discovery_rate(p, own)
        return frame.assign(p=p, fdr=fdr, calibrated=is_match(frame.overlap, frame["size"]) & (fdr <= LEVEL))

    table = pd.DataFrame({"row": np.arange(len(neurons)), "p": own, "fdr": false_discovery_rate(own, own)})
    return Classification(calibrated(matches), calibrated(best), table)


def rows_at_a_time(catalogue: Catalogue) -> int:
    return max(1, (GPU_CELLS if catalogue.cells.is_cuda else CPU_CELLS) // len(catalogue))


@contextmanager
def workers(catalogue: Catalogue) -> Iterator[ThreadPoolExecutor]:
    """Threads for independent pieces of work: on a CPU as many as torch uses inside an operation, which now uses one."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with ThreadPoolExecutor(1 if catalogue.cells.is_cuda else threads) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, eq=False)
class _Part:
    """Of some neurons: tables without p and rates, and the direct null [neurons, draws]."""

    matches: pd.DataFrame
    best: pd.DataFrame
    null: NDArray[np.float64]


def _part(neurons: Neurons, rows: range, catalogue: Catalogue, draws: int, seed: int, names: Sequence[str]) -> _Part:
    activations, logits = neurons.on_prompts(rows, catalogue)
    tables = _Tables()
    _indirect_pairs(activations, rows, catalogue.indirect, tables)
    nulls = []
    for row, a, on_answer in zip(rows, activations, logits, strict=True):
        random = random_source(seed, "direct null", catalogue.operator, names[row])
        found = direct(a, on_answer, catalogue, draws, random, rows_at_a_time(catalogue))
        _direct_pairs(found, row, catalogue, tables)
        nulls.append(found.null)
    return _Part(pd.concat(tables.matches), pd.concat(tables.best), torch.cat(nulls).cpu().numpy())


@dataclass(frozen=True, eq=False)
class _Tables:
    matches: list[pd.DataFrame] = field(default_factory=list)
    best: list[pd.DataFrame] = field(default_factory=list)


def _indirect_pairs(activations: Tensor, rows: range, side: Side, tables: _Tables) -> None:
    above, below = (overlaps(order(x), side) for x in (activations, -activations))
    overlap, sign = torch.maximum(above, below), torch.where(below > above, -1, 1)
    evidence = side.evidence(overlap)
    kinds = torch.stack([evidence[:, a:b].argmax(1) + a for a, b in _kinds(side)], dim=1)
    every_row = torch.arange(len(rows), device=kinds.device)[:, None].expand_as(kinds)
    matched = is_match(overlap, side.sizes).nonzero(as_tuple=True)
    for table, (row, column) in ((tables.matches, matched), (tables.best, (every_row.flatten(), kinds.flatten()))):
        heuristics = [side.heuristics[i] for i in column.tolist()]
        at = row, column
        found = {"sign": sign[at], "size": side.sizes[column], "overlap": overlap[at], "evidence": evidence[at]}
        table.append(_pairs(row + rows.start, heuristics, expected=side.chance[column], beyond=evidence[at], **found))


def _direct_pairs(found: Direct, row: int, catalogue: Catalogue, tables: _Tables) -> None:
    side, sets = catalogue.direct, found.catalogued
    evidence = side.evidence(sets.overlap)
    kinds = torch.stack([sets.beyond[a:b].argmax() + a for a, b in _kinds(side)])
    for table, chosen in (
        (tables.matches, is_match(sets.overlap, sets.size).nonzero().flatten()),
        (tables.best, kinds),
    ):
        heuristics = [side.heuristics[i] for i in chosen.tolist()]
        columns = {name: values[chosen] for name, values in vars(sets).items()}
        table.append(
            _pairs(
                torch.full_like(chosen, row),
                heuristics,
                sign=torch.ones_like(chosen),
                evidence=evidence[chosen],
                **columns,
            )
        )
    if found.several is not None:
        heuristic, sets = found.several
        evidence = one_evidence(len(catalogue), sets.size, sets.overlap)
        pair = _pairs(torch.tensor([row]), [heuristic], sign=torch.tensor([1]), evidence=evidence, **vars(sets))
        tables.best.append(pair)
        tables.matches.append(pair[is_match(pair.overlap, pair["size"])])


def _pairs(row: Tensor, heuristics: Sequence[Heuristic], **columns: Tensor) -> pd.DataFrame:
    kinds = {"sign": np.int8, "size": np.int32, "overlap": np.int32}
    return pd.DataFrame(
        {
            "row": row.cpu().numpy(),
            "heuristic": np.array([str(h) for h in heuristics], dtype=object),
            "kind": np.array([h.kind for h in heuristics], dtype=object),
            "on": np.array([h.on for h in heuristics], dtype=object),
            "direct": np.array([h.direct for h in heuristics], dtype=np.bool_),
            **{
                name: columns[name].cpu().numpy().astype(kinds.get(name, np.float64))
                for name in ("sign", "size", "overlap", "expected", "evidence", "beyond")
            },
        }
    )


def _with_chances(pairs: pd.DataFrame, total: int) -> pd.DataFrame:
    """Overlaps as shares of the set."""
    score, chance = pairs.overlap / pairs["size"], pairs["size"] / total
    corrected = (score - chance) / (1 - chance)
    return pairs.assign(score=score, chance=chance, corrected=corrected, expected=pairs.expected / pairs["size"])


def _kinds(side: Side) -> list[tuple[int, int]]:
    """Where the heuristics of each kind, about the same number, begin and end."""
    groups = [len(list(group)) for _, group in groupby(side.heuristics, key=lambda h: (h.kind, h.on))]
    ends = np.cumsum([0, *groups])
    return list(pairwise(ends.tolist()))

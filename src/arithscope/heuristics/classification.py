"""From activations and value vectors to matches: every neuron of an operator against every heuristic, with calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics.calibration import (
    CLASSES,
    LEVEL,
    SIGNS,
    Overlaps,
    chance_of,
    direct,
    false_discovery_rate,
    indirect_null,
)
from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import Heuristic
from arithscope.heuristics.matching import is_match, order, overlaps, taken
from arithscope.heuristics.multi_result import how_many_sets
from arithscope.heuristics.tails import neg_log10_p_hypergeom as one_neg_log10_p_hypergeom
from arithscope.prompts import random_source
from arithscope.utils.out_of_memory import rows_within
from arithscope.utils.threads import workers

CPU_CELLS, GPU_CELLS = 2**20, 2**25  # that are worked on at a time: orders of the prompts × prompts, or × entries

Columns = dict[str, NDArray[Any]]  # of a table


@dataclass(frozen=True, eq=False)
class NeuronBatch:
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
        return taken(activations.flatten(1), catalogue.cells).float(), taken(logits, catalogue.answers)


@dataclass(frozen=True)
class Classification:
    """matches: every pair of neuron and heuristic with a score of at least THRESHOLD. best: for each neuron and each kind of
    heuristic the one furthest beyond expectation, match or not. neurons: what the calibration rests on.

    Scores come with chance = k/N and corrected = (score − chance)/(1 − chance); evidence = −log₁₀ of the hypergeometric tail
    probability; expected, the score that the value vector alone brings (for indirect heuristics, chance), and beyond, p and fdr
    (see `calibration`). calibrated: score ≥ THRESHOLD and fdr ≤ LEVEL."""

    matches: pd.DataFrame  # row, heuristic, kind, on, direct, sign, size, overlap, and the above
    best: pd.DataFrame
    neurons: pd.DataFrame  # row, p, fdr


def classify(
    neurons: NeuronBatch,
    catalogue: Catalogue,
    draws: int,
    seed: int,
    names: Sequence[str],
    advance: Callable[[int], None],
) -> Classification:
    """Score, calibrate with so many permutations of each neuron, and tabulate. A neuron's name seeds its permutations, so that
    they depend on no other neuron."""
    with workers() as pool:
        of_indirect = pool.submit(null_of_indirect, catalogue, seed)
        matched = match(neurons, catalogue, draws, seed, names, pool, advance)
        return calibrate(matched, of_indirect.result(), tries(catalogue))


def null_of_indirect(catalogue: Catalogue, seed: int) -> NDArray[np.float64]:
    """The most that random activations show of indirect heuristics."""
    random = random_source(seed, "indirect null", catalogue.operator)
    return indirect_null(catalogue, random, rows_at_a_time(catalogue)).cpu().numpy()


def tries(catalogue: Catalogue) -> tuple[int, int]:
    """How many heuristics a neuron is tried with: indirect and direct ones."""
    return (
        SIGNS * len(catalogue.indirect.heuristics),
        len(catalogue.direct.heuristics) + how_many_sets(catalogue),
    )


def calibrate(matched: Matched, of_indirect: NDArray[np.float64], tried: tuple[int, int]) -> Classification:
    """With the nulls of all neurons of an operator: p and rates of false discovery."""
    null = of_indirect, matched.null.ravel()

    def p_of(frame: pd.DataFrame) -> NDArray[np.float64]:
        by_class = [chance_of(frame.neg_log10_p.to_numpy(), null[c], tried[c]) for c in (True, False)]
        return np.minimum(CLASSES * np.where(frame.direct, *by_class), 1.0)

    own = matched.best.assign(p=p_of(matched.best)).groupby("row").p.min().to_numpy()

    def calibrated(frame: pd.DataFrame) -> pd.DataFrame:
        p = p_of(frame)
        fdr = false_discovery_rate(p, own)
        return frame.assign(p=p, fdr=fdr, calibrated=is_match(frame.overlap, frame["size"]) & (fdr <= LEVEL))

    table = pd.DataFrame({"row": np.arange(len(matched.null)), "p": own, "fdr": false_discovery_rate(own, own)})
    return Classification(calibrated(matched.matches), calibrated(matched.best), table)


@dataclass(frozen=True, eq=False)
class Matched:
    """Tables without p and rates, and the most that each permutation of each neuron shows, [neurons, draws]."""

    matches: pd.DataFrame
    best: pd.DataFrame
    null: NDArray[np.float64]


def match(
    neurons: NeuronBatch,
    catalogue: Catalogue,
    draws: int,
    seed: int,
    names: Sequence[str],
    pool: Executor,
    advance: Callable[[int], None],
) -> Matched:
    """Score every neuron against every heuristic."""
    size = max(1, rows_at_a_time(catalogue) // (1 + draws))

    def executor(start: int) -> tuple[list[Columns], list[Columns], NDArray[np.float64]]:
        rows = range(start, min(start + size, len(neurons)))
        done = _matched(neurons, rows, catalogue, draws, seed, names)
        advance(len(rows))
        return done

    # A GPU is kept busy by one piece of work, and its memory is for one.
    each = map if catalogue.cells.is_cuda else pool.map
    matches, best, null = zip(*each(executor, range(0, len(neurons), size)), strict=True)
    tables = [_with_chances(list(chain(*parts)), len(catalogue)) for parts in (matches, best)]
    return Matched(tables[0], tables[1], np.concatenate(null))


def rows_at_a_time(catalogue: Catalogue) -> int:
    return rows_within(GPU_CELLS if catalogue.cells.is_cuda else CPU_CELLS, catalogue.width)


def _matched(
    neurons: NeuronBatch, rows: range, catalogue: Catalogue, draws: int, seed: int, names: Sequence[str]
) -> tuple[list[Columns], list[Columns], NDArray[np.float64]]:
    """Matches and best pairs, in pieces, and the null of some neurons."""
    activations, logits = neurons.on_prompts(rows, catalogue)
    above, below = (overlaps(order(x, catalogue.depth), catalogue.indirect) for x in (activations, -activations))
    both, sign = torch.maximum(above, below), torch.where(below > above, -1, 1)
    chance = catalogue.indirect.chance.expand_as(both)
    indirect = Overlaps(catalogue.indirect.sizes[None], both, chance, catalogue.indirect.neg_log10_p_hypergeom(both))
    shifts = np.stack(
        [
            random_source(seed, "direct null", catalogue.operator, names[row]).integers(1, len(catalogue), draws)
            for row in rows
        ]
    )
    found = direct(activations, logits, catalogue, shifts, rows_at_a_time(catalogue))
    matches: list[Columns] = []
    best: list[Columns] = []
    promoted = found.catalogued.overlap
    for side, sets, signs, tail in (
        (catalogue.indirect, indirect, sign, indirect.neg_log10_p),
        (
            catalogue.direct,
            found.catalogued,
            torch.ones_like(promoted),
            catalogue.direct.neg_log10_p_hypergeom(promoted),
        ),
    ):
        kinds = torch.stack([sets.neg_log10_p[:, a:b].argmax(1) + a for a, b in side.kinds], dim=1)
        every_row = torch.arange(len(rows), device=kinds.device)[:, None].expand_as(kinds)
        matched = is_match(sets.overlap, sets.size).nonzero(as_tuple=True)
        for tables, at in ((matches, matched), (best, (every_row.flatten(), kinds.flatten()))):
            heuristics = [side.heuristics[i] for i in at[1].tolist()]
            tables.append(_pairs(at, rows, heuristics, signs[at], tail, sets))
    if found.several is not None:
        several, sets = found.several
        tail = one_neg_log10_p_hypergeom(len(catalogue), sets.size[:, 0], sets.overlap[:, 0])[:, None]
        matched = several.found & is_match(several.overlap, several.size)
        for tables, which in ((matches, matched), (best, several.found)):
            at = which.nonzero().flatten()
            heuristics = [several.heuristic(i, catalogue) for i in at.tolist()]
            tables.append(_pairs((at, torch.zeros_like(at)), rows, heuristics, torch.ones_like(at), tail, sets))
    return matches, best, found.null.cpu().numpy()


def _pairs(
    at: tuple[Tensor, Tensor],
    rows: range,
    heuristics: Sequence[Heuristic],
    sign: Tensor,
    tail: Tensor,
    sets: Overlaps,
) -> Columns:
    """A table of some pairs of neuron and set, given by their places in `tail` and `sets`."""
    columns = {
        "row": at[0] + rows.start,
        "sign": sign.to(torch.int8),
        "size": sets.size.expand_as(sets.overlap)[at].int(),
        "overlap": sets.overlap[at].int(),
        "neg_log10_p_hypergeom": tail[at],
        "expected": sets.expected[at],
        "neg_log10_p": sets.neg_log10_p[at],
    }
    described = {
        "heuristic": np.array([str(h) for h in heuristics], dtype=object),
        "kind": np.array([h.kind for h in heuristics], dtype=object),
        "on": np.array([h.on for h in heuristics], dtype=object),
        "direct": np.array([h.direct for h in heuristics], dtype=np.bool_),
    }
    return {**described, **{name: x.cpu().numpy() for name, x in columns.items()}}


def _with_chances(pieces: Sequence[Columns], total: int) -> pd.DataFrame:
    """One table of all pairs, neuron after neuron, with overlaps as shares of the set."""
    joined = pd.DataFrame({name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]})
    pairs = joined.sort_values("row", kind="stable", ignore_index=True)
    score, chance = pairs.overlap / pairs["size"], pairs["size"] / total
    corrected = (score - chance) / (1 - chance)
    return pairs.assign(score=score, chance=chance, corrected=corrected, expected=pairs.expected / pairs["size"])

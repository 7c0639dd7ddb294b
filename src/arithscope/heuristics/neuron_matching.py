"""Match every neuron of an operator with every heuristic (paper Section 4.1, App. F), and calibrate.

With A the activations over the N legal prompts and L the value vector's logit of each prompt's answer:

1. Count the overlap of each indirect heuristic of k prompts with the top k of A, and of each direct heuristic with the top k
   of A × L. score = overlap / k. A raw match has a score of at least 0.6: the paper's criterion.
2. Gated MLPs fire with both signs. For them alone, also count the overlap of an indirect heuristic with the top k of −A, where
   the mean of A over its prompts is negative: the neuron fires there. Such pairs have sign −1 and are never raw matches.
3. Compute p and false-discovery rates against the permutation null (calibration.py). A calibrated match, of either sign, has a
   score of at least 0.6 and fdr ≤ 0.05.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import comb
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics import calibration
from arithscope.heuristics.calibration import OnPrompts, Overlaps, direct_overlaps, false_discovery_rate, indirect_null
from arithscope.heuristics.catalogue import Catalogue, HeuristicGroup
from arithscope.heuristics.kinds import Rule
from arithscope.heuristics.multi_result import MAX_RESULTS
from arithscope.heuristics.overlaps import (
    THRESHOLDS,
    count_overlaps,
    is_match,
    rankings_at_a_time,
    take_columns,
    top_prompts,
)
from arithscope.prompts import random_source
from arithscope.stats.intervals import Floats
from arithscope.utils.threads import thread_pool

Advance = Callable[[int], None]
Columns = dict[str, NDArray[Any]]  # of a table


@dataclass(frozen=True, eq=False)
class NeuronBatch:
    """Activation maps of neurons over the operand grid, and their value vectors' logits of the numbers 0, 1, …"""

    activations: Float[np.ndarray, "neurons *grid"]  # float16
    logits: Float[np.ndarray, "neurons numbers"]  # float32
    gated: bool = False  # whether they are of gated MLPs, which fire with both signs

    def __len__(self) -> int:
        return len(self.activations)

    def on_prompts(self, rows: range, catalogue: Catalogue) -> tuple[OnPrompts, OnPrompts]:
        """Activations, and logits of the answer, over the catalogue's prompts."""
        arrays = (np.array(x[rows.start : rows.stop]) for x in (self.activations, self.logits))
        activations, logits = (torch.from_numpy(x).to(catalogue.results.device) for x in arrays)
        on_prompts = take_columns(activations.flatten(1), catalogue.grid_index).float()
        return on_prompts, take_columns(logits, catalogue.answers)


class NeuronMatches(NamedTuple):
    """Matches with p and false-discovery rates.

    chance is k/N and corrected (score − chance)/(1 − chance). expected is the score expected from the value vector alone
    (for indirect heuristics, chance). neg_log10_p_hypergeom is the tail in a random ranking; neg_log10_p, p and fdr come from
    calibration.py. calibrated: score ≥ THRESHOLD and fdr ≤ FDR_LEVEL. Pairs of sign −1 that are not calibrated are no matches.
    """

    matches: pd.DataFrame  # pairs with score ≥ THRESHOLD: row, heuristic, kind, on, direct, sign, size, overlap, …
    best: pd.DataFrame  # the same columns; for each neuron and kind the largest neg_log10_p, match or not
    neurons: pd.DataFrame  # row, smallest p in `best`, fdr


class MatchedPairs(NamedTuple):
    """Pairs of neurons and heuristics before calibration."""

    matches: pd.DataFrame  # as in NeuronMatches, without p and fdr
    best: pd.DataFrame
    strongest: Float[
        np.ndarray, "neurons classes thresholds"
    ]  # largest neg_log10_p of pairs that score so high; −∞: none
    best_score: Floats  # of each neuron, over all pairs of sign +1
    null: Float[np.ndarray, "neurons draws"]  # largest statistic of a direct heuristic in each permutation


def calibrated_matches(
    neurons: NeuronBatch, catalogue: Catalogue, draws: int, seed: int, names: Sequence[str], advance: Advance
) -> NeuronMatches:
    """Match neurons with every heuristic of the catalogue and calibrate the matches.

    Args:
        neurons: Activation maps and value-vector logits.
        catalogue: The operator's prompts and heuristics.
        draws: Number of permutations of each neuron.
        seed: Seed of the permutations, together with the neuron's name.
        names: Name of each neuron; its permutations depend on no other neuron.
        advance: Called with the number of neurons done.
    """
    found, gated = match_neurons(neurons, catalogue, draws, seed, names, advance), neurons.gated
    null = indirect_null(catalogue, seed, gated), found.null.ravel()
    return calibrate(["row"], *(with_p(pairs, null, tries(catalogue, gated)) for pairs in (found.matches, found.best)))


def tries(catalogue: Catalogue, gated: bool) -> tuple[int, int]:
    """Number of indirect heuristics (of either sign, if gated) and of direct ones that each neuron is matched with."""
    sizes = range(2, MAX_RESULTS + 1) if catalogue.operator == "/" else ()  # of multi-result heuristics
    direct = len(catalogue.direct.heuristics) + sum(comb(len(catalogue.results), size) for size in sizes)
    return (2 if gated else 1) * len(catalogue.indirect.heuristics), direct


def with_p(pairs: pd.DataFrame, null: tuple[Floats, Floats], tried: tuple[int, int]) -> pd.DataFrame:
    """Add p to pairs, given the permutation null of indirect and of direct heuristics and their numbers (`tries`)."""
    statistic = pairs.neg_log10_p.to_numpy()
    indirect, direct = (calibration.p_values(statistic, *of_class) for of_class in zip(null, tried, strict=True))
    return pairs.assign(p=np.minimum(calibration.N_CLASSES * np.where(pairs.direct, direct, indirect), 1.0))


def calibrate(key: list[str], matches: pd.DataFrame, best: pd.DataFrame) -> NeuronMatches:
    """Add false-discovery rates to pairs with p; `best` has all neurons of an operator, identified by the columns `key`."""
    neurons = best[[*key, "p"]].groupby(key, sort=False, as_index=False).min()

    def with_fdr(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(fdr=false_discovery_rate(table.p.to_numpy(), neurons.p.to_numpy()))

    def marked(pairs: pd.DataFrame) -> pd.DataFrame:
        trusted = is_match(pairs.overlap, pairs["size"]) & (pairs.fdr <= calibration.FDR_LEVEL)
        return pairs.assign(calibrated=trusted)

    return NeuronMatches(marked(with_fdr(matches)), marked(with_fdr(best)), with_fdr(neurons))


def match_neurons(
    neurons: NeuronBatch, catalogue: Catalogue, draws: int, seed: int, names: Sequence[str], advance: Advance
) -> MatchedPairs:
    """Match neurons with every heuristic; arguments as in `calibrated_matches`."""
    size = max(1, rankings_at_a_time(catalogue) // (1 + draws))

    def chunk(start: int) -> tuple[list[Columns], list[Columns], Floats, Floats, Floats]:
        rows = range(start, min(start + size, len(neurons)))
        tables = _match_rows(neurons, rows, catalogue, draws, seed, names)
        advance(len(rows))
        return tables

    with thread_pool() as pool:
        each = map if catalogue.results.is_cuda else pool.map  # one chunk keeps a GPU busy and fills its memory
        matches, best, *arrays = zip(*each(chunk, range(0, len(neurons), size)), strict=True)
    tables = [_scored(list(chain(*parts)), len(catalogue)) for parts in (matches, best)]
    strongest, best_score, null = (np.concatenate(parts) for parts in arrays)
    return MatchedPairs(tables[0], tables[1], strongest, best_score, null)


def _match_rows(
    neurons: NeuronBatch, rows: range, catalogue: Catalogue, draws: int, seed: int, names: Sequence[str]
) -> tuple[list[Columns], list[Columns], Floats, Floats, Floats]:
    """The parts of `MatchedPairs` for a few neurons."""
    activations, logits = neurons.on_prompts(rows, catalogue)
    sources = [random_source(seed, "direct null", catalogue.operator, names[row]) for row in rows]
    shifts = np.stack([random.integers(1, len(catalogue), draws) for random in sources])
    indirect, direct_group = catalogue.groups
    tried = [_Tried(_indirect_overlaps(activations, 1, catalogue), indirect)]
    if neurons.gated:
        fires = mean_activations(activations, indirect) < 0
        tried.append(_Tried(_indirect_overlaps(activations, -1, catalogue), indirect, fires))
    direct = direct_overlaps(activations, logits, catalogue, shifts, rankings_at_a_time(catalogue))
    of_direct = [_Tried(direct.catalogued, direct_group)]
    matches: list[Columns] = []
    best: list[Columns] = []
    for each in (*tried, *of_direct):
        chosen = each.counted(is_match(each.sets.overlap, each.sets.size))
        at = chosen.nonzero(as_tuple=True)
        matches.append(_pairs(at, rows, [each.group.heuristics[i] for i in at[1].tolist()], each.sets))
    for of_class, group in ((tried, indirect), (of_direct, direct_group)):
        statistic = torch.stack([each.statistic for each in of_class])
        for a, b in group.kind_spans:
            which = statistic[:, :, a:b].amax(2).argmax(0)  # the first, of sign +1, among equals
            for i, each in enumerate(of_class):
                own = (which == i).nonzero(as_tuple=True)[0]
                at = own, each.statistic[own, a:b].argmax(1) + a
                best.append(_pairs(at, rows, [group.heuristics[i] for i in at[1].tolist()], each.sets))
    if direct.result_sets is not None:
        result_sets, sets = direct.result_sets
        exists = result_sets.exists[:, None]
        for tables, chosen in ((matches, exists & is_match(sets.overlap, sets.size)), (best, exists)):
            at = chosen.nonzero(as_tuple=True)
            tables.append(_pairs(at, rows, [result_sets.heuristic(i, catalogue) for i in at[0].tolist()], sets))
        of_direct.append(_Tried(sets, direct_group, exists))
    strongest = torch.stack([_strongest(tried), _strongest(of_direct)], dim=1)
    scores = [each.counted(each.sets.overlap / each.sets.size.double()).amax(1) for each in (tried[0], *of_direct)]
    best_score = torch.stack(scores).amax(0)
    return matches, best, strongest.cpu().numpy(), best_score.cpu().numpy(), direct.null.cpu().numpy()


class _Tried(NamedTuple):
    """Overlaps of some neurons with heuristics, and which pairs count (all by default)."""

    sets: Overlaps
    group: HeuristicGroup
    counts: Bool[Tensor, "neurons #sets"] | None = None

    def counted(self, values: Tensor) -> Tensor:
        """Values of pairs that count; 0 or False for others."""
        return values if self.counts is None else values * self.counts

    @property
    def statistic(self) -> Float[Tensor, "neurons sets"]:
        """neg_log10_p of pairs that count; −∞ for others."""
        values = self.sets.neg_log10_p
        return values if self.counts is None else values.masked_fill(~self.counts, -torch.inf)


def _indirect_overlaps(activations: OnPrompts, sign: int, catalogue: Catalogue) -> Overlaps:
    group = catalogue.indirect
    overlap = count_overlaps(top_prompts(sign * activations, catalogue.max_k), group)
    tail = group.neg_log10_p_hypergeom(overlap)
    return Overlaps(torch.full_like(overlap, sign), group.sizes[None], overlap, tail, group.chance_overlap[None], tail)


def mean_activations(activations: OnPrompts, group: HeuristicGroup) -> Float[Tensor, "neurons heuristics"]:
    """Mean activation of each neuron over the prompts of each heuristic."""
    # Sums of float16 numbers in float64 are exact in practice, so they do not depend on the order of summation.
    x, means = activations.double(), []
    for variable in group.variables:
        sums = x.new_zeros(len(x), variable.holds.shape[1])
        sums.scatter_add_(1, variable.values.long().expand(len(x), -1), x)
        means.append(sums @ variable.holds.double().T)
    return torch.cat(means, dim=1) / group.sizes


def _strongest(tried: Sequence[_Tried]) -> Float[Tensor, "neurons thresholds"]:
    """The largest neg_log10_p among the pairs that reach each of THRESHOLDS; −∞ if there is none."""
    best = [
        torch.stack(
            [
                each.statistic.masked_fill(~is_match(each.sets.overlap, each.sets.size, threshold), -torch.inf).amax(1)
                for threshold in THRESHOLDS
            ],
            dim=1,
        )
        for each in tried
    ]
    return torch.stack(best).amax(0)


_DTYPES = {"row": torch.int64, "sign": torch.int8, "size": torch.int32, "overlap": torch.int32}  # others: float64


def _pairs(at: tuple[Tensor, ...], rows: range, heuristics: Sequence[Rule], sets: Overlaps) -> Columns:
    """Columns of pairs of neuron and heuristic, at the given rows and columns of `sets`."""
    texts = {"heuristic": map(str, heuristics), "kind": (h.kind for h in heuristics), "on": (h.on for h in heuristics)}
    numbers = {"row": at[0] + rows.start, **{name: x.expand_as(sets.overlap)[at] for name, x in vars(sets).items()}}
    return {
        **{name: np.array(list(x), dtype=object) for name, x in texts.items()},
        "direct": np.array([h.direct for h in heuristics], dtype=np.bool_),
        **{name: x.to(_DTYPES.get(name, torch.float64)).cpu().numpy() for name, x in numbers.items()},
    }


def _scored(pieces: Sequence[Columns], total: int) -> pd.DataFrame:
    """One table of all pairs, neuron after neuron, with scores; `expected` becomes a score too."""
    joined = pd.DataFrame({name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]})
    pairs = joined.sort_values("row", kind="stable", ignore_index=True)
    score, chance = pairs.overlap / pairs["size"], pairs["size"] / total
    corrected = (score - chance) / (1 - chance)
    return pairs.assign(score=score, chance=chance, corrected=corrected, expected=pairs.expected / pairs["size"])

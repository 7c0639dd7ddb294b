"""Match every neuron of an operator with every heuristic (paper Section 4.1, App. F), and calibrate.

With A the activations over the N legal prompts and L the value vector's logit of each prompt's answer:

1. Count the overlap of each indirect heuristic of k prompts with the top k of A and of −A, since gated MLPs fire with both
   signs, and take the larger. Count the overlap of each direct heuristic with the top k of A × L.
2. score = overlap / k. A raw match has a score of at least 0.6.
3. Compute p and false-discovery rates against the permutation null (calibration.py). A calibrated match also has fdr ≤ 0.05.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import comb
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics import calibration
from arithscope.heuristics.calibration import OnPrompts, Overlaps, direct_overlaps, false_discovery_rate, indirect_null
from arithscope.heuristics.catalogue import Catalogue
from arithscope.heuristics.kinds import Rule
from arithscope.heuristics.multi_result import MAX_RESULTS
from arithscope.heuristics.overlaps import count_overlaps, is_match, rankings_at_a_time, take_columns, top_prompts
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
    calibration.py. calibrated: score ≥ THRESHOLD and fdr ≤ FDR_LEVEL.
    """

    matches: pd.DataFrame  # pairs with score ≥ THRESHOLD: row, heuristic, kind, on, direct, sign, size, overlap, …
    best: pd.DataFrame  # the same columns; for each neuron and kind the largest neg_log10_p, match or not
    neurons: pd.DataFrame  # row, smallest p in `best`, fdr


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
    matches, best, of_direct = match_neurons(neurons, catalogue, draws, seed, names, advance)
    null = indirect_null(catalogue, seed), of_direct.ravel()
    return calibrate(["row"], *(with_p(pairs, null, tries(catalogue)) for pairs in (matches, best)))


def tries(catalogue: Catalogue) -> tuple[int, int]:
    """Number of indirect and of direct heuristics that each neuron is matched with."""
    sizes = range(2, MAX_RESULTS + 1) if catalogue.operator == "/" else ()  # of multi-result heuristics
    direct = len(catalogue.direct.heuristics) + sum(comb(len(catalogue.results), size) for size in sizes)
    return calibration.N_SIGNS * len(catalogue.indirect.heuristics), direct


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
) -> tuple[pd.DataFrame, pd.DataFrame, Floats]:
    """Match neurons with every heuristic; arguments as in `calibrated_matches`.

    Returns tables as in `NeuronMatches`, without p and fdr, and the largest statistic of each permutation [neurons, draws].
    """
    size = max(1, rankings_at_a_time(catalogue) // (1 + draws))

    def chunk(start: int) -> tuple[list[Columns], list[Columns], Floats]:
        rows = range(start, min(start + size, len(neurons)))
        tables = _match_rows(neurons, rows, catalogue, draws, seed, names)
        advance(len(rows))
        return tables

    with thread_pool() as pool:
        each = map if catalogue.results.is_cuda else pool.map  # one chunk keeps a GPU busy and fills its memory
        matches, best, null = zip(*each(chunk, range(0, len(neurons), size)), strict=True)
    tables = [_scored(list(chain(*parts)), len(catalogue)) for parts in (matches, best)]
    return tables[0], tables[1], np.concatenate(null)


def _match_rows(
    neurons: NeuronBatch, rows: range, catalogue: Catalogue, draws: int, seed: int, names: Sequence[str]
) -> tuple[list[Columns], list[Columns], Floats]:
    """Matches, best pairs and permutation null of a few neurons."""
    activations, logits = neurons.on_prompts(rows, catalogue)
    group = catalogue.indirect
    above, below = (count_overlaps(top_prompts(x, catalogue.max_k), group) for x in (activations, -activations))
    overlap, sign = torch.maximum(above, below), torch.where(below > above, -1, 1)
    tail = group.neg_log10_p_hypergeom(overlap)
    indirect = Overlaps(sign, group.sizes[None], overlap, tail, group.chance_overlap[None], tail)
    sources = [random_source(seed, "direct null", catalogue.operator, names[row]) for row in rows]
    shifts = np.stack([random.integers(1, len(catalogue), draws) for random in sources])
    direct = direct_overlaps(activations, logits, catalogue, shifts, rankings_at_a_time(catalogue))
    matches: list[Columns] = []
    best: list[Columns] = []
    for group, sets in zip(catalogue.groups, (indirect, direct.catalogued), strict=True):
        columns = torch.stack([sets.neg_log10_p[:, a:b].argmax(1) + a for a, b in group.kind_spans], dim=1)
        is_best = torch.zeros_like(sets.overlap, dtype=torch.bool).scatter_(1, columns, True)
        for tables, chosen in ((matches, is_match(sets.overlap, sets.size)), (best, is_best)):
            at = chosen.nonzero(as_tuple=True)
            tables.append(_pairs(at, rows, [group.heuristics[i] for i in at[1].tolist()], sets))
    if direct.result_sets is not None:
        result_sets, sets = direct.result_sets
        exists = result_sets.exists[:, None]
        for tables, chosen in ((matches, exists & is_match(sets.overlap, sets.size)), (best, exists)):
            at = chosen.nonzero(as_tuple=True)
            tables.append(_pairs(at, rows, [result_sets.heuristic(i, catalogue) for i in at[0].tolist()], sets))
    return matches, best, direct.null.cpu().numpy()


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

"""The legal prompts of one operator, and its heuristics as sets of them, encoded for fast counting of overlaps.

1. Put the prompts into a fixed random order, which breaks ties between activations without favouring any heuristic. (In the
   order of operands, a neuron that never fires would look like a perfect detector of small numbers.)
2. Group heuristics by the *variable* they depend on: op1, say, both operands modulo 5, or the carry into the tens. Number the
   values that the variable takes on the prompts; a heuristic is then a set of values.
3. Drop heuristics that hold for no legal prompt, or for all, and those that hold for the same prompts as an earlier one of
   their kind about the same number (`_is_first`): with operands up to 20, `op1 in [10, 40]` is `op1 in [10, 20]`.
4. For each variable, lay out the histogram from which overlaps.py reads the overlaps of all its heuristics.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from arithscope.heuristics.kinds import stratum_heuristics
from arithscope.heuristics.rule import Bools, Ints, Rule
from arithscope.heuristics.tails import neg_log10_p_hypergeom_table
from arithscope.prompts import Prompts, Stratum, random_source, whole_numbers


@dataclass(frozen=True, eq=False)
class Variable:
    """A value 0, 1, … for each prompt, and the heuristics that depend on nothing else.

    A value has one histogram bin per distinct size k of the heuristics that hold for it, and one for all ranks beyond: far
    fewer bins than values × sizes. The number of top-k prompts with the value is the cumulative count at its bin for k
    (`upper`) minus that before its first bin (`lower`); a heuristic's overlap is the sum of these over its values.
    """

    name: str
    max_k: int  # size of the largest heuristic
    bin_count: int
    values: Int[Tensor, " prompts"]  # int32: looked up very often
    holds: Bool[Tensor, "heuristics values"]
    bins: Int[Tensor, " entries"]  # of a prompt, at row_start[its rank] + its value
    row_start: Int[Tensor, " max_k"]  # the same for all ranks between two consecutive sizes
    upper: Int[Tensor, " pairs"]  # pairs of a heuristic and a value it holds for, heuristic after heuristic
    lower: Int[Tensor, " pairs"]
    ends: Int[Tensor, " heuristics"]  # where each heuristic's pairs end


@dataclass(frozen=True, eq=False)
class HeuristicGroup:
    """All direct, or all indirect, heuristics of an operator, in the order of their variables."""

    heuristics: list[Rule]
    sizes: Int[Tensor, " heuristics"]  # k
    variables: list[Variable]
    tail_table: Float[Tensor, " entries"]  # −log₁₀ P of every overlap x = 0…k, for each distinct k
    tail_start: Int[Tensor, " heuristics"]  # where the entries of a heuristic's k start
    total: int  # number of prompts

    @cached_property
    def index(self) -> dict[Rule, int]:
        return {h: i for i, h in enumerate(self.heuristics)}

    @cached_property
    def kind_spans(self) -> list[tuple[int, int]]:
        """Start and end of each run of heuristics of one kind about the same number."""
        lengths = [len(list(run)) for _, run in groupby(self.heuristics, key=lambda h: (h.kind, h.on))]
        return list(pairwise(accumulate(lengths, initial=0)))

    @property
    def chance_overlap(self) -> Float[Tensor, " heuristics"]:
        """Mean overlap with the top k of a random ranking, k²/N."""
        return self.sizes.double() ** 2 / self.total

    def neg_log10_p_hypergeom(self, overlap: Int[Tensor, "*rows heuristics"]) -> Float[Tensor, "*rows heuristics"]:
        return self.tail_table[overlap.long() + self.tail_start]


@dataclass(frozen=True, eq=False)
class Catalogue:
    operator: str
    stratum: Stratum
    prompts: Prompts  # legal, in the order that breaks ties
    grid_index: Int[Tensor, " prompts"]  # position in the flattened operand grid
    results: Int[Tensor, " results"]  # distinct ones, ascending
    result_index: Int[Tensor, " prompts"]  # of each prompt's result in `results`
    result_counts: Int[Tensor, " results"]  # number of prompts with each result
    indirect: HeuristicGroup
    direct: HeuristicGroup

    @property
    def groups(self) -> tuple[HeuristicGroup, HeuristicGroup]:
        return self.indirect, self.direct

    @property
    def elements_per_ranking(self) -> int:
        """Numbers held in memory for one ranking of the prompts: its prompts, or the pairs of a variable."""
        return max([len(self), *(len(v.upper) for group in self.groups for v in group.variables)])

    @cached_property
    def max_k(self) -> int:
        """Number of top prompts needed: the size of the largest heuristic; for division, all (see multi_result.py)."""
        return len(self) if self.operator == "/" else max(int(group.sizes.max()) for group in self.groups)

    @cached_property
    def answers(self) -> Int[Tensor, " prompts"]:
        return self.results[self.result_index]

    def __len__(self) -> int:
        return len(self.prompts)


def catalogue(
    operator: str, max_operand: int, limit: int, both_operands: bool = False, device: str | torch.device = "cpu"
) -> Catalogue:
    """Build the catalogue of an operator where numbers are whole.

    Args:
        operator: The operator.
        max_operand: Largest operand.
        limit: Numbers below this are single tokens (`model.limit`).
        both_operands: Whether to add ranges and congruences that both operands satisfy.
        device: Where overlaps will be counted.
    """
    return stratum_catalogue(operator, whole_numbers(max_operand, limit), both_operands, device)


def stratum_catalogue(
    operator: str, stratum: Stratum, both_operands: bool = False, device: str | torch.device = "cpu"
) -> Catalogue:
    """Build the catalogue of an operator in a stratum."""
    prompts = stratum.prompts(operator)
    prompts = prompts[random_source(0, "ties", operator).permutation(len(prompts))]
    heuristics = stratum_heuristics(operator, stratum, prompts.result, both_operands)
    groups = [_group(prompts, [h for h in heuristics if h.direct is direct], device) for direct in (False, True)]
    arrays = stratum.cells(prompts), *np.unique(prompts.result, return_inverse=True, return_counts=True)
    grid_index, results, result_index, result_counts = (torch.from_numpy(x).to(device) for x in arrays)
    return Catalogue(operator, stratum, prompts, grid_index, results, result_index, result_counts, *groups)


def _group(prompts: Prompts, heuristics: Sequence[Rule], device: str | torch.device) -> HeuristicGroup:
    by_variable: dict[str, list[Rule]] = {}
    for h in heuristics:
        by_variable.setdefault(h.variable, []).append(h)
    kept: list[Rule] = []
    sizes: list[int] = []
    variables = []
    seen: set[tuple[str, str, bytes]] = set()
    for name, candidates in by_variable.items():
        values, holds = _encoded(prompts, candidates)
        k = holds @ np.bincount(values)
        proper = np.flatnonzero((k > 0) & (k < len(prompts)))
        proper = np.array([i for i in proper if _is_first(candidates[i], holds[i][values], seen)], dtype=np.int64)
        if len(proper):
            variables.append(_variable(name, values, holds[proper], k[proper], device))
            kept += [candidates[i] for i in proper]
            sizes += k[proper].tolist()
    k = np.array(sizes, dtype=np.int64)
    distinct, which = np.unique(k, return_inverse=True)
    tables = [neg_log10_p_hypergeom_table(len(prompts), int(size)) for size in distinct]
    tail_start = np.cumsum([0, *(distinct + 1)])[which]
    arrays = (k, np.concatenate([np.zeros(0), *tables]), tail_start)
    all_sizes, tail_table, start = (torch.from_numpy(x).to(device) for x in arrays)
    return HeuristicGroup(kept, all_sizes, variables, tail_table, start, len(prompts))


def _is_first(heuristic: Rule, holds: Bools, seen: set[tuple[str, str, bytes]]) -> bool:
    """Whether no heuristic seen before, of that kind and about the same number, holds for exactly the same prompts."""
    key = heuristic.kind, heuristic.on, np.packbits(holds).tobytes()
    if key in seen:
        return False
    seen.add(key)
    return True


def _encoded(prompts: Prompts, heuristics: Sequence[Rule]) -> tuple[Ints, Bools]:
    """Values of a variable, and which of its heuristics hold for which value."""
    labels = heuristics[0].labels(prompts, heuristics)
    _, example, values = np.unique(labels, return_index=True, return_inverse=True)
    return values, np.stack([h.holds(prompts[example]) for h in heuristics])


def _variable(name: str, values: Ints, holds: Bools, k: Ints, device: str | torch.device) -> Variable:
    """Lay out the bins, value after value, starting at 1; bin 0 stays empty."""
    cuts, cut = np.unique(k, return_inverse=True)
    heuristic, value = holds.nonzero()
    n_values, width = holds.shape[1], len(cuts) + 1
    used = np.unique(np.append(value * width + cut[heuristic], np.arange(n_values) * width + len(cuts)))
    bins = 1 + np.searchsorted(used, np.arange(n_values) * width + np.arange(len(cuts))[:, None])
    row_start = np.repeat(np.arange(0, bins.size, n_values, dtype=np.int32), np.diff(cuts, prepend=0))
    upper, lower = bins[cut[heuristic], value], bins[0, value] - 1
    arrays = (values.astype(np.int32), holds, bins.ravel(), row_start, upper, lower, holds.sum(1).cumsum())
    tensors = (torch.from_numpy(x).to(device) for x in arrays)
    return Variable(name, int(cuts[-1]), int(bins.max()) + 1, *tensors)

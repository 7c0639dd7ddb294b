"""The legal prompts of one operator, and heuristics as sets of them, coded so that overlaps can be counted fast.

Heuristics that look at the same thing share a *variable*: a number for each prompt (op1, say), such that every heuristic of the
variable holds for all prompts with the same number, or for none of them. A heuristic is then a set of the variable's numbers.

Prompts are kept in a fixed random order. Where two prompts have the same activation, the earlier one comes first: ties are
broken by a fixed rule that favours no heuristic. (With prompts in the order of their operands, a neuron that never fires
would look like a perfect detector of small numbers.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics.kinds import BOTH, Bools, Heuristic, Ints, Modulo, Range, Rule, numbers_of
from arithscope.heuristics.tails import neg_log10_p_hypergeom_table
from arithscope.heuristics.vocabulary import vocabulary
from arithscope.prompts import Prompts, legal_prompts, random_source


@dataclass(frozen=True, eq=False)
class Variable:
    """A number 0…size−1 for each prompt, and the heuristics that depend on nothing else.

    Overlaps come from one cumulative histogram. Each number has a cell for each size k of the heuristics that hold for it, and
    one more for what comes behind them: so few cells are far faster than one for every number and every size.

    holds    which heuristics hold for which numbers
    cuts     the distinct sizes k of the heuristics, ascending
    cells    where a prompt counts, by the piece its rank is in (from one cut up to the next) and its number
    entries  how often each number occurs among the k foremost prompts is the cumulative count at a cell less that at the
    before   cell before the number's first: these two, for each heuristic and each number it holds for; the sum over a
    ends     heuristic's numbers is its overlap. Heuristic after heuristic; `ends` says where each one's end
    """

    name: str
    values: Int[Tensor, " prompts"]  # int32: looked up very often
    holds: Bool[Tensor, "heuristics size"]
    cuts: Int[Tensor, " cuts"]
    cells: Int[Tensor, "cuts size"]
    entries: Int[Tensor, " entries"]
    before: Int[Tensor, " entries"]
    ends: Int[Tensor, " heuristics"]

    @property
    def size(self) -> int:
        return self.holds.shape[1]

    @cached_property
    def cell_count(self) -> int:
        return int(self.cells.max()) + 1

    @cached_property
    def deepest(self) -> int:
        """How many of the foremost prompts are looked at."""
        return int(self.cuts[-1])

    @cached_property
    def piece_starts(self) -> Int[Tensor, " deepest"]:
        """By rank, where the cells of its piece begin."""
        lengths = self.cuts.diff(prepend=self.cuts.new_zeros(1))
        starts = torch.arange(0, self.cells.numel(), self.size, dtype=torch.int32, device=self.cuts.device)
        return starts.repeat_interleave(lengths)


@dataclass(frozen=True, eq=False)
class Side:
    """The heuristics of a class, direct or indirect, in the order of its variables, with their sizes k and the evidence for
    every possible overlap: that of heuristic h and overlap x is at `table[start[h] + x]`."""

    heuristics: list[Heuristic]
    sizes: Int[Tensor, " heuristics"]
    variables: list[Variable]
    table: Tensor
    start: Int[Tensor, " heuristics"]
    total: int  # prompts

    @cached_property
    def column(self) -> dict[Heuristic, int]:
        """Where each heuristic is."""
        return {h: i for i, h in enumerate(self.heuristics)}

    @cached_property
    def kinds(self) -> list[tuple[int, int]]:
        """Where the heuristics of each kind, about the same number, begin and end."""
        groups = [len(list(group)) for _, group in groupby(self.heuristics, key=lambda h: (h.kind, h.on))]
        return list(pairwise(accumulate(groups, initial=0)))

    @property
    def chance(self) -> Float[Tensor, " heuristics"]:
        """The overlap that a random order brings on average."""
        return self.sizes.double() ** 2 / self.total

    def neg_log10_p_hypergeom(self, overlaps: Int[Tensor, "*rows heuristics"]) -> Tensor:
        return self.table[overlaps.long() + self.start]


@dataclass(frozen=True, eq=False)
class Catalogue:
    operator: str
    prompts: Prompts  # legal, in the order that breaks ties
    cells: Int[Tensor, " prompts"]  # where each is in the flattened operand square
    results: Int[Tensor, " results"]  # the answers that occur, ascending
    codes: Int[Tensor, " prompts"]  # of each prompt the index of its answer in `results`
    result_sizes: Int[Tensor, " results"]  # how many prompts have each
    indirect: Side
    direct: Side

    @property
    def width(self) -> int:
        """How many numbers one order of the prompts takes: the prompts, or the entries of a variable."""
        entries = [len(v.entries) for side in (self.indirect, self.direct) for v in side.variables]
        return max(len(self), *entries)

    @cached_property
    def depth(self) -> int:
        """How many of the foremost prompts are looked at: as many as the largest heuristic has. For division, with its sets of
        several results, that can be nearly all."""
        if self.operator == "/":
            return len(self)
        return max(int(side.sizes.max()) for side in (self.indirect, self.direct))

    @cached_property
    def answers(self) -> Int[Tensor, " prompts"]:
        return self.results[self.codes]

    def __len__(self) -> int:
        return len(self.prompts)


def catalogue(
    operator: str, max_operand: int, limit: int, both_operands: bool = False, device: str | torch.device = "cpu"
) -> Catalogue:
    """All heuristics of an operator. Those that hold for no legal prompt, or for all of them, say nothing and are dropped."""
    prompts = legal_prompts(operator, max_operand, limit)
    prompts = prompts[random_source(0, "ties", operator).permutation(len(prompts))]
    candidates = vocabulary(operator, max_operand, int(prompts.answer.max(initial=0)), both_operands)
    sides = [_side(prompts, [h for h in candidates if h.direct is direct], device) for direct in (False, True)]
    cells = prompts.op1 * (max_operand + 1) + prompts.op2
    results = np.unique(prompts.answer, return_inverse=True, return_counts=True)
    places, values, codes, sizes = (torch.from_numpy(x).to(device) for x in (cells, *results))
    return Catalogue(operator, prompts, places, values, codes, sizes, *sides)


def _side(prompts: Prompts, heuristics: Sequence[Heuristic], device: str | torch.device) -> Side:
    groups: dict[str, list[Heuristic]] = {}
    for h in heuristics:
        groups.setdefault(_looks_at(h), []).append(h)
    kept: list[Heuristic] = []
    sizes: list[NDArray[np.int64]] = []
    variables = []
    for name, group in groups.items():
        values, members = _coded(prompts, group)
        k = members @ np.bincount(values)
        says = np.flatnonzero((k > 0) & (k < len(prompts)))
        if len(says) == 0:
            continue
        cuts, cut = np.unique(k[says], return_inverse=True)
        heuristic, value = members[says].nonzero()
        cells = _cells(value, cut[heuristic], members.shape[1], len(cuts))
        entries, before = cells[cut[heuristic], value], cells[0, value] - 1
        parts = (values.astype(np.int32), members[says], cuts, cells, entries, before, members[says].sum(1).cumsum())
        variables.append(Variable(name, *(torch.from_numpy(x).to(device) for x in parts)))
        kept += [group[i] for i in says]
        sizes.append(k[says])
    k = np.concatenate(sizes) if sizes else np.zeros(0, dtype=np.int64)
    distinct, which = np.unique(k, return_inverse=True)
    starts = np.cumsum([0, *(distinct + 1)])
    table = np.concatenate([np.zeros(0), *(neg_log10_p_hypergeom_table(len(prompts), int(one)) for one in distinct)])
    return Side(
        kept,
        torch.from_numpy(k).to(device),
        variables,
        torch.from_numpy(table).to(device),
        torch.from_numpy(starts[which] if len(k) else k).to(device),
        len(prompts),
    )


def _cells(value: Ints, cut: Ints, size: int, cuts: int) -> Ints:
    """The cells of a histogram that tells, for these pairs of number and cut, how many prompts with the number come before the
    cut: [cuts, size], number after number, from 1 on so that there is an empty one before the first."""
    width = cuts + 1
    used = np.unique(np.append(value * width + cut, np.arange(size) * width + cuts))
    return 1 + np.searchsorted(used, np.arange(size) * width + np.arange(cuts)[:, None])


def _looks_at(heuristic: Heuristic) -> str:
    """The name of the variable that a heuristic depends on."""
    if heuristic.on != BOTH:
        return heuristic.on
    if isinstance(heuristic, Rule):
        return str(heuristic)
    return f"{BOTH} mod {heuristic.divisor}" if isinstance(heuristic, Modulo) else f"{BOTH} in ranges"


def _coded(prompts: Prompts, heuristics: Sequence[Heuristic]) -> tuple[Ints, Bools]:
    """Numbers of the prompts, and which heuristics hold for which number, read off one prompt of each number."""
    _, example, values = np.unique(_labels(prompts, heuristics), return_index=True, return_inverse=True)
    return values, np.stack([h.holds(prompts[example]) for h in heuristics])


def _labels(prompts: Prompts, heuristics: Sequence[Heuristic]) -> Ints:
    """Numbers, not yet consecutive, that tell apart what the heuristics (all of one variable) tell apart."""
    first = heuristics[0]
    if first.on != BOTH:
        return numbers_of(prompts, first.on)
    if isinstance(first, Rule):
        return first.holds(prompts).astype(np.int64)
    if isinstance(first, Modulo):
        a, b = prompts.op1 % first.divisor, prompts.op2 % first.divisor
        return np.where(a == b, a, first.divisor)
    edges = np.unique([edge for h in heuristics if isinstance(h, Range) for edge in (h.low, h.high + 1)])
    a, b = (np.searchsorted(edges, x, side="right") for x in (prompts.op1, prompts.op2))
    return a * (len(edges) + 1) + b

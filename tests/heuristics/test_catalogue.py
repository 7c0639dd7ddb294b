"""Every heuristic is in the catalogue once, with the prompts that it holds for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from arithscope.heuristics.catalogue import Catalogue, _group, catalogue
from arithscope.heuristics.kinds import (
    BOTH,
    DIVISORS,
    VARIABLES,
    Identical,
    Modulo,
    Range,
    Rule,
    all_heuristics,
    parse,
    ranges,
)
from arithscope.heuristics.overlaps import count_overlaps, top_prompts
from arithscope.prompts import Prompts, legal_prompts
from tests.heuristics import brute
from tests.heuristics.catalogues import CATALOGUES, LIMITS, MAX_OPERAND, operators, pairs_of


def first_spellings(sets: Catalogue, max_operand: int) -> list[str]:
    """Heuristics that hold for some legal prompts but not all, each set of a kind and number in its first form only."""
    prompts, found = pairs_of(sets), {}
    largest = max(brute.answer(sets.operator, *p) for p in prompts)
    for h in all_heuristics(sets.operator, max_operand, largest, both_operands=True):
        members = frozenset(brute.members(str(h), sets.operator, prompts))
        if 0 < len(members) < len(prompts):
            found.setdefault((h.kind, h.on, members), str(h))
    return list(found.values())


@operators
@pytest.mark.parametrize("max_operand", [1, 12, MAX_OPERAND])
def test_the_catalogue_is_complete(operator: str, max_operand: int) -> None:
    """It has every heuristic except those that hold for no legal prompt, for all, or for the same as an earlier one."""
    sets = catalogue(operator, max_operand, LIMITS[operator], both_operands=True)
    kept = [str(h) for group in sets.groups for h in group.heuristics]
    assert sorted(kept) == sorted(first_spellings(sets, max_operand))


def test_the_first_form_of_a_set_stays() -> None:
    """The range with the smaller bound, the smaller divisor, the pattern with fewer digits; but one of each kind."""
    texts = {str(h) for group in catalogue("-", 20, 1000, both_operands=True).groups for h in group.heuristics}
    assert {"op1 in [10, 20]", "op1, op2 in [10, 20]", "op2 mod 11 = 10", "op2 ~ .10", "result ~ .2."} <= texts
    assert not texts & {"op1 in [10, 40]", "op1, op2 in [10, 40]", "op1, op2 mod 13 = 10", "op2 ~ 010", "result ~ 020"}


def test_few_sets_of_the_paper_repeat() -> None:
    kept = {str(h) for h in catalogue("-", 300, 1000).indirect.heuristics if h.on == "op1"}
    all_about_op1 = [h for h in all_heuristics("-", 300, 300) if h.on == "op1"]
    proper = {str(h) for h in all_about_op1 if 0 < h.admits(np.arange(301)).sum() < 301}
    assert kept < proper
    assert proper - kept == {"op1 in [290, 320]", "op1 ~ 3.0", "op1 ~ 30.", "op1 ~ 300"}


@operators
def test_the_hypergeometric_tail_is_exact(operator: str) -> None:
    sets = CATALOGUES[operator]
    for group in sets.groups:
        for i in range(0, len(group.heuristics), 97):
            k = int(group.sizes[i])
            for x in {0, k // 2, k}:
                overlap = torch.zeros(len(group.heuristics), dtype=torch.long)
                overlap[i] = x
                p = float(brute.tail(len(sets), k, x))
                if p > 0:
                    assert float(group.neg_log10_p_hypergeom(overlap)[i]) == pytest.approx(-np.log10(p), abs=1e-9)


def test_ties_favour_no_heuristic() -> None:
    """A neuron that never fires matches nothing better than chance."""
    sets = catalogue("+", 100, 1000)
    for x in (torch.zeros(1, len(sets)), torch.full((1, len(sets)), -0.0)):
        best = sets.indirect.neg_log10_p_hypergeom(count_overlaps(top_prompts(x), sets.indirect)).max()
        assert float(best) < 5
    assert torch.equal(top_prompts(torch.tensor([[0.0, -0.0, 1.0, -1.0, 0.0]])), torch.tensor([[2, 0, 1, 4, 3]]))


@operators
def test_the_fields_of_a_catalogue(operator: str) -> None:
    sets = CATALOGUES[operator]
    answers = [brute.answer(operator, *p) for p in pairs_of(sets)]
    assert sets.answers.tolist() == answers
    assert sets.results.tolist() == sorted(set(answers))
    assert sets.result_counts.tolist() == [answers.count(r) for r in sorted(set(answers))]
    assert sets.grid_index.tolist() == [a * (MAX_OPERAND + 1) + b for a, b in pairs_of(sets)]
    largest = max(int(group.sizes.max()) for group in sets.groups)
    assert sets.max_k == (len(sets) if operator == "/" else largest)
    variables = [v for group in sets.groups for v in group.variables]
    assert sets.elements_per_ranking == max(len(sets), *(int(v.holds.sum()) for v in variables))
    both = [
        (str(h), k) for h, k in zip(sets.indirect.heuristics, sets.indirect.sizes.tolist(), strict=True) if h.on == BOTH
    ]
    assert both == [(text, len(brute.members(text, operator, pairs_of(sets)))) for text, _ in both]
    assert {"op1, op2 in [0, 10]", "op1, op2 in [10, 20]", "op1, op2 mod 2 = 1", "op1 = op2"} <= {
        text for text, _ in both
    }
    for group in sets.groups:
        assert [group.index[h] for h in group.heuristics] == list(range(len(group.heuristics)))
        assert group.chance_overlap.tolist() == pytest.approx([k * k / len(sets) for k in group.sizes.tolist()])
        kinds = [[(h.kind, h.on) for h in group.heuristics[a:b]] for a, b in group.kind_spans]
        assert all(len(set(group)) == 1 for group in kinds)
        assert sum(map(len, kinds)) == len(group.heuristics)
        assert len({group[0] for group in kinds}) == len(kinds)


@pytest.mark.parametrize(("operator", "prompts"), [("+", 1), ("/", 0)])
def test_one_prompt_or_none_has_no_heuristic(operator: str, prompts: int) -> None:
    sets = catalogue(operator, 0, 1000, both_operands=True)
    assert len(sets) == prompts
    for group in sets.groups:
        assert (group.heuristics, group.variables, group.kind_spans) == ([], [], [])
        assert group.sizes.tolist() == group.tail_start.tolist() == group.tail_table.tolist() == []
        assert group.sizes.dtype == torch.int64


def test_heuristics_with_the_same_inputs_share_a_variable() -> None:
    """Ranges of both operands share one, congruences one per divisor; without `both_operands` there are neither."""
    names = [v.name for v in CATALOGUES["-"].indirect.variables]
    assert len(names) == len(set(names)) == len(["op1", "op2", "op1 = op2", "ranges", *DIVISORS])
    assert {h for h in catalogue("-", 3, 1000).indirect.heuristics if h.on == BOTH} == {parse("op1 = op2")}


def test_ranges_of_both_operands_with_any_ends() -> None:
    """[0, 50] and [16, 66], which end where no other range starts, with larger operands."""
    prompts, found = legal_prompts("+", 90, 1000), list(ranges(BOTH, (50,), 30))
    group = _group(prompts, found, "cpu")
    assert group.heuristics == found
    assert group.sizes.tolist() == [51 * 51, 51 * 51]


@dataclass(frozen=True)
class Larger(Rule):
    kind: ClassVar[str] = "larger"

    def __str__(self) -> str:
        return "op1 > op2"

    def holds(self, prompts: Prompts) -> NDArray[np.bool_]:
        return prompts.op1 > prompts.op2


def test_rules_about_both_operands_have_their_own_variables() -> None:
    """Of the 16 pairs of 0 to 3, 4 are equal and 6 have the larger number first."""
    group = _group(legal_prompts("+", 3, 1000), [Identical(), Larger()], "cpu")
    assert group.heuristics == [Identical(), Larger()]
    assert group.sizes.tolist() == [4, 6]


def test_heuristics_about_both_operands_are_an_option() -> None:
    """Except op1 = op2, which is one of the paper's kinds."""
    without, with_them = catalogue("+", 9, 100), catalogue("+", 9, 100, both_operands=True)
    assert {str(h) for h in without.indirect.heuristics if h.on == BOTH} == {"op1 = op2"}
    assert "op1, op2 mod 2 = 0" in {str(h) for h in with_them.indirect.heuristics}


def test_ranges_reach_the_largest_operand_and_the_largest_result() -> None:
    sets = catalogue("+", 25, 1000)
    starts = {
        on: {h.low for g in sets.groups for h in g.heuristics if isinstance(h, Range) and h.on == on}
        for on in VARIABLES
    }
    assert starts == {"op1": {0, 10, 20, 16}, "op2": {0, 10, 20, 16}, "result": {0, 10, 20, 30, 40, 16, 32, 48, 33}}


def test_heuristics_about_both_operands_have_their_prompts() -> None:
    sets = catalogue("-", 60, 1000, both_operands=True)
    about_both = [(h, int(k)) for g in sets.groups for h, k in zip(g.heuristics, g.sizes, strict=True) if h.on == BOTH]
    assert {type(h) for h, _ in about_both} == {Range, Modulo, Identical}
    for h, k in about_both:
        assert k == len(brute.members(str(h), "-", pairs_of(sets)))


@dataclass(frozen=True)
class Apart(Rule):
    distance: int
    kind: ClassVar[str] = "apart"

    @property
    def variable(self) -> str:
        return "distance"

    def __str__(self) -> str:
        return f"|op1 - op2| = {self.distance}"

    def holds(self, prompts: Prompts) -> NDArray[np.bool_]:
        return np.abs(prompts.op1 - prompts.op2) == self.distance


def test_rules_that_name_the_same_variable_share_it() -> None:
    """However many there are: here more than a byte has bits. Other prompts have a value together."""
    rules = [Apart(distance) for distance in range(12)]
    group = _group(legal_prompts("+", 20, 1000), [*rules, Larger()], "cpu")
    assert [v.name for v in group.variables] == ["distance", "op1 > op2"]
    assert group.variables[0].holds.shape == (12, 13)
    assert group.sizes.tolist() == [21, *(2 * (21 - distance) for distance in range(1, 12)), 210]

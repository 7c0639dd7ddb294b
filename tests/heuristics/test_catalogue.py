"""What there is to be matched: every heuristic, once, with the prompts that it holds for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from arithscope.heuristics.catalogue import _side, catalogue
from arithscope.heuristics.kinds import BOTH, Identical, Rule, parse
from arithscope.heuristics.matching import order, overlaps
from arithscope.heuristics.vocabulary import DIVISORS, ranges, vocabulary
from arithscope.prompts import Prompts, legal_prompts
from tests.heuristics import brute
from tests.heuristics.catalogues import CATALOGUES, MAX_OPERAND, operators, pairs_of


@operators
def test_the_vocabulary_is_complete(operator: str) -> None:
    """Every heuristic is there, but for those that hold for no legal prompt or for all."""
    sets = CATALOGUES[operator]
    prompts = pairs_of(sets)
    largest = max(brute.answer(operator, *p) for p in prompts)
    texts = [str(h) for h in vocabulary(operator, MAX_OPERAND, largest, both_operands=True)]
    says = {t for t in texts if 0 < len(brute.members(t, operator, prompts)) < len(prompts)}
    kept = [str(h) for side in (sets.indirect, sets.direct) for h in side.heuristics]
    assert set(kept) == says
    assert len(kept) == len(says)


@operators
def test_evidence_is_the_tail_probability(operator: str) -> None:
    sets = CATALOGUES[operator]
    for side in (sets.indirect, sets.direct):
        for i in range(0, len(side.heuristics), 97):
            k = int(side.sizes[i])
            for x in {0, k // 2, k}:
                overlap = torch.zeros(len(side.heuristics), dtype=torch.long)
                overlap[i] = x
                p = float(brute.tail(len(sets), k, x))
                if p > 0:
                    assert float(side.neg_log10_p_hypergeom(overlap)[i]) == pytest.approx(-np.log10(p), abs=1e-9)


def test_ties_favour_no_heuristic() -> None:
    """A neuron that never fires matches nothing better than chance does."""
    sets = catalogue("+", 100, 1000)
    for x in (torch.zeros(1, len(sets)), torch.full((1, len(sets)), -0.0)):
        best = sets.indirect.neg_log10_p_hypergeom(overlaps(order(x), sets.indirect)).max()
        assert float(best) < 5
    assert torch.equal(order(torch.tensor([[0.0, -0.0, 1.0, -1.0, 0.0]])), torch.tensor([[2, 0, 1, 4, 3]]))


@operators
def test_what_a_catalogue_says_of_itself(operator: str) -> None:
    sets = CATALOGUES[operator]
    answers = [brute.answer(operator, *p) for p in pairs_of(sets)]
    assert sets.answers.tolist() == answers
    assert sets.results.tolist() == sorted(set(answers))
    assert sets.result_sizes.tolist() == [answers.count(r) for r in sorted(set(answers))]
    assert sets.cells.tolist() == [a * (MAX_OPERAND + 1) + b for a, b in pairs_of(sets)]
    largest = max(int(side.sizes.max()) for side in (sets.indirect, sets.direct))
    assert sets.depth == (len(sets) if operator == "/" else largest)
    variables = [v for side in (sets.indirect, sets.direct) for v in side.variables]
    assert sets.width == max(len(sets), *(int(v.holds.sum()) for v in variables))
    both = [
        (str(h), k) for h, k in zip(sets.indirect.heuristics, sets.indirect.sizes.tolist(), strict=True) if h.on == BOTH
    ]
    assert both == [(text, len(brute.members(text, operator, pairs_of(sets)))) for text, _ in both]
    assert {"op1, op2 in [0, 10]", "op1, op2 in [10, 20]", "op1, op2 mod 2 = 1", "op1 = op2"} <= {
        text for text, _ in both
    }
    for side in (sets.indirect, sets.direct):
        assert [side.column[h] for h in side.heuristics] == list(range(len(side.heuristics)))
        assert side.chance.tolist() == pytest.approx([k * k / len(sets) for k in side.sizes.tolist()])
        kinds = [[(h.kind, h.on) for h in side.heuristics[a:b]] for a, b in side.kinds]
        assert all(len(set(group)) == 1 for group in kinds)
        assert sum(map(len, kinds)) == len(side.heuristics)
        assert len({group[0] for group in kinds}) == len(kinds)


@pytest.mark.parametrize(("operator", "prompts"), [("+", 1), ("/", 0)])
def test_of_one_prompt_or_none_nothing_can_be_said(operator: str, prompts: int) -> None:
    sets = catalogue(operator, 0, 1000, both_operands=True)
    assert len(sets) == prompts
    for side in (sets.indirect, sets.direct):
        assert (side.heuristics, side.variables, side.kinds) == ([], [], [])
        assert side.sizes.tolist() == side.start.tolist() == side.table.tolist() == []
        assert side.sizes.dtype == torch.int64


def test_heuristics_that_look_at_the_same_share_a_variable() -> None:
    """Ranges of both operands, and what both leave when divided by the same; none of them are there unless asked for."""
    names = [v.name for v in CATALOGUES["-"].indirect.variables]
    assert len(names) == len(set(names)) == len(["op1", "op2", "op1 = op2", "ranges", *DIVISORS])
    assert {h for h in catalogue("-", 3, 1000).indirect.heuristics if h.on == BOTH} == {parse("op1 = op2")}


def test_ranges_of_both_operands_that_end_anywhere() -> None:
    """[0, 50] and [16, 66], where no other range begins, and operands beyond."""
    prompts, found = legal_prompts("+", 90, 1000), list(ranges(BOTH, (50,), 30))
    side = _side(prompts, found, "cpu")
    assert side.heuristics == found
    assert side.sizes.tolist() == [51 * 51, 51 * 51]


@dataclass(frozen=True)
class Larger(Rule):
    kind: ClassVar[str] = "larger"

    def __str__(self) -> str:
        return "op1 > op2"

    def holds(self, prompts: Prompts) -> NDArray[np.bool_]:
        return prompts.op1 > prompts.op2


def test_rules_of_both_operands_are_told_apart() -> None:
    """4 of the 16 pairs of 0 to 3 are of equal numbers, 6 have a larger one first."""
    side = _side(legal_prompts("+", 3, 1000), [Identical(), Larger()], "cpu")
    assert side.heuristics == [Identical(), Larger()]
    assert side.sizes.tolist() == [4, 6]


def test_heuristics_about_both_operands_are_asked_for() -> None:
    """But for op1 = op2, which is of the paper's own kinds."""
    without, with_them = catalogue("+", 9, 100), catalogue("+", 9, 100, both_operands=True)
    assert {str(h) for h in without.indirect.heuristics if h.on == BOTH} == {"op1 = op2"}
    assert "op1, op2 mod 2 = 0" in {str(h) for h in with_them.indirect.heuristics}

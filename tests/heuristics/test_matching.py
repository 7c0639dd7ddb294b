"""Counting against Python sets: every kind of heuristic, every operator, random and tied patterns."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics.calibration import Direct, Overlaps
from arithscope.heuristics.calibration import direct as directly
from arithscope.heuristics.catalogue import Catalogue, _side, catalogue
from arithscope.heuristics.classification import Matched, Neurons, _pairs, calibrate, classify, tries
from arithscope.heuristics.kinds import BOTH, Identical, MultiResult, Rule, parse
from arithscope.heuristics.matching import histogram, is_match, order, overlaps
from arithscope.heuristics.multi_result import _information, grid, multi_results, occurrences, ranks_by_result
from arithscope.heuristics.vocabulary import DIVISORS, ranges, vocabulary
from arithscope.prompts import OPERATORS, Prompts, legal_prompts
from tests.heuristics import brute

MAX_OPERAND = 23  # uneven, so that ranges and patterns are cut off
LIMITS = {
    "+": 43,
    "-": 130,
    "*": 130,
    "/": 130,
}  # some sums and products are illegal, and some products have three digits
CATALOGUES = {o: catalogue(o, MAX_OPERAND, limit, both_operands=True) for o, limit in LIMITS.items()}
operators = pytest.mark.parametrize("operator", OPERATORS)


def pairs_of(sets: Catalogue) -> list[brute.Prompt]:
    return list(zip(sets.prompts.op1.tolist(), sets.prompts.op2.tolist(), strict=True))


def patterns(sets: Catalogue) -> NDArray[np.float16]:
    """Random; a few values only, so that nearly all prompts are tied; mostly zero; all the same; a rule with noise."""
    random = np.random.default_rng(0)
    size = (MAX_OPERAND + 1, MAX_OPERAND + 1)
    noise = random.standard_normal(size)
    a, b = np.indices(size)
    rows = [noise, random.integers(-1, 2, size), np.maximum(noise - 1, 0), np.zeros(size), (a % 5 == 2) + noise / 4]
    return np.stack([*rows, noise / 4 - ((b >= 10) & (b <= 20)), (a == b) * 2 + noise / 4]).astype(np.float16)


@operators
def test_every_overlap_against_sets(operator: str) -> None:
    sets = CATALOGUES[operator]
    prompts = pairs_of(sets)
    assert sorted(prompts) == brute.legal(operator, MAX_OPERAND, LIMITS[operator])
    tie_order = {p: i for i, p in enumerate(prompts)}
    logits = np.random.default_rng(1).integers(-2, 3, (7, 130)).astype(np.float32)
    neurons = Neurons(patterns(sets), logits)
    activations, on_answer = neurons.on_prompts(range(7), sets)
    found = {
        False: torch.maximum(*(overlaps(order(x, sets.depth), sets.indirect) for x in (activations, -activations))),
        True: overlaps(order(activations * on_answer, sets.depth), sets.direct),
    }
    kinds = set()
    for direct, side in ((False, sets.indirect), (True, sets.direct)):
        for i, h in enumerate(side.heuristics):
            kinds.add((h.kind, h.on))
            assert h.direct is direct
            for row in {i % 7, (i + 3) % 7}:
                value = {
                    (a, b): float(neurons.activations[row, a, b])
                    * (float(logits[row, brute.answer(operator, a, b)]) if direct else 1.0)
                    for a, b in prompts
                }
                want = brute.overlap(str(h), operator, value, tie_order, both_signs=not direct)
                assert (int(found[direct][row, i]), int(side.sizes[i])) == want
    places = [("range", on) for on in ("op1", "op2", "result", "op1, op2")]
    places += [("modulo", on) for on in ("op1", "op2", "result", "op1, op2")]
    assert kinds == {*places, *(("pattern", on) for on in ("op1", "op2", "result")), ("identical", "op1, op2")}


@operators
def test_the_foremost_prompts_suffice_for_small_heuristics(operator: str) -> None:
    sets = CATALOGUES[operator]
    noise = torch.randn(5, len(sets), generator=torch.Generator().manual_seed(2))
    for side in (sets.indirect, sets.direct):
        every = overlaps(order(noise), side)
        for largest in side.sizes.unique().tolist():
            small = side.sizes <= largest
            assert (overlaps(order(noise, largest), side)[:, small] == every[:, small]).all()


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
                    assert float(side.evidence(overlap)[i]) == pytest.approx(-np.log10(p), abs=1e-9)


def test_ties_favour_no_heuristic() -> None:
    """A neuron that never fires matches nothing better than chance does."""
    sets = catalogue("+", 100, 1000)
    for x in (torch.zeros(1, len(sets)), torch.full((1, len(sets)), -0.0)):
        best = sets.indirect.evidence(overlaps(order(x), sets.indirect)).max()
        assert float(best) < 5
    assert torch.equal(order(torch.tensor([[0.0, -0.0, 1.0, -1.0, 0.0]])), torch.tensor([[2, 0, 1, 4, 3]]))


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50), st.integers(1, 60))
def test_order_is_a_stable_sort(values: list[float], first: int) -> None:
    want = sorted(range(len(values)), key=lambda i: (-values[i], i))
    rows = torch.tensor([values, values[::-1]], dtype=torch.float32)
    assert order(rows)[0].tolist() == want
    assert order(rows, first)[0].tolist() == want[:first]


def test_three_of_five_match() -> None:
    overlap, size = torch.tensor([3, 2, 6, 59, 60, 12]), torch.tensor([5, 4, 10, 100, 100, 20])
    assert is_match(overlap, size).tolist() == [True, False, True, False, True, True]


SMALL = catalogue("/", 11, 1000)  # results 0…11, so that all sets of up to four can be tried


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 6), st.integers(2, 5))
def test_multi_results_against_exhaustive_search(seed: int, strength: float, count: int) -> None:
    random = np.random.default_rng(seed)
    liked = random.choice(12, count, replace=False)
    values = np.isin(SMALL.answers.numpy(), liked) * strength + random.standard_normal(len(SMALL)).round(1)
    assert_is_the_best_set(order(torch.from_numpy(values.astype(np.float32))[None]))


def assert_is_the_best_set(ordered: Tensor) -> MultiResult | None:
    """And which it is."""
    answers = SMALL.answers.numpy()
    results = answers[ordered[0].numpy()].tolist()
    best: tuple[tuple[bool, float], tuple[int, ...], int, int] | None = None
    for t in grid(len(SMALL)):
        chosen = brute.smallest_accounting_set(results[:t], answers.tolist())
        if chosen is None or len(chosen) < 2:
            continue
        k = sum(a in chosen for a in answers.tolist())
        overlap = sum(r in chosen for r in results[:k])
        says = (overlap / k >= 0.6, _mutual_information(len(SMALL), k, overlap))
        if best is None or says[0] > best[0][0] or (says[0] == best[0][0] and says[1] > best[0][1] + 1e-9):
            best = (says, chosen, k, overlap)
    ranks = ranks_by_result(ordered, SMALL)
    found = multi_results(ordered, ranks, SMALL)
    assert bool(found.found[0]) is (best is not None)
    if best is not None:
        assert found.heuristic(0, SMALL) == MultiResult(best[1])
        assert (int(found.size[0]), int(found.overlap[0])) == best[2:]
        assert occurrences(ranks, found, SMALL).tolist() == [[best[3]]]
        backwards = sum(r in best[1] for r in results[::-1][: best[2]])
        assert occurrences(ranks_by_result(ordered.flip(1), SMALL), found, SMALL).tolist() == [[backwards]]
    return None if best is None else MultiResult(best[1])


def with_results_in_front(first: list[int]) -> Tensor:
    """An order of the prompts: first such with these results, then the others with a result of 0, then the rest."""
    waiting = {r: np.flatnonzero(SMALL.answers.numpy() == r).tolist() for r in range(12)}
    foremost = [waiting[r].pop() for r in first]
    rest = [waiting[r].pop() for r in (*([0] * len(waiting[0])), *range(1, 12)) if waiting[r]]
    last = [i for some in waiting.values() for i in some]
    return torch.tensor([foremost + rest + last])


@pytest.mark.parametrize("first", [[0] * 26 + [5, 3], [0] * 18 + [3]])
def test_equally_frequent_results_and_just_too_few(first: list[int]) -> None:
    """26 of 28 are not enough and 27 are, with either of two results: the smaller is taken. 18 of 19 are not enough."""
    assert assert_is_the_best_set(with_results_in_front(first)) == MultiResult((0, 3))


def test_just_enough_results() -> None:
    """40 of 42, or 60 of 63, are enough: 95.2 %."""
    first = [2, 3, *([0, 1] * 20), *([0] * 20), 4]
    assert assert_is_the_best_set(with_results_in_front(first)) == MultiResult((0, 1))


def test_exactly_as_many_results_as_needed() -> None:
    """Of 20 prompts all but 4/1 have a result of 0 to 3: 95 %. Among fewer of the foremost all five results are needed, or 0
    alone."""
    sets = catalogue("/", 4, 1000)
    answers = sets.answers.tolist()
    assert sorted(answers) == [0] * 10 + [1] * 6 + [2] * 2 + [3, 4]
    by_result = sorted(range(20), key=lambda i: answers[i])
    front = [*range(9), 19, 18, 17, 10]  # nine of 0, then one of each other
    ordered = torch.tensor([[by_result[i] for i in front + [i for i in range(20) if i not in front]]])
    found = multi_results(ordered, ranks_by_result(ordered, sets), sets)
    assert found.found.tolist() == [True]
    assert found.heuristic(0, sets) == MultiResult((0, 1, 2, 3))
    assert (found.size.tolist(), found.overlap.tolist()) == ([19], [18])


def test_ranks_of_very_many_results() -> None:
    """Result code · N + rank, also where that is beyond 32 bits."""
    for code, kind in ((2**30 - 1, torch.int64), (2**29, torch.int32)):
        many: Any = SimpleNamespace(results=range(code + 1), codes=torch.tensor([code, 0]))
        ranks = ranks_by_result(torch.tensor([[0, 1], [1, 0]]), many)
        assert ranks.tolist() == [[1, 2 * code], [0, 2 * code + 1]]
        assert ranks.dtype is kind


def _mutual_information(n: int, k: int, x: int) -> float:
    if x <= k * k / n:
        return 0.0
    cells = [(x, k * k / n), (k - x, k * (n - k) / n), (k - x, k * (n - k) / n), (n - 2 * k + x, (n - k) ** 2 / n)]
    return sum(o * np.log(o / e) for o, e in cells if o > 0)


def test_information_by_hand() -> None:
    found = _information(100, torch.tensor([10, 10, 40, 5]), torch.tensor([10, 1, 30, 2])).tolist()
    want = [_mutual_information(100, 10, 10), 0.0, _mutual_information(100, 40, 30), _mutual_information(100, 5, 2)]
    assert found == pytest.approx(want)


def test_neurons_are_scored_alike_in_any_company() -> None:
    """In another order, and in other batches: the same scores, the same permutations."""
    sets = CATALOGUES["/"]
    rows = patterns(sets)
    logits = np.random.default_rng(2).standard_normal((7, 130)).astype(np.float32)
    names = [f"n{i}" for i in range(7)]
    together = classify(Neurons(rows, logits), sets, 8, 0, names, lambda n: None)
    for i in (0, 4):
        alone = classify(Neurons(rows[i : i + 1], logits[i : i + 1]), sets, 8, 0, names[i : i + 1], lambda n: None)
        columns = [
            "heuristic",
            "sign",
            "overlap",
            "size",
            "score",
            "chance",
            "corrected",
            "evidence",
            "expected",
            "beyond",
        ]
        for ours, theirs in ((together.best, alone.best), (together.matches, alone.matches)):
            assert ours[ours.row == i][columns].values.tolist() == theirs[columns].values.tolist()


def test_scores_and_chances() -> None:
    sets = CATALOGUES["+"]
    found = classify(
        Neurons(patterns(sets), np.ones((7, 130), dtype=np.float32)), sets, 8, 0, list("abcdefg"), lambda n: None
    )
    for table in (found.matches, found.best):
        assert np.allclose(table.score, table.overlap / table["size"])
        assert np.allclose(table.chance, table["size"] / len(legal_prompts("+", MAX_OPERAND, LIMITS["+"])))
        assert np.allclose(table.corrected, (table.score - table.chance) / (1 - table.chance))
    assert (found.matches.score >= 0.6).all()
    planted = found.best[(found.best.row == 4) & (found.best.kind == "modulo") & (found.best.on == "op1")]
    assert planted.heuristic.tolist() == ["op1 mod 5 = 2"]
    assert planted.sign.tolist() == [1]
    negative = found.best[(found.best.row == 5) & (found.best.kind == "range") & (found.best.on == "op2")]
    assert negative.heuristic.tolist() == ["op2 in [10, 20]"]
    assert negative.sign.tolist() == [-1]
    same = found.best[(found.best.row == 6) & (found.best.kind == "identical")]
    assert same.score.iloc[0] == 1


@pytest.mark.parametrize("operator", ["+", "/"])
def test_the_tables_against_sets(operator: str) -> None:
    """Every pair in the tables recounted one by one, and no pair missing."""
    sets, prompts = CATALOGUES[operator], pairs_of(CATALOGUES[operator])
    tie_order = {p: i for i, p in enumerate(prompts)}
    logits = np.random.default_rng(1).standard_normal((7, 130)).astype(np.float32)
    neurons, done = Neurons(patterns(sets), logits), []
    found = classify(neurons, sets, 3, 0, list("abcdefg"), done.append)
    assert sum(done) == 7
    activations, on_answer = neurons.on_prompts(range(7), sets)
    up, down = (overlaps(order(x), sets.indirect) for x in (activations, -activations))
    promoted = overlaps(order(activations * on_answer), sets.direct)
    for table in (found.matches, found.best):
        assert table.row.is_monotonic_increasing
        for pair in table.iloc[:: max(1, len(table) // 150)].itertuples():
            h, row = parse(pair.heuristic), pair.row
            assert (pair.kind, pair.on, pair.direct) == (h.kind, h.on, h.direct)
            value = {
                (a, b): float(np.float32(neurons.activations[row, a, b]))
                * (logits[row, brute.answer(operator, a, b)] if h.direct else np.float32(1))
                for a, b in prompts
            }
            want = brute.overlap(pair.heuristic, operator, value, tie_order, both_signs=not h.direct)
            assert (pair.overlap, pair.size) == want
            assert pair.evidence == pytest.approx(_evidence(len(sets), pair.size, pair.overlap), rel=1e-6, abs=1e-6)
            if h.direct:
                assert pair.sign == 1
            else:
                at = sets.indirect.column[h]
                assert pair.sign == (-1 if down[row, at] > up[row, at] else 1)
                assert pair.expected == pytest.approx(pair.size / len(sets))
                assert pair.beyond == pytest.approx(pair.evidence)
    several = {(pair.row, pair.heuristic) for pair in found.matches.itertuples() if pair.kind == "multi-result"}
    own = found.best[found.best.kind == "multi-result"]
    assert several == {(pair.row, pair.heuristic) for pair in own.itertuples() if 10 * pair.overlap >= 6 * pair.size}
    assert len(several) == (6 if operator == "/" else 0) == max(len(own) - 1, 0)  # one of seven is no match
    want_matches = {
        (row, str(h))
        for side, counted in ((sets.indirect, torch.maximum(up, down)), (sets.direct, promoted))
        for row in range(7)
        for h, x, k in zip(side.heuristics, counted[row].tolist(), side.sizes.tolist(), strict=True)
        if 10 * x >= 6 * k
    }
    assert set(found.matches[["row", "heuristic"]].itertuples(index=False, name=None)) - several == want_matches
    assert len(found.matches) == len(want_matches) + len(several)
    # Of each kind there is one, about each number: the furthest beyond expectation.
    kinds = {(h.kind, h.on) for side in (sets.indirect, sets.direct) for h in side.heuristics}
    best = found.best[found.best.kind != "multi-result"]
    assert sorted(best[["row", "kind", "on"]].itertuples(index=False, name=None)) == sorted(
        (row, *kind) for row in range(7) for kind in kinds
    )
    most = found.matches.groupby(["row", "kind", "on"]).beyond.max()
    own = found.best.set_index(["row", "kind", "on"]).beyond
    assert (own[most.index] >= most).all()
    assert (found.neurons.row == np.arange(7)).all()


def _evidence(total: int, k: int, x: int) -> float:
    p = brute.tail(total, k, x)
    return log10(p.denominator) - log10(p.numerator)


def test_p_and_rates_by_hand() -> None:
    """Two neurons with a pair of either class each; p is twice the chance in the null of the pair's own class."""
    best = pd.DataFrame(
        {
            "row": [0, 0, 1, 1],
            "direct": [False, True, False, True],
            "beyond": [8.5, 3.0, 2.5, 15.5],
            "overlap": [5, 6, 3, 3],
            "size": [10, 10, 10, 5],
        }
    )
    null = np.array([[11.0, 12.0], [13.0, 14.0]])
    found = calibrate(Matched(best, best.iloc[[0, 3]], null), np.arange(1.0, 10.0), (100, 1000))
    # Indirect: 1 of 9 nulls is at least 8.5, 7 are at least 2.5. Direct: all 4 are above 3; none reaches 15.5, so that the
    # sum of 1000 probabilities is the bound.
    p = [2 * 2 / 10, 1.0, 1.0, 2 * 1000 * 10**-15.5]
    assert found.matches.p.tolist() == pytest.approx(p)
    assert found.best.p.tolist() == pytest.approx([p[0], p[3]])
    assert found.neurons.row.tolist() == [0, 1]
    assert found.neurons.p.tolist() == pytest.approx([p[0], p[3]])
    assert found.neurons.fdr.tolist() == pytest.approx([0.4, 2 * p[3]])
    assert found.matches.fdr.tolist() == pytest.approx([0.4, 1.0, 1.0, 2 * p[3]])
    assert found.matches.calibrated.tolist() == [False, False, False, True]
    # However improbable, 2 of 5 are no match.
    few = calibrate(Matched(best.assign(overlap=2), best.iloc[[0, 3]], null), np.arange(1.0, 10.0), (100, 1000))
    assert few.matches.fdr.tolist() == found.matches.fdr.tolist()
    assert not few.matches.calibrated.any()


def test_a_rate_of_just_the_level_will_do() -> None:
    """One neuron that is above all of 39 nulls: twice 1/40, exactly."""
    best = pd.DataFrame({"row": [0], "direct": [False], "beyond": [1.0], "overlap": [6], "size": [10]})
    found = calibrate(Matched(best, best, np.zeros((1, 1))), np.zeros(39), (1000, 1000))
    assert (found.best.fdr.tolist(), found.best.calibrated.tolist()) == ([0.05], [True])


def test_how_many_heuristics_are_tried() -> None:
    """Either sign of indirect ones; of 12 results there are C(12, 2) + C(12, 3) + C(12, 4) sets."""
    assert tries(SMALL) == (2 * len(SMALL.indirect.heuristics), len(SMALL.direct.heuristics) + 66 + 220 + 495)
    sums = CATALOGUES["+"]
    assert tries(sums) == (2 * len(sums.indirect.heuristics), len(sums.direct.heuristics))


def test_the_grid_of_foremost_prompts() -> None:
    assert grid(2) == [2]
    assert grid(10) == [2, 3, 4, 6, 9, 10]
    assert grid(20) == [2, 3, 4, 6, 9, 13, 19, 20]


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


def test_histograms_by_hand() -> None:
    """In integers, as sums over very many cells are taken of them."""
    found = histogram(torch.tensor([[0, 2, 2], [1, 1, 1]]), 4)
    assert found.tolist() == [[1, 0, 2, 0], [0, 3, 0, 0]]
    assert found.dtype is torch.int32


def test_a_table_without_a_row_has_columns_of_the_same_kinds() -> None:
    none, zero = torch.zeros(0, dtype=torch.long), torch.zeros(1, 1)
    sets = Overlaps(zero.int(), zero.int(), zero, zero)
    empty, one = (
        _pairs((at, at), range(1), found, torch.ones_like(at), zero, sets)
        for at, found in ((none, []), (torch.zeros(1, dtype=torch.long), [parse("op1 = op2")]))
    )
    assert {name: x.dtype for name, x in empty.items()} == {name: x.dtype for name, x in one.items()}


def test_permuted_neurons_are_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two prompts there is one order but the neuron's own, and every permutation is that."""
    moved: list[list[int]] = []

    def asked(activations: Tensor, logits: Tensor, sets: Catalogue, shifts: NDArray[np.int64], rows: int) -> Direct:
        moved.extend(shifts.tolist())
        return directly(activations, logits, sets, shifts, rows)

    monkeypatch.setattr("arithscope.heuristics.classification.direct", asked)
    neurons = Neurons(np.ones((2, 2, 2), dtype=np.float16), np.ones((2, 2), dtype=np.float32))
    classify(neurons, catalogue("/", 1, 1000), 10, 0, ["a", "b"], lambda n: None)
    assert moved == [[1] * 10] * 2


def test_so_little_memory_that_neurons_are_worked_on_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sets, logits = CATALOGUES["/"], np.random.default_rng(2).standard_normal((7, 130)).astype(np.float32)
    neurons, done = Neurons(patterns(sets), logits), []
    want = classify(neurons, sets, 3, 0, list("abcdefg"), lambda n: None)
    monkeypatch.setattr("arithscope.heuristics.classification.CPU_CELLS", 1)
    found = classify(neurons, sets, 3, 0, list("abcdefg"), done.append)
    assert done == [1] * 7
    for a, b in ((found.matches, want.matches), (found.best, want.best), (found.neurons, want.neurons)):
        pd.testing.assert_frame_equal(a, b)


def test_heuristics_about_both_operands_are_asked_for() -> None:
    """But for op1 = op2, which is of the paper's own kinds."""
    without, with_them = catalogue("+", 9, 100), catalogue("+", 9, 100, both_operands=True)
    assert {str(h) for h in without.indirect.heuristics if h.on == BOTH} == {"op1 = op2"}
    assert "op1, op2 mod 2 = 0" in {str(h) for h in with_them.indirect.heuristics}

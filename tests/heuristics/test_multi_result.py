"""Sets of results, against exhaustive search and by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from arithscope.heuristics.catalogue import catalogue
from arithscope.heuristics.kinds import MultiResult
from arithscope.heuristics.multi_result import (
    _mutual_information,
    find_result_sets,
    ranks_by_result,
    set_overlaps,
    top_sizes,
)
from arithscope.heuristics.overlaps import top_prompts
from tests.heuristics import brute
from tests.heuristics.catalogues import SMALL


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(0, 6), st.integers(2, 5))
def test_multi_results_against_exhaustive_search(seed: int, strength: float, count: int) -> None:
    random = np.random.default_rng(seed)
    liked = random.choice(12, count, replace=False)
    values = np.isin(SMALL.answers.numpy(), liked) * strength + random.standard_normal(len(SMALL)).round(1)
    assert_is_the_best_set(top_prompts(torch.from_numpy(values.astype(np.float32))[None]))


def assert_is_the_best_set(ranked: Tensor) -> MultiResult | None:
    """Compare with exhaustive search; returns the set."""
    answers = SMALL.answers.numpy()
    results = answers[ranked[0].numpy()].tolist()
    best: tuple[tuple[bool, float], tuple[int, ...], int, int] | None = None
    for t in top_sizes(len(SMALL)):
        chosen = brute.smallest_accounting_set(results[:t], answers.tolist())
        if chosen is None or len(chosen) < 2:
            continue
        k = sum(a in chosen for a in answers.tolist())
        overlap = sum(r in chosen for r in results[:k])
        score = (overlap / k >= 0.6, information_by_hand(len(SMALL), k, overlap))
        if best is None or score[0] > best[0][0] or (score[0] == best[0][0] and score[1] > best[0][1] + 1e-9):
            best = (score, chosen, k, overlap)
    ranks = ranks_by_result(ranked, SMALL)
    found = find_result_sets(ranked, ranks, SMALL)
    assert bool(found.exists[0]) is (best is not None)
    if best is not None:
        assert found.heuristic(0, SMALL) == MultiResult(best[1])
        assert (int(found.size[0]), int(found.overlap[0])) == best[2:]
        assert set_overlaps(ranks[None], found, SMALL).tolist() == [[[best[3]]]]
        backwards = sum(r in best[1] for r in results[::-1][: best[2]])
        assert set_overlaps(ranks_by_result(ranked.flip(1), SMALL)[None], found, SMALL).tolist() == [[[backwards]]]
    return None if best is None else MultiResult(best[1])


def with_results_in_front(first: list[int]) -> Tensor:
    """A ranking of the prompts: first ones with these results, then the others with a result of 0, then the rest."""
    waiting = {r: np.flatnonzero(SMALL.answers.numpy() == r).tolist() for r in range(12)}
    front = [waiting[r].pop() for r in first]
    rest = [waiting[r].pop() for r in (*([0] * len(waiting[0])), *range(1, 12)) if waiting[r]]
    last = [i for prompts in waiting.values() for i in prompts]
    return torch.tensor([front + rest + last])


@pytest.mark.parametrize("first", [[0] * 26 + [5, 3], [0] * 18 + [3]])
def test_equally_frequent_results_and_just_too_few(first: list[int]) -> None:
    """26 of 28 are not enough and 27 are, with either of two results: the smaller is chosen. 18 of 19 are not enough."""
    assert assert_is_the_best_set(with_results_in_front(first)) == MultiResult((0, 3))


def test_just_enough_results() -> None:
    """40 of 42, or 60 of 63, are enough: 95.2 %."""
    first = [2, 3, *([0, 1] * 20), *([0] * 20), 4]
    assert assert_is_the_best_set(with_results_in_front(first)) == MultiResult((0, 1))


def test_exactly_as_many_results_as_needed() -> None:
    """Of 20 prompts all but 4/1 have a result of 0 to 3: 95 %. Fewer top prompts need all five results, or 0 alone."""
    sets = catalogue("/", 4, 1000)
    answers = sets.answers.tolist()
    assert sorted(answers) == [0] * 10 + [1] * 6 + [2] * 2 + [3, 4]
    by_result = sorted(range(20), key=lambda i: answers[i])
    front = [*range(9), 19, 18, 17, 10]  # nine of 0, then one of each other
    ranked = torch.tensor([[by_result[i] for i in front + [i for i in range(20) if i not in front]]])
    found = find_result_sets(ranked, ranks_by_result(ranked, sets), sets)
    assert found.exists.tolist() == [True]
    assert found.heuristic(0, sets) == MultiResult((0, 1, 2, 3))
    assert (found.size.tolist(), found.overlap.tolist()) == ([19], [18])


def test_ranks_of_very_many_results() -> None:
    """Result index · N + rank, also beyond 32 bits."""
    for code, kind in ((2**30 - 1, torch.int64), (2**29, torch.int32)):
        many: Any = SimpleNamespace(results=range(code + 1), result_index=torch.tensor([code, 0]))
        ranks = ranks_by_result(torch.tensor([[0, 1], [1, 0]]), many)
        assert ranks.tolist() == [[1, 2 * code], [0, 2 * code + 1]]
        assert ranks.dtype is kind


def information_by_hand(n: int, k: int, x: int) -> float:
    if x <= k * k / n:
        return 0.0
    cells = [(x, k * k / n), (k - x, k * (n - k) / n), (k - x, k * (n - k) / n), (n - 2 * k + x, (n - k) ** 2 / n)]
    return sum(o * np.log(o / e) for o, e in cells if o > 0)


def test_information_by_hand() -> None:
    found = _mutual_information(100, torch.tensor([10, 10, 40, 5]), torch.tensor([10, 1, 30, 2])).tolist()
    want = [information_by_hand(100, 10, 10), 0.0, information_by_hand(100, 40, 30), information_by_hand(100, 5, 2)]
    assert found == pytest.approx(want)


def test_numbers_of_top_prompts_that_are_tried() -> None:
    assert top_sizes(2) == [2]
    assert top_sizes(10) == [2, 3, 4, 6, 9, 10]
    assert top_sizes(20) == [2, 3, 4, 6, 9, 13, 19, 20]


def test_an_overlap_below_chance_is_no_information() -> None:
    """Of 100 prompts, sets of 50 share 25 by chance."""
    k, overlap = torch.full((5,), 50), torch.tensor([0, 10, 25, 26, 50])
    found = _mutual_information(100, k, overlap).tolist()
    assert found[:3] == [0, 0, 0]
    assert 0 < found[3] < found[4] == pytest.approx(100 * math.log(2))

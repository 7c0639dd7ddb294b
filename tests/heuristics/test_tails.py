"""Tail probabilities against exact fractions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arithscope.heuristics.tails import neg_log10_p_hypergeom, neg_log10_p_hypergeom_table
from tests.heuristics import brute


@given(st.integers(2, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1))))
def test_tails_equal_exact_fractions(sizes: tuple[int, int]) -> None:
    total, k = sizes
    want = [brute.neg_log10_tail(total, k, x) for x in range(k + 1)]
    assert neg_log10_p_hypergeom_table(total, k) == pytest.approx(want, rel=1e-9, abs=1e-9)
    assert np.all(np.diff(neg_log10_p_hypergeom_table(total, k)) >= -1e-12)
    one_by_one = neg_log10_p_hypergeom(total, torch.full((k + 1,), k), torch.arange(k + 1)).numpy()
    assert one_by_one == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_large_sets() -> None:
    """Half of the operand grid and more; statistics in the ten thousands."""
    for total, k in ((90_300, 45_150), (90_601, 12), (45_451, 45_000), (5_792, 4_400)):
        table = neg_log10_p_hypergeom_table(total, k)
        chance = k * k // total
        x = np.unique(
            np.clip(np.concatenate([np.linspace(0, k, 30), chance + np.arange(-300, 300, 25)]), 0, k).astype(int)
        )
        found = neg_log10_p_hypergeom(total, torch.full((len(x),), k), torch.from_numpy(x)).numpy()
        assert found == pytest.approx(table[x], rel=1e-7, abs=1e-7)
    for k, x in ((1000, 30), (1000, 12), (1000, 1000)):
        assert neg_log10_p_hypergeom_table(90_601, k)[x] == pytest.approx(brute.neg_log10_tail(90_601, k, x), rel=1e-9)


def test_no_heuristics() -> None:
    nothing = neg_log10_p_hypergeom(10, torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    assert (nothing.tolist(), nothing.dtype) == ([], torch.float64)


def test_one_prompt() -> None:
    assert neg_log10_p_hypergeom_table(1, 1).tolist() == [0.0, 0.0]
    assert neg_log10_p_hypergeom(1, torch.tensor([1, 1]), torch.tensor([0, 1])).tolist() == [0.0, 0.0]

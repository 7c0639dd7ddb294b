"""Splitting work into units; running them is tested with the unit cache and with out-of-memory errors."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from arithscope.utils.executor import split_evenly


@given(n=st.integers(1, 500), size=st.integers(1, 100))
def test_the_fewest_slices_of_about_equal_length(n: int, size: int) -> None:
    found = [range(n)[part] for part in split_evenly(n, size)]
    assert [i for part in found for i in part] == list(range(n))
    assert len(found) == math.ceil(n / size)
    assert max(map(len, found)) - min(map(len, found)) <= 1
    assert max(map(len, found)) <= size

"""Comparing results of two computations that may differ by rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest


def assert_close(found: Any, wanted: Any, where: str = "", *, rel: float = 1e-3, abs: float = 1e-5) -> None:
    """Compare dicts key by key, tables and arrays entry by entry, and floats up to a tolerance; all else must be equal."""
    assert type(found) is type(wanted), where
    if isinstance(wanted, pd.DataFrame):
        pd.testing.assert_frame_equal(found, wanted, rtol=rel, atol=abs)
    elif isinstance(wanted, np.ndarray):
        assert found.shape == wanted.shape, where
        np.testing.assert_allclose(found, wanted, rtol=rel, atol=abs, err_msg=where)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key in wanted:
            assert_close(found[key], wanted[key], f"{where}/{key}", rel=rel, abs=abs)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=rel, abs=abs, nan_ok=True), where
    else:
        assert found == wanted, where

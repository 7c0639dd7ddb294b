"""Stages computed on a sample, with full forward passes, agree with the stored results: what `verify` relies on."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from arithscope.experiments.common.schema import Table
from arithscope.experiments.common.stage import Context, Results
from arithscope.models.engine.full_pass import FullPass
from arithscope.pipeline.registry import all_stages, stage_named
from arithscope.prompts import random_source
from arithscope.settings import Settings
from tests.hand_built import MAX_OPERAND, copy_and_add

CLOSE: dict[str, Any] = dict(rtol=1e-3, atol=1e-4)
STAGES = [stage.name for stage in all_stages() if not stage.on_request]


@dataclass(frozen=True)
class Sampled(Context):
    """Computes a sample, compares it with the stored result, and continues with the stored one."""

    stored: Any = None
    compared: list[int] = field(default_factory=list)  # numbers of rows or entries

    @property
    def complete(self) -> bool:
        return False

    def sample(self, n: int, size: int, *names: str | int) -> NDArray[np.int64]:
        return np.sort(random_source(3, "sample", *names).permutation(n)[:size])

    def confirmed(self, name: str, measured: Any, rows: Any = ..., **hints: Any) -> Any:
        stored = getattr(self.stored, name)
        if isinstance(measured, pd.DataFrame):
            keys = type(self.stored).schema()[name].keys
            own = measured[keys].merge(stored, how="left", on=keys, validate="one_to_one")
            if "sampled_null" in hints:  # counted among the permutations of the sampled neurons only
                assert set(hints["sampled_null"]) == {"+"}
                assert (own.p - measured.p).abs()[~own.direct].max() < 1e-9
                own, measured = own.drop(columns="p"), measured.drop(columns="p")
            same(own[measured.columns], measured, dict(rtol=0, atol=0.05) if hints.get("trained") else CLOSE)
        else:
            assert np.allclose(stored[rows], measured, rtol=2e-3, atol=1e-4)
        self.compared.append(len(measured))
        return stored


def same(a: Any, b: Any, tolerance: dict[str, Any]) -> None:
    if isinstance(a, pd.DataFrame) and len(a):
        a, b = (x.reset_index(drop=True) for x in (a, b))
        pd.testing.assert_frame_equal(a, b, check_dtype=False, check_index_type=False, **tolerance)
    elif isinstance(a, np.ndarray):
        assert np.allclose(a, b, equal_nan=True, **tolerance)
    elif isinstance(a, pd.DataFrame):
        assert b.empty
    else:
        measured = isinstance(a, dict) and all(isinstance(x, float) for x in a.values())
        assert a == pytest.approx(b) if measured else a == b


@pytest.mark.parametrize("name", STAGES)
def test_a_sample_agrees_with_the_whole(adder_results: dict[str, Any], name: str) -> None:
    stage, stored = stage_named(name), adder_results[name]
    earlier = Results(*adder_results.values()).only(stage.needs)
    model = copy_and_add().with_engine(FullPass())
    ctx = Sampled(model, Settings(("+",), MAX_OPERAND), earlier, stored=stored)
    again = stage.compute(ctx)
    for each in fields(again):  # type: ignore[arg-type]
        same(getattr(stored, each.name), getattr(again, each.name), CLOSE)
    assert ctx.compared or name in ("means", "accuracy", "overlap", "failures")


def test_tables_are_as_declared(adder_results: dict[str, Any]) -> None:
    """`verify` finds the rows of a table by its key columns, so these must identify rows."""
    for name, result in adder_results.items():
        for each, declared in type(result).schema().items():
            if isinstance(declared, Table) and len(table := getattr(result, each)):
                assert list(table.columns) == declared.names, (name, each)
                assert not table.duplicated(declared.keys).any(), (name, each)

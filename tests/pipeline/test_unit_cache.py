"""The unit cache: finished units are stored at once, read back as they were, and not computed again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from arithscope.pipeline import unit_cache
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.unit_cache import (
    CachingExecutor,
    caching_executor,
    clear_cache,
    digests,
    read_unit,
    write_unit,
)
from arithscope.prompts import Prompts
from arithscope.utils.executor import LOCAL
from arithscope.utils.progress import Silent
from tests.conftest import smaller
from tests.faults import stored
from tests.hand_built import copy_and_add
from tests.units import Counting, fails, product

NUMBERS = np.arange(5)
UNITS = [(factor, NUMBERS) for factor in (3, 1, 2)]

dtypes = st.sampled_from(
    [np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]
)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0)))
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), arrays)
values = st.recursive(
    plain,
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.lists(inside, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.tuples(st.integers()), inside, max_size=3)
    ),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    """Equal to the bit, with the same types."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    return a == b or (a != a and b != b)


@given(value=values, steps=st.integers(0, 2**40))
def test_units_are_read_as_they_were_written(value: Any, steps: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "unit.safetensors"
    write_unit(path, value, steps)
    found = read_unit(path)
    assert found is not None
    assert same(found, (value, steps))


def test_arrays_that_are_not_contiguous(tmp_path: Path) -> None:
    table = np.arange(12.0).reshape(3, 4)
    write_unit(tmp_path / "unit", (table.T, table[:, ::2], np.broadcast_to(table[0], (2, 4))), 0)
    found, _ = read_unit(tmp_path / "unit") or (None, None)
    assert same(found, tuple(np.ascontiguousarray(x) for x in (table.T, table[:, ::2], np.stack([table[0]] * 2))))


def test_a_damaged_unit_counts_as_missing(tmp_path: Path) -> None:
    path, value = tmp_path / "unit", (np.arange(6), "text", {"number": 1.5})
    write_unit(path, value, 7)
    whole = path.read_bytes()
    assert read_unit(tmp_path / "absent") is None
    refused = 0
    for i in range(len(whole)):
        path.write_bytes(whole[:i])
        assert read_unit(path) is None
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :])
        found = read_unit(path)
        assert found is None or same(found, (value, 7))  # a changed blank in the header does no harm
        refused += found is None
    assert refused > 0.9 * len(whole)


@pytest.mark.parametrize("value", [{1, 2}, object(), np.float64(1.0), [np.array(["a", None], dtype=object)]])
def test_only_plain_data_can_be_stored(value: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        write_unit(tmp_path / "unit", value, 0)


@dataclass(frozen=True)
class Pair:
    a: Any
    b: Any


@dataclass(frozen=True)
class OtherPair:
    a: Any
    b: Any


def test_different_arguments_have_different_digests() -> None:
    """Also those that print alike."""
    alike: list[Any] = [
        1,
        1.0,
        True,
        "1",
        None,
        "None",
        [1],
        [[1]],
        [1, 1],
        {1: 1},
        {"1": 1},
        Pair(1, 2),
        OtherPair(1, 2),
    ]
    alike += [Pair((1, 2), 3), Pair(1, (2, 3)), ["a", "b"], ["ab"], ["a,b"], "", [], {}]
    alike += [
        np.array([1]),
        np.array([1.0]),
        np.array([[1]]),
        np.array([1], np.int32),
        np.array(1),
        np.array([], float),
    ]
    found = digests(product, [(value,) for value in alike] + [(1, 1), ((1, 1), 1), (1, (1, 1))])
    assert len(set(found)) == len(found)
    assert digests(product, [(1,)]) != digests(fails, [(1,)])
    with pytest.raises(TypeError, match="plain data"):
        digests(product, [(object(),)])


def test_digests_depend_on_values_only() -> None:
    """The same in another process, and for equal arguments that are not the same objects."""
    code = """
import numpy as np
from arithscope.pipeline.unit_cache import digests
from arithscope.prompts import Prompts
from tests.units import product
print(*digests(product, [(3, np.arange(5)), (Prompts([1], [0], [2]), {"x": (1.5, None)}, range(3))]))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    again = [(3, np.arange(5)), (Prompts(*(np.array([x]) for x in (1, 0, 2))), {"x": (1.5, None)}, range(3))]
    assert answer.stdout.split() == digests(product, again)


def test_arguments_that_units_share_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    original = unit_cache._add
    monkeypatch.setattr(unit_cache, "_add", lambda digest, value: hashed.append(id(value)) or original(digest, value))
    digests(product, UNITS)
    assert hashed.count(id(NUMBERS)) == 1


def test_no_unit_is_computed_twice(tmp_path: Path) -> None:
    steps: list[int] = []
    executor = Counting(LOCAL)
    want = [((factor * NUMBERS), {"factor": factor}) for factor in (3, 1, 2)]
    for computed in (3, 0):
        executor.units = 0
        steps.clear()
        found = CachingExecutor(executor, tmp_path).map(product, None, UNITS, steps.append)
        assert same(found, want)
        assert (executor.units, sum(steps)) == (computed, 12)  # cached units count as done
    [damaged, *_] = sorted(tmp_path.iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    executor.units = 0
    assert same(CachingExecutor(executor, tmp_path).map(product, None, [*UNITS, (9, NUMBERS)], steps.append)[:3], want)
    assert executor.units == 2


def test_a_unit_is_stored_before_the_next_is_computed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        CachingExecutor(Counting(LOCAL, 2), tmp_path).map(product, None, UNITS, lambda n: None)
    assert len(list(tmp_path.iterdir())) == 2
    rest = Counting(LOCAL)
    CachingExecutor(rest, tmp_path).map(product, None, UNITS, lambda n: None)
    assert rest.units == 1


def test_units_of_other_inputs_are_removed(tmp_path: Path) -> None:
    for stage in ("one", "two"):
        caching_executor(LOCAL, tmp_path, stage, "key").map(product, None, UNITS, lambda n: None)
    executor = Counting(LOCAL)
    caching_executor(executor, tmp_path, "one", "other key").map(product, None, UNITS[:1], lambda n: None)
    assert executor.units == 1
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob(".units/*/*")) == [
        ".units/one/other key",
        ".units/two/key",
    ]
    clear_cache(tmp_path, "one")
    assert (tmp_path / ".units" / "two").exists()
    clear_cache(tmp_path, "two")
    clear_cache(tmp_path, "three")
    assert not list(tmp_path.iterdir())


SETTINGS = smaller(("+",), 12)
STAGES = ["heads"]


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run that was stopped after two units of localize."""
    run_stages(copy_and_add(), SETTINGS, tmp_path / "begun", ["accuracy"], Silent())
    with pytest.raises(KeyboardInterrupt):
        run_stages(copy_and_add(), SETTINGS, tmp_path / "begun", ["localize"], Silent(), executor=Counting(LOCAL, 2))
    return tmp_path / "begun"


def test_a_stopped_stage_continues_after_its_last_unit(tmp_path: Path) -> None:
    """Stopped again and again, a run computes every unit once, and ends with the results of an uninterrupted one."""
    whole = Counting(LOCAL)
    run_stages(copy_and_add(), SETTINGS, tmp_path / "uninterrupted", STAGES, Silent(), executor=whole)
    assert whole.units > 8
    computed = stops = 0
    while True:
        executor = Counting(LOCAL, 3)
        try:
            run_stages(copy_and_add(), SETTINGS, tmp_path / "stopped", STAGES, Silent(), executor=executor)
            break
        except KeyboardInterrupt:
            computed, stops = computed + executor.units, stops + 1
            assert (tmp_path / "stopped" / ".units").exists()
    assert computed + executor.units == whole.units
    assert stops == (whole.units - 1) // 3
    assert stored(tmp_path / "stopped") == stored(tmp_path / "uninterrupted")
    assert not (tmp_path / "stopped" / ".units").exists()


def test_units_of_other_settings_are_not_used(begun: Path) -> None:
    executor = Counting(LOCAL)
    other = replace(SETTINGS, seed=1)
    run_stages(copy_and_add(), other, begun, ["localize"], Silent(), executor=executor, overwrite=True)
    assert executor.units == len(copy_and_add().positions.named())
    assert not (begun / ".units").exists()


def test_units_do_not_depend_on_memory(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units computed on a large machine are reused on a small one."""
    monkeypatch.setattr("arithscope.experiments.common.samples.rows_that_fit", lambda *args, **options: 3)
    executor = Counting(LOCAL)
    run_stages(copy_and_add(), SETTINGS, begun, ["localize"], Silent(), executor=executor)
    assert executor.units == len(copy_and_add().positions.named()) - 2


def test_the_manifest_names_the_executor(tmp_path: Path) -> None:
    executor = Counting(LOCAL)
    executor.where = "a hundred monkeys"
    run_stages(copy_and_add(), SETTINGS, tmp_path, ["means"], Silent(), executor=executor)
    assert json.loads((tmp_path / "manifest.json").read_text())["model"]["device"] == "a hundred monkeys"

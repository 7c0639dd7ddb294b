from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.experiments.common import schema
from arithscope.experiments.common.result import Result
from arithscope.experiments.common.stage import Context, stage, unregister
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.store import SCHEMA, RunFolder, open_for_writing, stage_key
from arithscope.utils.files import write_text

MODEL = {"name": "a", "weight_hash": "w", "tokenizer_hash": "t"}
KEYS = {"first": "1", "second": "2"}


@dataclass(frozen=True, repr=False)
class Found(Result):
    table: pd.DataFrame = schema.table("Some rows.", schema.integer("op1", "a number"), schema.OPERATOR)
    numbers: NDArray[np.float32] = schema.array("Some numbers.", "float32", "rows, columns")
    layer: int = schema.value("A layer.")
    share: float = schema.value("A share.")

    def summary(self) -> dict[str, Any]:
        return {"+": {"x": float("nan"), "layer": np.int64(self.layer)}}


@pytest.fixture(autouse=True)
def first_stage() -> Iterator[None]:
    """A stage called `first` whose result is `Found`."""

    def first(ctx: Context) -> Found:
        return found()

    stage()(first)
    yield
    unregister("first")


def found() -> Found:
    return Found(
        pd.DataFrame({"op1": [1, 2], "operator": ["+", "/"]}), np.arange(6, dtype=np.float32).reshape(2, 3), 4, 0.5
    )


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    with open_for_writing(tmp_path / "run", MODEL, {}, KEYS) as run:
        run.start("first")
        run.write("first", found(), 1.5)
    again = RunFolder(tmp_path / "run").read(Found)
    pd.testing.assert_frame_equal(again.table, found().table)
    assert np.array_equal(again.numbers, found().numbers)
    assert (again.layer, again.share) == (4, 0.5)


def test_manifest_and_summary(tmp_path: Path) -> None:
    with open_for_writing(tmp_path, MODEL, {"seed": 3}, KEYS) as run:
        run.start("first")
        assert json.loads((tmp_path / "manifest.json").read_text())["stages"]["first"]["status"] == "running"
        run.write("first", found(), 1.5)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["schema"] == SCHEMA
    assert manifest["configuration"] == {"seed": 3}
    assert manifest["stages"]["first"]["seconds"] == 1.5
    assert {k: v["status"] for k, v in manifest["stages"].items()} == {"first": "done", "second": "pending"}
    assert json.loads((tmp_path / "summary.json").read_text()) == {"first": {"+": {"x": None, "layer": 4}}}


def test_other_inputs_make_a_stage_stale(tmp_path: Path) -> None:
    with open_for_writing(tmp_path, MODEL, {}, KEYS) as run:
        run.write("first", found(), 1.0)
        assert run.is_done("first")
    with open_for_writing(tmp_path, MODEL, {}, KEYS | {"first": "other"}, overwrite=True) as run:
        assert not run.is_done("first")
        assert run.manifest["stages"]["first"]["status"] == "stale"
        assert run.summary == {}
        run.write("first", found(), 1.0)
        assert run.is_done("first")


@pytest.mark.parametrize("damage", ["truncate", "remove", "change", "no record", "bad record"])
def test_damaged_stages_do_not_count(tmp_path: Path, damage: str) -> None:
    with open_for_writing(tmp_path, MODEL, {}, KEYS) as run:
        run.write("first", found(), 1.0)
    table, record = tmp_path / "first" / "table.parquet", tmp_path / "first" / "stage.json"
    if damage == "truncate":
        table.write_bytes(table.read_bytes()[:-10])
    elif damage == "remove":
        table.unlink()
    elif damage == "change":
        content = bytearray(table.read_bytes())
        content[20] ^= 1
        table.write_bytes(content)
    elif damage == "no record":
        record.unlink()
    else:
        record.write_text('["not what it should be"]')
    assert not RunFolder(tmp_path).has("first")
    with pytest.raises(UserError, match="no complete stage 'first'"):
        RunFolder(tmp_path).read(Found)


def test_folders_of_other_models_versions_and_programs_are_refused(tmp_path: Path) -> None:
    with open_for_writing(tmp_path / "a", MODEL, {}, KEYS):
        pass
    before = (tmp_path / "a" / "manifest.json").read_text()
    with (
        pytest.raises(UserError, match=r"another model \(a\)"),
        open_for_writing(tmp_path / "a", MODEL | {"weight_hash": "?"}, {}, KEYS),
    ):
        pass
    write_text(tmp_path / "a" / "manifest.json", before.replace(f'"schema": {SCHEMA}', '"schema": 999'))
    with pytest.raises(UserError, match="schema 999"), open_for_writing(tmp_path / "a", MODEL, {}, KEYS):
        pass
    write_text(tmp_path / "a" / "manifest.json", "{")
    with pytest.raises(UserError, match="damaged"), open_for_writing(tmp_path / "a", MODEL, {}, KEYS):
        pass
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="not empty"), open_for_writing(tmp_path / "b", MODEL, {}, KEYS):
        pass
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["thesis.txt"]
    (tmp_path / "c").write_text("a file")
    with pytest.raises(UserError, match="Cannot write"), open_for_writing(tmp_path / "c", MODEL, {}, KEYS):
        pass
    with pytest.raises(UserError, match="no run"):
        RunFolder(tmp_path / "nowhere")


def _try_to_claim(path: Path, answer: Any) -> None:
    try:
        with open_for_writing(path, MODEL, {}, KEYS):
            answer.put("claimed")
    except UserError as error:
        answer.put(str(error))


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    with open_for_writing(tmp_path, MODEL, {}, KEYS):
        other = context.Process(target=_try_to_claim, args=(tmp_path, answer))
        other.start()
        assert "Another process" in answer.get(timeout=60)
        other.join()
    with open_for_writing(tmp_path, MODEL, {}, KEYS):
        pass


def test_keys_depend_on_every_input() -> None:
    base = dict(stage="a", settings={"seed": 0, "operators": ("+",)}, needs={})
    assert stage_key(**base) == stage_key(**dict(reversed(base.items())))
    for change in ({"stage": "b"}, {"settings": {"seed": 1, "operators": ("+",)}}, {"needs": {"x": "1"}}):
        assert stage_key(**{**base, **change}) != stage_key(**base)


def test_arrays_are_memory_mapped_copy_on_write(tmp_path: Path) -> None:
    with open_for_writing(tmp_path / "run", MODEL, {}, KEYS) as run:
        run.write("first", found(), 1.5)
    file = tmp_path / "run" / "first" / "numbers.npy"
    before = file.read_bytes()
    numbers = RunFolder(tmp_path / "run").read(Found).numbers
    assert isinstance(numbers, np.memmap)
    numbers[0] = 7.0  # in memory only
    assert file.read_bytes() == before


def test_stored_tables_have_the_declared_columns(small_run: Path) -> None:
    """Tables of a run with all stages have exactly the columns that their result classes declare."""
    for each in (s for s in all_stages() if not s.on_request and s.name != "first"):
        declared = {n: set(x.names) for n, x in each.result.schema().items() if isinstance(x, schema.Table)}
        written = {f.stem: set(pd.read_parquet(f).columns) for f in (small_run / each.name).glob("*.parquet")}
        assert written == declared, each.name


def test_key_columns_identify_rows(small_run: Path) -> None:
    run = RunFolder(small_run)
    for each in (s for s in all_stages() if not s.on_request and s.name != "first"):
        for name, declared in each.result.schema().items():
            if isinstance(declared, schema.Table) and declared.keys:
                assert not getattr(run.read(each.result), name).duplicated(declared.keys).any(), (each.name, name)

"""Run folders with changed files whose checksums are right nevertheless: each is read or refused."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.means import MeanActivations
from arithscope.explorer import views
from arithscope.explorer.runs import RunRegistry
from arithscope.models.load import load
from arithscope.pipeline import unit_cache
from arithscope.pipeline.runner import run_stages as study
from arithscope.pipeline.store import RunFolder
from arithscope.report.page import page
from arithscope.results.run import Run
from arithscope.utils.files import with_checksum, write_text
from arithscope.utils.progress import Silent
from tests.conftest import smaller
from tests.fuzz.damage import corrupted, documents, files, written
from tests.fuzz.effort import fuzz, refused, twice
from tests.fuzz.test_models import damaged_weights

STORED = ("accuracy", "circuit", "overlap", "topk")  # stages that are copied; the others are left out, for speed
ARRAYS = {
    "half": np.arange(12, dtype=np.float16).reshape(3, 4),
    "none": np.zeros((0, 2), dtype=np.float32),
    "numbers": np.arange(5, dtype=np.int32),
}


@pytest.fixture(scope="module")
def base(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with few stages."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    for stage in STORED:
        shutil.copytree(small_run / stage, folder / stage)
    manifest = json.loads((small_run / "manifest.json").read_text())
    manifest["stages"] = {name: entry for name, entry in manifest["stages"].items() if name in STORED}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    shutil.copy(small_run / "summary.json", folder / "summary.json")
    return folder


def copies(base: Path, folder: Path) -> Callable[[], Path]:
    numbers = itertools.count()
    return lambda: Path(shutil.copytree(base, folder / f"{next(numbers)}"))


def update_checksums(stage: Path) -> None:
    """Update the checksums of a stage's files."""
    record = json.loads((stage / "stage.json").read_text())
    record["files"] = {name: hashlib.sha256((stage / name).read_bytes()).hexdigest() for name in record["files"]}
    record = {key: value for key, value in record.items() if key != "checksum"}
    write_text(stage / "stage.json", json.dumps(with_checksum(record)))


def look(folder: Path) -> None:
    """Everything that reads a run: its results, the report, the explorer."""
    run = Run(folder)
    repr(run)
    run._repr_html_()
    run.summary.to_dict()
    page(RunFolder(folder), {})
    for served in RunRegistry([run]):
        views.run_info(served)
        for operator in run.accuracy.operators if "accuracy" in run.stages else ():
            served.predictions(operator)


def looked_at(folder: Path) -> bool:
    accepted = refused(lambda: look(folder)) is None
    shutil.rmtree(folder)
    return accepted


@twice
def test_manifests(base: Path, tmp_path: Path, full: bool) -> None:
    copy = copies(base, tmp_path)
    names = ("manifest.json", "manifest.json", "summary.json")
    content = {name: files(json.loads((base / name).read_text())) for name in names}
    inputs = st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), content[name]))

    def accepts(case: tuple[str, bytes]) -> bool:
        folder = copy()
        (folder / case[0]).write_bytes(case[1])
        return looked_at(folder)

    assert fuzz("manifests", inputs, accepts, full).accepted


@twice
def test_stage_records(base: Path, tmp_path: Path, full: bool) -> None:
    copy = copies(base, tmp_path)
    content = {stage: files(json.loads((base / stage / "stage.json").read_text())) for stage in STORED}
    inputs = st.sampled_from(STORED).flatmap(lambda stage: st.tuples(st.just(stage), content[stage]))

    def accepts(case: tuple[str, bytes]) -> bool:
        folder = copy()
        (folder / case[0] / "stage.json").write_bytes(case[1])
        return looked_at(folder)

    assert fuzz("stage records", inputs, accepts, full).accepted


@st.composite
def tables(draw: st.DrawFn, base: Path) -> tuple[str, str, bytes | pd.DataFrame]:
    """A table with other columns or types, or a file that is no table."""
    stage = draw(st.sampled_from(STORED))
    file = draw(st.sampled_from(sorted((base / stage).glob("*.parquet"))))
    if draw(st.integers(0, 3)) == 0:
        return stage, file.name, draw(corrupted(file.read_bytes()))
    table = pd.read_parquet(file)
    column = draw(st.sampled_from(list(table.columns)))
    how = draw(st.sampled_from(["drop", "rename", "text", "float", "null", "lists", "add", "order", "same", "dates"]))
    if how == "drop":
        return stage, file.name, table.drop(columns=column)
    if how == "rename":
        return stage, file.name, table.rename(columns={column: draw(st.text(min_size=1, max_size=5))})
    if how == "add":
        return stage, file.name, table.assign(more=1)
    if how == "order":
        return stage, file.name, table[list(reversed(table.columns))]
    if how == "same" or (how == "text" and isinstance(table[column].iloc[0], str)):
        return stage, file.name, table
    new: dict[str, Any] = {
        "text": table[column].astype(str) + "x",
        "float": pd.Series(np.linspace(0, 1, len(table))),
        "null": None,
        "lists": pd.Series([[1, 2]] * len(table)),
        "dates": pd.Timestamp("2020-01-01"),
    }
    return stage, file.name, table.assign(**{column: new[how]})


@twice
def test_tables_of_runs(base: Path, tmp_path: Path, full: bool) -> None:
    copy = copies(base, tmp_path)

    def accepts(case: tuple[str, str, bytes | pd.DataFrame]) -> bool:
        (stage, name, content), folder = case, copy()
        if isinstance(content, bytes):
            (folder / stage / name).write_bytes(content)
        else:
            content.to_parquet(folder / stage / name, index=False)
        update_checksums(folder / stage)
        return looked_at(folder)

    assert fuzz("tables of runs", tables(base), accepts, full).accepted


@twice
def test_resumed_runs(tmp_path: Path, full: bool) -> None:
    """Whatever a stage's folder holds, a resumed run ends with the numbers of an uninterrupted one."""
    model, settings = load("tiny-llama"), smaller(("+",), 3)
    expected = study(model, settings, tmp_path / "whole", ["accuracy"], Silent()).read(Accuracy)
    copy = copies(tmp_path / "whole", tmp_path)
    whole = tmp_path / "whole"
    content = {
        "manifest.json": files(json.loads((whole / "manifest.json").read_text())),
        "accuracy/stage.json": files(json.loads((whole / "accuracy" / "stage.json").read_text())),
        "means/heads.npy": corrupted((whole / "means" / "heads.npy").read_bytes()),
        "accuracy/prompts.parquet": corrupted((whole / "accuracy" / "prompts.parquet").read_bytes()),
    }
    inputs = st.sampled_from(sorted(content)).flatmap(lambda name: st.tuples(st.just(name), content[name]))

    def accepts(case: tuple[str, bytes]) -> bool:
        (name, data), folder = case, copy()
        (folder / name).write_bytes(data)
        again: list[RunFolder] = []
        refusal = refused(lambda: again.append(study(model, settings, folder, ["accuracy"], Silent())))
        if again:
            found = RunFolder(folder).read(Accuracy)
            pd.testing.assert_frame_equal(found.prompts, expected.prompts)
        shutil.rmtree(folder)
        return refusal is None

    assert fuzz("resumed runs", inputs, accepts, full).accepted


@twice
def test_arrays_of_runs(tmp_path: Path, full: bool) -> None:
    study(load("tiny-llama"), smaller(("+",), 3), tmp_path / "whole", ["means"], Silent())
    copy = copies(tmp_path / "whole", tmp_path)
    content = (tmp_path / "whole" / "means" / "p_answer.npy").read_bytes()
    expected = RunFolder(tmp_path / "whole").read(MeanActivations)

    def accepts(data: bytes) -> bool:
        folder = copy()
        (folder / "means" / "p_answer.npy").write_bytes(data)
        update_checksums(folder / "means")
        found: list[MeanActivations] = []
        refusal = refused(lambda: found.append(RunFolder(folder).read(MeanActivations)))
        if data == content:
            assert np.array_equal(found[0].p_answer, expected.p_answer, equal_nan=True)
        shutil.rmtree(folder)
        return refusal is None

    assert fuzz("arrays of runs", st.one_of(st.just(content), corrupted(content)), accepts, full).accepted


@twice
def test_cached_units(tmp_path: Path, full: bool) -> None:
    """A unit is read as it was written, or not at all, even if its checksum is right."""
    path, result = tmp_path / "unit.safetensors", ({"a": [1, 2.5, None, "x"]}, np.arange(4), [np.zeros((2, 0))])
    unit_cache.write_unit(path, result, 7)
    whole = path.read_bytes()
    with safe_open(path, "np") as file:
        value = json.loads(file.metadata()["value"])
    arrays = [np.arange(4), np.zeros((2, 0))]

    def resigned(text: bytes) -> bytes:
        value = text.decode("utf-8", "replace")
        metadata = {"value": value, "checksum": unit_cache._checksum(value, arrays)}
        return save({str(i): a for i, a in enumerate(arrays)}, metadata)

    inputs = st.one_of(
        st.tuples(st.just(False), st.one_of(st.just(whole), corrupted(whole), damaged_weights(whole))),
        st.tuples(st.just(True), st.one_of(documents(value).map(written), files(value)).map(resigned)),
    )

    def accepts(case: tuple[bool, bytes]) -> bool:
        is_signed, data = case
        path.write_bytes(data)
        found = unit_cache.read_unit(path)
        if found is not None:
            assert type(found[1]) is int
            assert is_signed or (found[1] == 7 and str(found[0]) == str(result))
        return found is not None

    assert fuzz("parts of stages", inputs, accepts, full).accepted


def test_a_stage_with_a_missing_column_is_refused(base: Path, tmp_path: Path) -> None:
    folder = copies(base, tmp_path)()
    table = pd.read_parquet(folder / "accuracy" / "table.parquet")
    table.drop(columns="value").to_parquet(folder / "accuracy" / "table.parquet", index=False)
    update_checksums(folder / "accuracy")
    with pytest.raises(UserError, match="no valid column value; run it again"):
        RunFolder(folder).read(Accuracy)

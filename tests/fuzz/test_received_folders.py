"""Run folders with links, named pipes, devices, names that are paths, and tables of all sizes: whatever is done with them,
nothing outside of them changes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import strategies as st

from arithscope.cli.app import write_report_of
from arithscope.explorer import views
from arithscope.explorer.runs import RunRegistry
from arithscope.models.model import Model
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import RunFolder
from arithscope.results.run import Run
from arithscope.settings import Settings
from arithscope.utils.files import with_checksum
from arithscope.utils.progress import Silent
from tests.families import small
from tests.fuzz.effort import fuzz, refused, twice
from tests.fuzz.test_runs import update_checksums
from tests.pipeline.test_received_folders import KINDS, repeated
from tests.pipeline.tree import tree

SETTINGS = Settings(("+",), 2)
STAGES = ("means", "accuracy")
FIGURE = "accuracy"
# Every place that a command reads, writes or removes, and some that none does.
PLACES = [
    *(
        "manifest.json",
        ".manifest.json.tmp",
        "summary.json",
        ".summary.json.tmp",
        ".lock",
        "report.html",
        ".report.html.tmp",
    ),
    *(f"{stage}{file}" for stage in STAGES for file in ("", "/stage.json", "/table.parquet", "/heads.npy", "/other")),
    *(f".{stage}.{end}" for stage in STAGES for end in ("tmp", "old")),
    *(f".units{rest}" for rest in ("", "/accuracy", "/accuracy/0", "/accuracy/0/1.safetensors", "/means/x/y")),
    *(f"figures{rest}" for rest in ("", "/index.json", f"/{FIGURE}.png", f"/{FIGURE}.svg", f"/.{FIGURE}.png.tmp")),
    *("checkpoints", "checkpoints/step-1", "repeats", "repeats/half1/manifest.json", "notes.txt", "a/b/c"),
]
TARGETS = [
    *("../victim", "../victim/notes.txt", "../victim/new", "../victim/thesis", "../..", "..", "/dev/null", "/dev/zero"),
    *(".", "manifest.json", "accuracy", "nowhere", "ABSOLUTE/victim", "ABSOLUTE/victim/notes.txt", "ABSOLUTE"),
]
NAMES = [
    "../victim",
    "..",
    ".",
    "",
    "/",
    "ABSOLUTE/victim",
    "accuracy/../../victim",
    "~",
    "a\\..\\b",
    "\0",
    "accuracy/",
    "x" * 300,
]
RECORDS = {"stages": "manifest.json", "files": "accuracy/stage.json", "figures": "figures/index.json"}
ACTIONS = ["read", "read", "read", "run", "run", "run with --overwrite", "run other settings", "report"]


@dataclass(frozen=True)
class Change:
    """What is put into a run folder: something special at a place, a name into a record, or a table."""

    kind: str
    place: str
    value: str


@st.composite
def changes(draw: st.DrawFn) -> Change:
    kind = draw(st.sampled_from(["link", "link", "hard link", *KINDS, "name", "table"]))
    places = {"name": list(RECORDS), "table": ["table", "prompts"]}.get(kind, PLACES)
    values = {"link": TARGETS, "name": NAMES, "table": ["huge", "wide", "long text", "empty", "no columns", "one row"]}
    return Change(kind, draw(st.sampled_from(places)), draw(st.sampled_from(values.get(kind, [""]))))


CASES = st.tuples(
    st.lists(changes(), min_size=1, max_size=3), st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=2)
)


@pytest.fixture(scope="module")
def model() -> Model:
    return small("llama", "sdpa")


@pytest.fixture(scope="module")
def base(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its figures and report."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_stages(model, SETTINGS, folder, STAGES, Silent())
    write_report_of(RunFolder(folder), Silent())
    return folder


@pytest.fixture(scope="module")
def tables(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tables to put in the place of others."""
    folder = tmp_path_factory.mktemp("tables")
    repeated(folder / "huge", 60_000_000, correct=True)
    repeated(folder / "wide", 20_000, **{f"c{i}": 1 for i in range(500)})
    repeated(folder / "long text", 100_000, text="x" * 1_000_000)
    pd.DataFrame({"operator": []}).to_parquet(folder / "empty", index=False)
    pd.DataFrame().to_parquet(folder / "no columns", index=False)
    pd.read_parquet(base / "accuracy" / "table.parquet").head(1).to_parquet(folder / "one row", index=False)
    return {path.name: path for path in folder.iterdir()}


def make(change: Change, run: Path, tables: dict[str, Path]) -> None:
    """Put a change into a run folder; a place that an earlier one has made special is left as it is."""
    places = {"table": f"accuracy/{change.place}.parquet", "name": RECORDS.get(change.place, "")}
    path, value = run / places.get(change.kind, change.place), change.value.replace("ABSOLUTE", str(run.parent))
    for part in (path, *path.parents):
        if part == run:
            break
        if os.path.lexists(part) and stat.S_IFMT(part.lstat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            return
    if change.kind == "table":
        if not all(stat.S_ISREG(file.lstat().st_mode) for file in path.parent.iterdir()):
            return  # its checksum would never be computed
        path.unlink()  # it may be a hard link
        shutil.copy(tables[value], path)
        update_checksums(run / "accuracy")
    elif change.kind == "name":
        _add_name(path, value)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if change.kind == "link":
            path.symlink_to(value)
        elif change.kind == "hard link":
            os.link(run.parent / "victim" / "notes.txt", path)
        else:
            KINDS[change.kind](path)


def _add_name(path: Path, name: str) -> None:
    """Add a name to the stages of the manifest, the files of a stage, or the figures of the index."""
    content = json.loads(path.read_text())
    if path.name == "manifest.json":
        content["stages"][name] = {"status": "done"}
    elif path.name == "stage.json":
        content["files"][name] = "0" * 64
    else:
        content[name] = content[FIGURE]
    if "checksum" in content:
        content = with_checksum({key: value for key, value in content.items() if key != "checksum"})
    path.unlink()
    path.write_text(json.dumps(content))


def act(action: str, run: Path, model: Model) -> None:
    if action == "read":
        opened = Run(run)
        opened.summary.to_dict()
        for stage in opened.stages:
            opened.result(stage)
        for served in RunRegistry([opened]):
            views.run_info(served)
            views.results(served)
    elif action == "report":
        write_report_of(RunFolder(run), Silent())
    else:
        other = Settings(("+",), 1) if action == "run other settings" else SETTINGS
        run_stages(model, other, run, STAGES, Silent(), overwrite=action == "run with --overwrite")


@twice
def test_received_folders(base: Path, tables: dict[str, Path], model: Model, tmp_path: Path, full: bool) -> None:
    victim = tmp_path / "victim"
    (victim / "thesis" / "figures").mkdir(parents=True)
    for name in ("notes.txt", "thesis/chapter.txt", "thesis/figures/index.json", "stage.json"):
        (victim / name).write_text("precious")
    numbers = itertools.count()

    def accepts(case: tuple[Sequence[Change], Sequence[str]]) -> bool:
        run = Path(shutil.copytree(base, tmp_path / str(next(numbers))))
        before = tree(tmp_path, without=run)
        for change in case[0]:
            try:
                make(change, run, tables)
            except (OSError, ValueError, KeyError, AttributeError):
                continue  # an earlier change is in the way
        assert tree(tmp_path, without=run) == before, "the test itself has changed something"
        refusals = [refused(lambda action=action: act(action, run, model)) for action in case[1]]
        assert tree(tmp_path, without=run) == before
        shutil.rmtree(run)
        return refusals[-1] is None

    tally = fuzz("received folders", CASES, accepts, full)
    assert 0 < tally.accepted < tally.tried

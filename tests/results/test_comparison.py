"""Comparing runs from Python; `tests/report/test_comparison.py` tests what the tables hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

import arithscope
from arithscope.errors import UserError
from tests.markup import words


def test_runs_may_be_open_or_named_by_folder(small_run: Path, small_training_run: Path) -> None:
    paths = (small_run, small_training_run)
    runs = [arithscope.open(path) for path in paths]
    found = arithscope.compare(runs)
    assert found.runs == ["tiny-llama", "tiny-pythia"]
    for other in (arithscope.compare(paths), arithscope.compare([runs[0], str(small_training_run)])):
        assert other.runs == found.runs
        pd.testing.assert_frame_equal(other.table, found.table)
        pd.testing.assert_frame_equal(other.curves, found.curves)
    for run in runs:
        own = found.table[found.table.run == run.name].drop(columns="run").reset_index(drop=True)
        pd.testing.assert_frame_equal(own, run.summary)
    assert len(repr(found)) < 500
    assert "tiny-pythia" in words(found)


def test_runs_of_the_same_model_get_distinct_names(small_run: Path, tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(small_run, tmp_path / name)) for name in ("first", "second")]
    assert arithscope.compare(copies).runs == ["first", "second"]
    (tmp_path / "deeper").mkdir()
    namesake = Path(shutil.copytree(small_run, tmp_path / "deeper" / "first"))
    assert arithscope.compare([copies[0], namesake]).runs == [str(copies[0]), str(namesake)]


def test_a_run_is_not_compared_with_itself(small_run: Path, small_training_run: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(small_run)
    for spelling in (small_run, small_run / ".." / small_run.name, link, arithscope.open(small_run)):
        with pytest.raises(UserError, match="are the same run; name each run once"):
            arithscope.compare([small_run, small_training_run, spelling])


def test_one_run_cannot_be_compared(small_run: Path) -> None:
    with pytest.raises(UserError, match="One run cannot be compared"):
        arithscope.compare([small_run])
    with pytest.raises(UserError, match="is only a part of a run; name the run folder"):
        arithscope.compare([small_run, small_run / "accuracy"])

"""Testing other versions of dependencies: which are installed, and which rows of a result file are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import arithscope
from benchmarks import matrix, record


def test_the_oldest_versions_are_the_lower_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["torch>=2.6", "safetensors>=0.4.3"]\n')
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    assert matrix.oldest() == ["torch==2.6", "safetensors==0.4.3"]


def test_every_dependency_has_a_lower_bound_below_the_pinned_version() -> None:
    pinned = (matrix.ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = {name.lower(): Version(version) for name, version in (x.split("==") for x in pinned if "==" in x)}
    for need in map(Requirement, matrix.oldest()):
        [bound] = need.specifier
        assert bound.operator == "=="
        assert Version(bound.version) <= tested[need.name.lower()]


def test_rows_of_other_environments_of_this_version_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    assert matrix.earlier("tried", {"a"}) == []
    rows = [[arithscope.__version__, "a", 1], [arithscope.__version__, "b", 2], ["0.0.1", "c", 3]]
    (tmp_path / "tried.json").write_text(json.dumps({"tables": {"environments": {"columns": [], "rows": rows}}}))
    assert matrix.earlier("tried", {"a"}) == [[arithscope.__version__, "b", 2]]


def test_the_selected_tests_exist() -> None:
    for path in matrix.TESTS:
        assert (matrix.ROOT / path).exists(), path

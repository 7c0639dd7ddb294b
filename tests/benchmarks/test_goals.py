"""The table of goals is up to date, and numbers are looked up and compared correctly."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from benchmarks import goals
from benchmarks.goals import NAME, Goal, reached, table, wanted
from benchmarks.record import result_path


def test_the_stored_table_is_up_to_date() -> None:
    kept = json.loads(result_path(NAME).read_text(encoding="utf-8"))["tables"]["goals"]
    assert kept == json.loads(json.dumps(asdict(table())))


def test_a_number_is_looked_up_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"columns": ["stage", "seconds", "all"], "rows": [["means", 3.0, 12.0], ["probe", 60.0, 90.0]]}
    monkeypatch.setattr(goals, "read_result", lambda name: {"tables": {"times": times}})
    minutes = Goal("minutes", "some", "times", "probe", "all", most=1.5, divided_by=60)
    too_few = Goal("few", "some", "times", "means", "seconds", least=3.1)
    any_time = Goal("any", "some", "times", "means", "all")
    monkeypatch.setattr(goals, "GOALS", [minutes, too_few, any_time])
    assert [row[1:4] for row in table().rows] == [
        ["at most 1.5", 1.5, "yes"],
        ["at least 3.1", 3.0, "no"],
        ["to end", 12.0, "yes"],
    ]
    assert (wanted(minutes), reached(minutes, 1.6)) == ("at most 1.5", "no")

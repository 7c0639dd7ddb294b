"""The tables of real models' runs say what the runs' results say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arithscope.report.formatting import number
from arithscope.results.run import Run
from benchmarks import real_models


@pytest.fixture(scope="module")
def run(small_layouts: Path) -> Run:
    return Run(small_layouts / "2-2-2")


def test_answers(run: Run) -> None:
    table = real_models.answers(run)
    assert table.columns == ["", "+", "−"]
    rows = {row[0]: row[1:] for row in table.rows}
    prompts = run.whole_answers.prompts
    for i, operator in enumerate("+-"):
        own = prompts[prompts.operator == operator]
        assert rows["whole answer"][i].endswith(f"(n = {len(own)})")
        assert rows["whole answer"][i].startswith(number(own.correct.mean()))
    assert {"tens digit", "units digit", "whole answer where a carry travels 1 place"} <= set(rows)


def test_sums_by_their_units(run: Run) -> None:
    prompts, tens = run.whole_answers.prompts, run.whole_answers.predicted[0]
    rows = {row[0]: row[1:] for row in real_models.by_units(run).rows}
    for units, (right, larger, smaller, n) in rows.items():
        own = (prompts.operator == "+") & (prompts.op1 % 10 + prompts.op2 % 10 == units)
        assert own.sum() == n
        off = tens[own] - prompts.answer[own] // 10
        for shown, share in (
            (right, prompts.correct[own].mean()),
            (larger, (off == 1).mean()),
            (smaller, (off == -1).mean()),
        ):
            assert shown.startswith(number(share))
    assert sum(row[3] for row in rows.values()) == (prompts.operator == "+").sum()


def test_held_and_readable(run: Run) -> None:
    held, readable = real_models.held(run), real_models.readable(run)
    paths = [(row[0], row[1], row[2]) for row in held.rows]
    expected = [
        (sign, what, position)
        for sign, operator in (("+", "+"), ("−", "-"))
        for what, step, sources in (("tens", 1, "digit"), ("carry into the tens", 1, "carry"), ("units", 2, "digit"))
        for position, _, _ in run.carries.path(operator, step, sources)
    ]
    assert sorted(paths) == sorted(expected)
    assert {row[1] for row in readable.rows} >= {"answer tens", "answer units", "carry into tens"}
    probes = run.digit_probes.table
    for sign, variable, _, at, accuracy, n, chance, _ in readable.rows:
        position, layer = at.split(", layer ")
        operator = {"+": "+", "−": "-"}[sign]
        own = probes[(probes.operator == operator) & (probes.variable == variable)]
        [best] = own[(own.position == position) & (own.layer == int(layer))].to_dict("records")
        assert (accuracy[: len(number(best["value"]))], n) == (number(best["value"]), best["n"])
        assert chance <= best["value"] <= own.value.max()


def test_key_numbers_of_a_step(run: Run, small_layouts: Path) -> None:
    both, alone = real_models.of_step(run.steps[1]), real_models.of_step(Run(small_layouts / "2-2-3").steps[2])
    assert both.columns == ["", "+", "−", "all operators"]
    assert alone.columns == ["", "+"]
    summary = run.steps[1].folder.summary
    [heads] = [row for row in both.rows if row[0] == "heads in the circuit"]
    assert heads[1:3] == [str(summary["circuit"][o]["heads"]) for o in "+-"]
    assert {row[0] for row in both.rows} > {row[0] for row in alone.rows}
    assert not any("shared" in row[0] or "union" in row[0] for row in alone.rows)


def test_summaries_are_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["real_models", str(run.path), "--keep", str(tmp_path)])
    real_models.main()
    kept = json.loads((tmp_path / "tiny-digits-2-2-2.json").read_text())
    assert kept["summary"] == run.folder.summary
    assert kept["steps"]["2"]["summary"] == run.steps[2].folder.summary
    assert kept["model"]["source"] == kept["steps"]["2"]["model"]["source"] == "tiny-digits"

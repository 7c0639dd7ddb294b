"""Comparisons of runs: all numbers of their summaries, curves on common axes, and a folder that is complete or absent."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from rich.console import Console

from arithscope.errors import UserError
from arithscope.pipeline.runner import run_stages
from arithscope.report.comparison import FIGURES, comparison_tables, write_comparison
from arithscope.report.terminal import entry_text
from arithscope.results.comparison import CURVES, compare
from arithscope.results.run import Run, distinct_names
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests.command_line import call, error_message
from tests.families import small
from tests.pipeline.tree import tree


@pytest.fixture(scope="module")
def runs(small_adder_run: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run with every stage except a slow one, and a run of another model with few stages; do not write to their folders."""
    other = tmp_path_factory.mktemp("runs") / "llama"
    run_stages(small("llama", "sdpa"), Settings(("+", "-"), 9), other, ["accuracy"], Silent())
    return [small_adder_run, other]


def test_the_table_has_every_number_of_the_summaries(runs: list[Path]) -> None:
    found = compare(runs)
    assert found.runs == ["copy and add", "small llama"]
    rows = found.table.set_index(["run", "experiment", "operator", "measure"])
    for name, path in zip(found.runs, runs, strict=True):
        summary = json.loads((path / "summary.json").read_text())
        counted = 0
        for experiment, operators in summary.items():
            for operator, measures in operators.items():
                for measure, entry in measures.items():
                    if isinstance(entry, dict):
                        row: Any = rows.loc[(name, experiment, operator, measure)]
                        want = [entry[k] for k in ("value", "low", "high", "n")]
                        shown = [row.value, row.low, row.high, row.n]
                        assert [None if pd.isna(x) else x for x in shown] == want
                        counted += 1
                    elif isinstance(entry, float | int) and not isinstance(entry, bool):
                        assert rows.loc[(name, experiment, operator, measure)].value == entry
                        counted += 1
        assert counted == (found.table.run == name).sum() > 0


def test_curves_are_on_common_axes(runs: list[Path]) -> None:
    found = compare(runs)
    assert set(found.curves.curve) == set(CURVES) - {"final pairs present over training"}
    for curve, rows in found.curves.groupby("curve"):
        assert rows.x.min() >= 0
        assert rows.x.max() == 1 or "without" in str(curve)
    topk = pd.read_parquet(runs[0] / "topk" / "curve.parquet")
    want = topk[(topk.circuit == "found") & (topk.measure == "faithfulness")].value.tolist()
    shown = found.curves[found.curves.curve == "faithfulness by share of neurons"]
    assert shown.value.tolist() == want


def test_the_comparison_folder(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "both"
    assert call("compare", *runs, "--out", out) == 0
    output = capsys.readouterr().out
    assert "copy and add" in output
    assert "calibrated difference" in output
    drawn = {p.stem for p in out.glob("*.png")}
    left_out = {"training", "failures", "overlap"}  # one operator, without checkpoints, that never fails
    left_out.add("whole-answers")  # of several tokens
    assert drawn == {figure.name for figure in FIGURES} - left_out
    assert min(p.stat().st_size for p in out.iterdir()) > 50
    assert json.loads((out / "comparison.json").read_text())["runs"]["small llama"] == str(runs[1])
    assert len(pd.read_parquet(out / "table.parquet")) > 100
    assert call("compare", *reversed(runs), "--out", out) == 0  # the same runs: the former comparison is replaced


def test_a_comparison_is_replaced_only_if_asked(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arithscope.report.comparison.FIGURES", ())
    out, third = tmp_path / "both", Path(shutil.copytree(runs[0], tmp_path / "third"))
    assert call("compare", *runs, "--out", out) == 0
    before = tree(out)
    assert "a comparison of other runs" in error_message(capsys, "compare", runs[1], third, "--out", out)
    (out / "notes.txt").write_text("mine")
    for command in (["compare", *runs, "--out", out], ["compare", runs[1], third, "--out", out, "--overwrite"]):
        assert "holds more than a comparison (notes.txt)" in error_message(capsys, *command)
    (out / "notes.txt").unlink()
    assert tree(out) == before
    assert call("compare", runs[1], third, "--out", out, "--overwrite") == 0
    assert str(third) in (out / "comparison.json").read_text()


def test_bars_show_the_numbers(runs: list[Path]) -> None:
    found = compare(runs)
    figure = next(f for f in FIGURES if f.name == "accuracy").draw(found)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    rows = found.table[(found.table.experiment == "accuracy") & (found.table.measure == "accuracy")]
    values = rows.set_index(["run", "operator"]).value
    operators = list(dict.fromkeys(rows.operator))
    want = [values.get((run, o)) for run in found.runs for o in operators]
    assert [None if pd.isna(h) else h for h in heights] == [None if w is None else pytest.approx(w) for w in want]


def test_tables_have_a_column_for_each_run(runs: list[Path]) -> None:
    tables = {str(t.title): t for t in comparison_tables(compare(runs))}
    assert [c.header for c in tables["accuracy"].columns] == ["", "copy and add", "small llama"]
    assert "knockout" in tables
    console = Console(file=io.StringIO(), width=120, markup=False)
    for table in tables.values():
        console.print(table)
    assert "nan" not in console.file.getvalue()  # type: ignore[attr-defined]
    probe = tables["probe"]
    names, values = (list(probe.columns[i].cells) for i in (0, 1))
    summary = json.loads((runs[0] / "summary.json").read_text())["probe"]["all"]
    assert values[names.index("best layer all")] == str(summary["best_layer"])  # a plain number has no interval


def test_tables_have_plain_values_and_names(runs: list[Path]) -> None:
    """The circuit's heads and k have no average over operators."""
    tables = {str(t.title): t for t in comparison_tables(compare(runs))}
    summary = json.loads((runs[0] / "summary.json").read_text())
    for experiment, measure in (("circuit", "heads"), ("circuit", "head_names"), ("topk", "k")):
        names, first, second = (list(column.cells) for column in tables[experiment].columns)
        place = names.index(f"{measure} +".replace("_", " "))
        assert first[place] == entry_text(summary[experiment]["+"][measure]) != "–"
        assert second[place] == "–"


def test_runs_of_one_model_are_named_after_their_folders(runs: list[Path], tmp_path: Path) -> None:
    run_stages(small("llama", "sdpa"), Settings(("+",), 5, seed=3), tmp_path / "other", ["accuracy"], Silent())
    assert distinct_names([Run(path) for path in (runs[1], tmp_path / "other")]) == ["llama", "other"]


def test_names_from_outside_are_shown_as_they_are(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A formula, markup, an escape sequence, and characters that no file can hold."""
    other = Path(shutil.copytree(runs[1], tmp_path / "other"))
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["model"]["name"] = "_$x^{$[red]\x1b[31m\x00\ud800"
    (other / "manifest.json").write_text(json.dumps(manifest))
    assert call("compare", *runs, other, "--out", tmp_path / "all") == 0
    shown = "_$x^{$[red]\\u001b[31m\\u0000\\ud800"
    assert shown in capsys.readouterr().out.replace("\n", "")
    assert list(json.loads((tmp_path / "all" / "comparison.json").read_text())["runs"])[2] == shown
    figure = next(f for f in FIGURES if f.name == "accuracy").draw(compare([*runs, other]))
    assert len(figure.legends[0].get_texts()) == 3
    for path in (tmp_path / "all").glob("*.svg"):
        ElementTree.parse(path)


def test_bad_comparisons_are_refused(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "two run folders" in error_message(capsys, "compare", runs[0], "--out", tmp_path / "x")
    assert "no run at" in error_message(capsys, "compare", runs[0], tmp_path, "--out", tmp_path / "x")
    twice = error_message(capsys, "compare", runs[0], runs[0].parent / "." / runs[0].name, "--out", tmp_path / "x")
    assert "are the same run" in twice
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    assert "holds no comparison" in error_message(capsys, "compare", *runs, "--out", tmp_path / "full")
    assert (tmp_path / "full" / "file").read_text() == "mine"
    (tmp_path / "a-file").write_text("")
    assert "Cannot write" in error_message(capsys, "compare", *runs, "--out", tmp_path / "a-file" / "x")
    assert not (tmp_path / "x").exists()


def test_a_comparison_that_fails_leaves_nothing(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("arithscope.report.comparison.save_figure", broken)
    with pytest.raises(UserError, match="No space left"):
        write_comparison(runs, tmp_path / "both", Silent())
    assert not (tmp_path / "both").exists()

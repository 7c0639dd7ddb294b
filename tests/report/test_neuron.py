"""A neuron in the terminal, for runs that lack stages; `test_cli` covers the complete output."""

from __future__ import annotations

from pathlib import Path

import pytest

import arithscope
from arithscope.report.terminal import neuron_report
from tests.results.test_neuron import lacking


@pytest.mark.parametrize(
    ("missing", "message"),
    [(("classify",), "The run has no stage classify"), (("patterns", "classify"), "The run has no stage patterns")],
)
def test_what_was_not_computed(small_run: Path, tmp_path: Path, missing: tuple[str, ...], message: str) -> None:
    run = arithscope.open(lacking(small_run, tmp_path, *missing))
    row = run.topk.top.iloc[0]
    *lines, last = map(str, neuron_report(run, int(row.layer), int(row.neuron), str(row.operator)))
    assert last.startswith(message)
    assert lines[1].startswith("effect by probability")
    assert any(line.startswith("numbers it promotes most") for line in lines) == (missing == ("classify",))

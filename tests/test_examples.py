"""The programs in docs/extending.md: short, identical to the page, and working as it says."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import arithscope
from arithscope.errors import UserError
from arithscope.experiments.common.stage import unregister
from arithscope.figures import registry
from arithscope.heuristics.kinds import RULES, parse
from arithscope.models.families import FAMILIES
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.store import RunFolder
from arithscope.report.findings import finding
from arithscope.verify.checks import CHECKS
from tests.command_line import call

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run_example(name: str) -> dict[str, Any]:
    """Run an example as a program; returns its names."""
    return runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


@pytest.fixture
def registries() -> Iterator[None]:
    """Unregisters what an example registers."""
    with patch.dict(CHECKS), patch.dict(registry._FIGURES), patch.dict(finding._FINDINGS):
        yield
    unregister("symmetry")
    sys.modules.pop("new_stage", None)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_have_fewer_than_30_lines(path: Path) -> None:
    assert sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines()) < 30


def test_the_page_shows_the_files() -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    shown = re.findall(r"```python\n(.*?)```", page, re.S)
    assert sorted(shown) == sorted(path.read_text(encoding="utf-8") for path in EXAMPLES)


@torch.no_grad()
def test_a_new_family(capsys: pytest.CaptureFixture[str]) -> None:
    """A neuron that is zero-ablated by replay, against a hook on the module that the row names."""
    assert "starcoder2" not in FAMILIES  # else it would no longer be an example of a new family
    with patch.dict(FAMILIES):
        model = run_example("new_family.py")["model"]
        assert "Model('small starcoder2'" in capsys.readouterr().out
        ids, last = model.encode(model.encoder.examples()), model.positions.final
        tape = model.engine.record(model, ids, last, neurons=[1])
        zero = torch.zeros(1, len(ids))
        [got] = model.engine.replay_neurons(tape, 1, torch.tensor([5]), zero, lambda before, after: after)

    def ablate(module: Any, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        changed = inputs[0].clone()
        changed[:, last, 5] = 0
        return changed

    unedited = model.logits(ids)
    handle = model.hf_model.model.layers[1].mlp.c_proj.register_forward_pre_hook(ablate)
    expected = model.logits(ids)
    handle.remove()
    assert (got - expected).abs().max() < 1e-5
    assert (unedited - expected).abs().max() > 1e-4


def test_a_new_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registries: None) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_example("new_stage.py")
    assert "symmetry" in {stage.name for stage in all_stages()}
    run = RunFolder(tmp_path / "runs" / "symmetry")
    written = (run.path / "symmetry" / "stage.json").stat().st_mtime_ns
    model = arithscope.load("tiny-gptj")
    prompts = arithscope.legal_prompts("+", 30, model.limit)
    answers = arithscope.ask(model, prompts.text(arithscope.Template())).predicted
    predicted = dict(zip(zip(prompts.op1.tolist(), prompts.op2.tolist(), strict=True), answers, strict=True))
    same = [predicted[a, b] == predicted[b, a] for a, b in predicted if a < b]
    found = run.summary["symmetry"]["+"]["same_answer"]
    assert (found["n"], found["value"]) == (len(same), pytest.approx(np.mean(same)))
    assert found["low"] < found["value"] <= found["high"]
    assert names["run"].symmetry.table.value.iloc[0] == found["value"]
    run_example("new_stage.py")  # finds it done
    assert (run.path / "symmetry" / "stage.json").stat().st_mtime_ns == written


def test_a_new_figure_finding_and_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registries: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are in the report, and in what `verify` prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    names = run_example("new_figure.py")
    assert capsys.readouterr().out.strip() == str(names["run"].path / "report.html")
    page = (tmp_path / "runs" / "symmetry" / "report.html").read_text(encoding="utf-8")
    share = names["run"].symmetry.table.value.iloc[0]
    for expected in ("Does the order of the operands matter?", f"{share:.1%} of the pairs get the same answer."):
        assert expected in page
    assert call("verify", names["run"].path) == 0
    verdict = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("symmetry"))
    assert "agrees" in verdict
    with patch.object(type(names["run"].symmetry.table.value), "between", lambda column, low, high: column < 0):
        assert call("verify", names["run"].path) == 1
    assert "shares in [0, 1]" in capsys.readouterr().out


def test_a_new_kind_of_heuristic(capsys: pytest.CaptureFixture[str]) -> None:
    before = list(RULES)
    try:
        names = run_example("new_heuristic.py")
        carry = names["Carry"]()
        assert parse("op1, op2 carry") == carry
    finally:
        RULES[:] = before
    sums = zip(names["prompts"].op1.tolist(), names["prompts"].op2.tolist(), strict=True)
    assert carry.holds(names["prompts"]).tolist() == [int(str(a)[-1]) + int(str(b)[-1]) > 9 for a, b in sums]
    matches = names["found"].matches
    calibrated = matches[matches.calibrated]
    assert calibrated[["row", "heuristic", "kind", "on"]].values.tolist() == [
        [7, "op1, op2 carry", "carry", "op1, op2"]
    ]
    assert "op1, op2 carry" in capsys.readouterr().out
    with pytest.raises(UserError, match="is not a heuristic"):
        parse("op1, op2 carry")

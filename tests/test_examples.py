"""The programs of docs/extending.md: short, the same as on the page, and doing what it says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import arithscope
from arithscope.errors import UserError
from arithscope.heuristics.kinds import RULES, parse
from arithscope.models.engine.replay import record, replay_neurons
from arithscope.models.families import FAMILIES
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.store import RunFolder

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def ran(name: str) -> dict[str, Any]:
    """The names of an example once it has run."""
    return runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_under_30_lines(path: Path) -> None:
    assert sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines()) < 30


def test_the_page_shows_the_files() -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    shown = re.findall(r"```python\n(.*?)```", page, re.S)
    assert sorted(shown) == sorted(path.read_text(encoding="utf-8") for path in EXAMPLES)


@torch.no_grad()
def test_a_new_family(capsys: pytest.CaptureFixture[str]) -> None:
    """A neuron that is silenced by replay, against a hook on the module that the row names."""
    assert "starcoder2" not in FAMILIES  # else it is no example any more
    with patch.dict(FAMILIES):
        model = ran("new_family.py")["model"]
        assert "Subject('small starcoder2'" in capsys.readouterr().out
        ids, last = model.encode(model.encoder.examples()), model.positions.last
        tape = record(model, ids, last, neurons=[1])
        silent = torch.zeros(1, len(ids))
        [got] = replay_neurons(tape, 1, torch.tensor([5]), silent, lambda before, after: after)

    def silence(module: Any, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        changed = inputs[0].clone()
        changed[:, last, 5] = 0
        return changed

    unedited = model.logits(ids)
    handle = model.hf_model.hf_model.layers[1].mlp.c_proj.register_forward_pre_hook(silence)
    expected = model.logits(ids)
    handle.remove()
    assert (got - expected).abs().max() < 1e-5
    assert (unedited - expected).abs().max() > 1e-4


def test_a_new_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ran("new_stage.py")
    run = RunFolder(tmp_path / "runs" / "commutes")
    written = (run.path / "commutes" / "stage.json").stat().st_mtime_ns
    assert names["stage"] not in all_stages()
    prompts = arithscope.legal_prompts("+", 30, names["model"].limit)
    asked = arithscope.ask(names["model"], prompts.text(arithscope.Template()))
    said = dict(zip(zip(prompts.op1.tolist(), prompts.op2.tolist(), strict=True), asked.predicted, strict=True))
    same = [said[a, b] == said[b, a] for a, b in said if a < b]
    found = run.summary["commutes"]["+"]["same_answer"]
    assert (found["n"], found["value"]) == (len(same), pytest.approx(np.mean(same)))
    assert found["low"] < found["value"] < found["high"]
    ran("new_stage.py")  # finds it done
    assert (run.path / "commutes" / "stage.json").stat().st_mtime_ns == written


def test_a_new_kind_of_heuristic(capsys: pytest.CaptureFixture[str]) -> None:
    before = list(RULES)
    try:
        names = ran("new_heuristic.py")
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

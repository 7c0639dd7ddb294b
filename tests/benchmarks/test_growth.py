"""The formulas of docs/performance.md against the FLOPs that torch counts; and the benchmark that draws them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import growth, record
from benchmarks.growth import LARGE, SMALL, STAGES, Plan, Shape, exponents, measure, patching_task, random_model
from tests.models.test_flops import matrix_flops

CPU = torch.device("cpu")


@pytest.mark.usefixtures("one_thread")  # torch counts the operations of this thread only
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("shape", [Shape(4, 64, 4, 128, 16), Shape(2, 32, 9, 256, 8), Shape(5, 64, 3, 64, 32)], ids=str)
def test_operations_follow_the_formulas(stage: str, shape: Shape) -> None:
    """Recording the passes to replay comes on top: one or two passes of each prompt, in localize for each position."""
    task = patching_task(random_model(shape, CPU, torch.float32), shape.prompts)
    with FlopCounterMode(display=False) as counter:
        getattr(task, stage)()
    counted, expected = matrix_flops(counter), task.operations(stage)
    assert expected <= counted < (1.3 if stage == "localize" else 1.15) * expected
    if stage == "sweep":
        assert counted == expected


def test_one_size_changes_at_a_time() -> None:
    for plan in (SMALL, LARGE):
        base = asdict(plan.base)
        for side, shape in plan.shapes():
            assert {name for name, n in asdict(shape).items() if n != base[name]} <= {side}
        assert {side for side, _ in plan.shapes()} == {"layers", "width", "prompts", "neurons"}


def test_exponents() -> None:
    """Exponents of n, n² and √n, from the two largest sizes."""
    rows = [["layers", 1, *[7.0] * 6]]
    rows += [["layers", n, n, n**2, n**0.5, 3 * n, 2 * n**2, n**0.5] for n in (4, 8)]
    columns, found = exponents(rows)
    assert len(columns) == 7
    assert found == [["layers", *map(pytest.approx, (1, 2, 0.5, 1, 2, 0.5))]]


def test_results_are_recorded_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(growth, "ROOT", tmp_path)
    (tmp_path / "docs" / "images").mkdir(parents=True)
    plan = Plan(Shape(2, 16, 2, 16, 2), {"layers": (2, 3), "width": (16, 32)})
    found = measure(plan, CPU, torch.float32)
    record.record("growth-tiny", found)
    rows = json.loads((tmp_path / "growth-tiny.json").read_text())["tables"]["times"]["rows"]
    assert [row[:2] for row in rows] == [["layers", 2], ["layers", 3], ["width", 16], ["width", 32]]
    assert min(min(row[2:]) for row in rows) > 0
    assert growth.draw("growth-tiny").stat().st_size > 10_000

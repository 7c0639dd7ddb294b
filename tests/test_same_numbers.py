"""All stages find the same under another batch size, another memory budget, another number of threads, and however their units
are shared out.

Compared is every table and array that a run stores. Whole numbers, names and choices (which heads, which neurons, which
heuristics) must be equal, rows in the same order. Floats may differ as two computations of the same in float32 do: a product of
matrices with other rows beside it adds up in another order, so that logits differ in their seventh digit. What is made of them
(ratios of probabilities, shares of a small span) may differ by 1e-3 of itself and 2e-5, as in `verify`; the effect on logits,
which divides by what may be next to nothing, by ten times that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from arithscope.experiments.topk import TopK
from arithscope.models.load import LoadOptions, load
from arithscope.pipeline.ray_executor import RayExecutor
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import RunFolder
from arithscope.settings import Settings
from arithscope.utils.executor import LOCAL, Executor, FinishedUnit
from arithscope.utils.progress import Silent
from arithscope.verify.compare import Tally, noise_of
from tests.conftest import SMALL_SAMPLES, torch_threads

SAMPLES = replace(SMALL_SAMPLES, first_mlp=1, probe=40, draws=2, permutations=2, prompt_knockout=6, failures=10)
ASKED = Settings(("+",), 14, topk=8, neurons="atp", custom_sizes=SAMPLES)
NOISE = noise_of("float32")


class Backwards(Executor):
    """Units are finished in another order than they were asked for, as with many workers."""

    def stream(self, function: Any, model: Any, units: Sequence[Any], advance: Any) -> Iterator[FinishedUnit]:
        places = range(len(units))[::-1]
        for done in LOCAL.stream(function, model, [units[index] for index in places], advance):
            yield FinishedUnit(places[done.index], done.result, done.steps)


def another_batch_size(patch: pytest.MonkeyPatch, rows: int) -> None:
    """Passes of so many rows, whatever there is room for."""
    for module in ("experiments.common.samples", "models.engine.replay", "models.engine.sweep"):
        patch.setattr(f"arithscope.{module}.rows_that_fit", lambda *args, **options: rows)


def little_memory(patch: pytest.MonkeyPatch) -> None:
    """Room for a few rows of a pass, and of results for next to nothing."""
    patch.setattr("arithscope.models.memory.CPU_BUDGET", 1)
    patch.setattr("arithscope.models.memory.CPU_ROWS", 20)
    patch.setattr("arithscope.experiments.probe.storage", lambda model: 1)
    patch.setattr("arithscope.experiments.knockout.MASK_BYTES", 1)
    patch.setattr("arithscope.heuristics.overlaps.CPU_ELEMENTS", 2**14)
    patch.setattr("arithscope.stats.intervals.CPU_ROWS", 7)


def study(folder: Path, settings: Settings = ASKED, executor: Executor = LOCAL) -> Path:
    run_stages(load("tiny-llama"), settings, folder, None, Silent(), executor=executor)
    return folder


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch_threads(1):
        return study(tmp_path_factory.mktemp("runs") / "usual")


def compare(one: Path, other: Path) -> int:
    """Raises unless both runs say the same; returns how many numbers they have."""
    tally = Tally(NOISE)
    for stage in all_stages():
        if not stage.on_request:
            a, b = (RunFolder(folder).read(stage.result) for folder in (one, other))
            by_logit, noise = _on_logits(a), NOISE
            tally.result(without(a, by_logit), without(b, by_logit), noise)
            for name in by_logit:
                tables = (getattr(x, name)[getattr(x, name).measure == "logit"] for x in (a, b))
                tally.table(f"{stage.name}: {name}", *tables, noise.times(10))
    assert tally.differences == []
    return tally.numbers


def _on_logits(result: Any) -> list[str]:
    """The tables of a result with effects on logits."""
    tables = {f.name: getattr(result, f.name) for f in fields(result)}
    return [
        n for n, x in tables.items() if isinstance(x, pd.DataFrame) and "measure" in x and (x.measure == "logit").any()
    ]


def without(result: Any, names: Sequence[str]) -> Any:
    return replace(result, **{name: (table := getattr(result, name))[table.measure != "logit"] for name in names})


def test_the_comparison_can_fail(usual: Path) -> None:
    tally, stored = Tally(NOISE), RunFolder(usual).read(TopK)
    tally.result(stored, replace(stored, top=stored.top.iloc[::-1]), NOISE)
    tally.result(stored, replace(stored, curve=stored.curve.assign(value=stored.curve.value * 1.002 + 1e-4)), NOISE)
    assert len(tally.differences) >= 2


def test_all_but_the_threads_at_once(usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    little_memory(monkeypatch)
    another_batch_size(monkeypatch, 100)
    with torch_threads(1):
        found = study(tmp_path / "run", executor=Backwards())
    assert compare(usual, found) > 20_000


@pytest.mark.slow
@pytest.mark.parametrize("rows", [5, 64, 100_000])
def test_another_batch_size(rows: int, usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    another_batch_size(monkeypatch, rows)
    with torch_threads(1):
        compare(usual, study(tmp_path / "run"))


@pytest.mark.slow
def test_another_memory_budget(usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    little_memory(monkeypatch)
    with torch_threads(1):
        compare(usual, study(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 3])
def test_another_number_of_threads(threads: int, usual: Path, tmp_path: Path) -> None:
    with torch_threads(threads):
        compare(usual, study(tmp_path / "run"))


@pytest.mark.slow
def test_exact_effects_of_neurons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way of measuring neurons."""
    asked = replace(ASKED, neurons="atp+exact")
    with torch_threads(1):
        usual = study(tmp_path / "usual", asked)
    another_batch_size(monkeypatch, 50)
    compare(usual, study(tmp_path / "run", asked))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers(workers: int, usual: Path, tmp_path: Path) -> None:
    """Processes of a Ray cluster, one a node."""
    utils = pytest.importorskip("ray.cluster_utils")
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    nodes = utils.RayExecutor(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(workers - 1):
            nodes.add_node(**node)
        with RayExecutor(nodes.address, LoadOptions(), Silent()) as cluster:
            assert (cluster.where or "").startswith("one worker" if workers == 1 else f"{workers} workers")
            compare(usual, study(tmp_path / "run", executor=cluster))
    finally:
        nodes.shutdown()

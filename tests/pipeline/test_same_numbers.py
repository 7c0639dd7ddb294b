"""All stages give the same numbers with another batch size, memory budget, number of threads or workers, or order of units.

Every table and array that a run stores is compared. Integers, names and choices (which heads, which neurons, which heuristics)
must be equal, and rows in the same order. Floats may differ by float32 rounding: a matrix product in a batch of another size
adds up in another order, so logits differ in the seventh digit. Numbers derived from them (ratios of probabilities, shares of a
small span) may differ by 1e-3 of their size plus 2e-5, as in `verify`; the effect on logits, which may divide by a number close
to zero, by ten times that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
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
SETTINGS = Settings(("+",), 14, topk=8, neurons="atp", custom_sizes=SAMPLES)
NOISE = noise_of("float32")


class ReverseOrder(Executor):
    """Finishes units in reverse order; with many workers the order is arbitrary."""

    def stream(self, function: Any, model: Any, units: Sequence[Any], advance: Any) -> Iterator[FinishedUnit]:
        places = range(len(units))[::-1]
        for done in LOCAL.stream(function, model, [units[index] for index in places], advance):
            yield FinishedUnit(places[done.index], done.result, done.steps)


def another_batch_size(patch: pytest.MonkeyPatch, rows: int) -> None:
    """Passes of this many rows, whatever would fit."""
    for module in ("experiments.common.samples", "models.engine.replay", "models.engine.sweep"):
        patch.setattr(f"arithscope.{module}.rows_that_fit", lambda *args, **options: rows)


def little_memory(patch: pytest.MonkeyPatch) -> None:
    """Room for a few rows of a pass, and for almost no results."""
    patch.setattr("arithscope.models.memory.CPU_BUDGET", 1)
    patch.setattr("arithscope.models.memory.CPU_ROWS", 20)
    patch.setattr("arithscope.experiments.probe.storage", lambda model: 1)
    patch.setattr("arithscope.experiments.knockout.MASK_BYTES", 1)
    patch.setattr("arithscope.heuristics.overlaps.CPU_ELEMENTS", 2**14)


def study(folder: Path, settings: Settings = SETTINGS, executor: Executor = LOCAL) -> Path:
    run_stages(load("tiny-llama"), settings, folder, None, Silent(), executor=executor)
    return folder


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch_threads(1):
        return study(tmp_path_factory.mktemp("runs") / "usual")


def compare(one: Path, other: Path) -> int:
    """Raise unless both runs have the same numbers; returns how many there are."""
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


def test_another_batch_size_memory_budget_and_order_of_units(
    usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    little_memory(monkeypatch)
    another_batch_size(monkeypatch, 100)
    with torch_threads(1):
        found = study(tmp_path / "run", executor=ReverseOrder())
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
    """Neurons that attribution selects and patching measures."""
    settings = replace(SETTINGS, neurons="atp+exact")
    with torch_threads(1):
        usual = study(tmp_path / "usual", settings)
    another_batch_size(monkeypatch, 50)
    compare(usual, study(tmp_path / "run", settings))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers(workers: int, usual: Path, tmp_path: Path) -> None:
    """Workers of a Ray cluster, one on each node."""
    utils = pytest.importorskip("ray.cluster_utils")
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    nodes = utils.Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(workers - 1):
            nodes.add_node(**node)
        with closing(RayExecutor(nodes.address, LoadOptions(), Silent())) as cluster:
            assert (cluster.where or "").startswith("one worker" if workers == 1 else f"{workers} workers")
            compare(usual, study(tmp_path / "run", executor=cluster))
    finally:
        nodes.shutdown()

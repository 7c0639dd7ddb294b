"""A real Ray cluster of several nodes on this machine: the same numbers, even if workers, nodes or the driver are lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import arithscope
from arithscope.errors import UserError
from arithscope.experiments.means import prompt_units
from arithscope.models.load import LoadOptions
from arithscope.models.model import Model
from arithscope.pipeline.ray_executor import RayExecutor
from arithscope.pipeline.runner import describe_model, run_stages
from arithscope.pipeline.study import follow_training
from arithscope.prompts import Template, operand_grid
from arithscope.settings import Settings
from arithscope.utils.executor import LOCAL
from arithscope.utils.progress import Advance, Silent
from tests import units
from tests.approximate import assert_close
from tests.conftest import smaller
from tests.families import small
from tests.faults import stored
from tests.hand_built import copy_and_add
from tests.notes import RecordedNotes

pytestmark = pytest.mark.slow
STORE = 80 * 2**20  # bytes of shared memory for each node
SETTINGS = smaller(("+",), 12)
STAGES = ["heads"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two nodes with a CPU each."""
    utils = pytest.importorskip("ray.cluster_utils")
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    cluster = utils.Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, object_store_memory=STORE)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def cluster(nodes: Any) -> Iterator[RayExecutor]:
    with closing(RayExecutor(nodes.address, LoadOptions(), Silent())) as connected:
        yield connected


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "in one process"
    run_stages(copy_and_add(), SETTINGS, folder, STAGES, Silent())
    return folder


def assert_same_numbers(a: Path, b: Path) -> None:
    """The same stages with the same summaries; the last digits of float32 may depend on the number of threads."""
    (_, statuses, summary), (_, other_statuses, other_summary) = stored(a), stored(b)
    assert statuses == other_statuses
    assert_close(summary, other_summary)


def test_units_come_back_in_order(cluster: RayExecutor) -> None:
    numbers, steps = np.arange(4), []
    found = cluster.map(units.product, small("llama"), [(n, numbers) for n in range(7)], steps.append)
    assert [x["factor"] for _, x in found] == list(range(7))
    assert all((x == n * numbers).all() for n, (x, _) in enumerate(found))
    assert sorted(steps) == [2 + n for n in range(7)]
    assert cluster.where == "2 workers with one CPU each"


def processes(cluster: RayExecutor, model: Model, wanted: int) -> set[int]:
    """Process ids of the workers, once there are that many."""
    for _ in range(600):
        found = set(cluster.map(units.process, model, [(n,) for n in range(20)], lambda n: None))
        if len(found) >= wanted:
            break
        time.sleep(0.1)
    return found


def test_all_workers_are_used(cluster: RayExecutor) -> None:
    found = processes(cluster, small("llama"), 2)
    assert len(found) == 2
    assert os.getpid() not in found


def test_weights_are_shared(cluster: RayExecutor) -> None:
    """Every parameter of every worker lies in the shared memory of its node."""
    for places in cluster.map(units.where_weights_are, small("llama"), [(n,) for n in range(8)], lambda n: None):
        assert len(places) > 20
        assert all("/dev/shm/" in place or "plasma" in place for place in places)


def test_another_model_replaces_the_first(cluster: RayExecutor) -> None:
    for model in (small("gpt2"), copy_and_add(), small("gpt2")):
        named = cluster.map(units.name_of_model, model, [(n,) for n in range(5)], lambda n: None)
        assert named == [model.identity.name] * 5
        op1 = np.arange(20)
        [found] = cluster.map(units.logits, model, [(op1,)], lambda n: None)
        assert found == pytest.approx(units.logits(model, op1, advance=None), abs=1e-5)


def test_exceptions_of_a_unit_are_raised_unchanged(cluster: RayExecutor) -> None:
    for function, kind, text in ((units.refuses, UserError, "Nobody can"), (units.fails, ZeroDivisionError, "unit 0")):
        with pytest.raises(kind, match=text) as caught:
            cluster.map(function, small("llama"), [(0,)], lambda n: None)
        assert type(caught.value) is kind
        assert str(caught.value).count("\n") == 0
    assert cluster.map(units.process, small("llama"), [(0,)], lambda n: None)  # and the workers are still there


def test_a_unit_whose_worker_dies_is_run_again(cluster: RayExecutor, tmp_path: Path) -> None:
    work = [(n, str(tmp_path / "deaths"), 1) for n in range(5)]
    assert cluster.map(units.dies, small("llama"), work, lambda n: None) == list(range(5))
    assert (tmp_path / "deaths").read_text() == "x"


class Saboteur(RecordedNotes):
    """Calls a function once, when its stage makes its first step."""

    def __init__(self, attacks: dict[str, Callable[[], None]]):
        super().__init__()
        self.attacks = attacks

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        def advance(n: int) -> None:
            self.attacks.pop(description, lambda: None)()

        yield advance


def test_losing_a_worker_and_a_node_changes_no_number(
    nodes: Any, cluster: RayExecutor, tmp_path: Path, in_one_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, *_ = processes(cluster, copy_and_add(), 2)
    saboteur = Saboteur(
        {
            "localize": lambda: os.kill(victim, signal.SIGKILL),
            "circuit": lambda: nodes.remove_node(nodes.worker_nodes.copy().pop(), allow_graceful=False),
        }
    )
    monkeypatch.setattr(cluster, "progress", saboteur)
    run_stages(copy_and_add(), SETTINGS, tmp_path / "run", STAGES, saboteur, executor=cluster)
    assert not saboteur.attacks
    assert any("was lost" in note for note in saboteur.notes)
    assert_same_numbers(tmp_path / "run", in_one_process)
    # One worker is left; the other is replaced once there is a node for it.
    run_stages(copy_and_add(), SETTINGS, tmp_path / "by one", STAGES, Silent(), executor=cluster)
    assert_same_numbers(tmp_path / "by one", in_one_process)
    assert len(processes(cluster, copy_and_add(), 1)) == 1
    nodes.add_node(num_cpus=1, object_store_memory=STORE)
    assert len(processes(cluster, copy_and_add(), 2)) == 2


# A run on a local cluster whose driver is killed when it has stored two units of a stage.
DYING = """
import os, signal, sys
import arithscope
from arithscope.pipeline import unit_cache
left, write = [2], unit_cache.write_unit
def dying(path, *others):
    write(path, *others)
    left[0] -= "localize" in str(path)
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
unit_cache.write_unit = dying
arithscope.run(sys.argv[2], sys.argv[1], ["localize"], cluster="local", operators="+", max_operand=12)
"""


def test_a_killed_driver_loses_no_finished_unit(cluster: RayExecutor, tmp_path: Path, saved_adder: Path) -> None:
    """A second driver, on another cluster, computes only the missing units, and no process of the first cluster survives."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # sockets have short names
    try:
        environment = os.environ | {"RAY_TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", DYING, str(tmp_path / "run"), str(saved_adder)]
        first = subprocess.run(command, env=environment, capture_output=True, timeout=240)
        assert first.returncode == -signal.SIGKILL, first.stderr.decode()
        assert len(list((tmp_path / "run").glob(".units/localize/*/*"))) == 2
        model = arithscope.load(str(saved_adder))
        rest, whole = units.Counting(cluster), units.Counting(LOCAL)
        for folder_of, executor in (("run", rest), ("whole", whole)):
            run_stages(model, Settings(("+",), 12), tmp_path / folder_of, ["localize"], Silent(), executor=executor)
        of_means = prompt_units(operand_grid(model.encoder.operators, 12))
        assert whole.units == rest.units + 2 + len(of_means)
        assert_same_numbers(tmp_path / "run", tmp_path / "whole")
        for _ in range(100):
            if not (left := _processes_with(str(folder))):
                break
            time.sleep(0.2)
        assert not left
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _processes_with(text: str) -> list[str]:
    found = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [" ".join(command) for command in found if any(text in argument for argument in command)]


def test_a_unit_that_keeps_killing_its_worker_is_refused(cluster: RayExecutor, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has killed its worker 3 times") as caught:
        cluster.map(units.dies, small("llama"), [(1, str(tmp_path / "deaths"), 99)], lambda n: None)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "deaths").read_text() == "xxx"


def test_a_model_that_workers_load_themselves(
    cluster: RayExecutor, saved_adder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a model spread over devices: this process knows everything but the weights."""
    monkeypatch.setattr(cluster, "_workers_load", True)
    monkeypatch.setattr(cluster, "options", LoadOptions(device="cpu", dtype="float32"))
    hollow, whole = cluster.load(str(saved_adder), Template()), arithscope.load(str(saved_adder))
    assert hollow.device.type == "meta"
    assert (hollow.identity, hollow.sizes, hollow.limit) == (whole.identity, whole.sizes, whole.limit)
    assert describe_model(hollow) == describe_model(whole)
    op1 = np.arange(20)
    [found] = cluster.map(units.logits, hollow, [(op1,)], lambda n: None)
    assert found == pytest.approx(units.logits(whole, op1, advance=None), abs=1e-5)
    run_stages(hollow, SETTINGS, tmp_path / "hollow", ["circuit"], Silent(), executor=cluster)
    run_stages(whole, SETTINGS, tmp_path / "whole", ["circuit"], Silent())
    assert_same_numbers(tmp_path / "hollow", tmp_path / "whole")
    with pytest.raises(UserError, match="There is no folder or file"):
        cluster.load(str(saved_adder / "nothing"), Template())


def test_every_stage_runs_on_workers(cluster: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stage needs the weights in this process; several operators and many units make no difference."""
    monkeypatch.setattr(cluster, "_workers_load", True)
    monkeypatch.setattr(cluster, "options", LoadOptions(device="cpu", dtype="float32"))
    settings, hollow = smaller(("+", "-"), 40, topk=16, neurons="atp+exact"), cluster.load("tiny-llama", Template())
    run_stages(hollow, settings, tmp_path / "hollow", None, Silent(), executor=cluster)
    run_stages(arithscope.load("tiny-llama"), settings, tmp_path / "whole", None, Silent())
    assert_same_numbers(tmp_path / "hollow", tmp_path / "whole")


def test_training_is_followed_on_a_cluster(cluster: RayExecutor, small_training_run: Path, tmp_path: Path) -> None:
    """One checkpoint after the other, each with all workers."""
    model, settings = arithscope.load("tiny-pythia"), smaller(("+",), 20, topk=8, neurons="atp")
    final = run_stages(model, settings, tmp_path / "run", ["bag", "prompt_knockout"], Silent(), executor=cluster)

    def checkpoint(name: str) -> Model:
        return cluster.load(f"tiny-pythia@{name}", Template())

    follow_training(model, ["step-00000", "step-01500"], checkpoint, settings, final, Silent(), executor=cluster)
    assert_same_numbers(tmp_path / "run", small_training_run)

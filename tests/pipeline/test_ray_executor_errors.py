"""How nodes are divided among workers, and the messages when a cluster cannot be used."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from arithscope.errors import UserError
from arithscope.models.load import LoadOptions, model_spec
from arithscope.pipeline import ray_executor
from arithscope.pipeline.ray_executor import RayExecutor, Ready, Share, versions
from arithscope.utils.progress import Silent
from tests.command_line import call
from tests.families import small


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "nonsense", "", "127.0.0.1:port"])
def test_an_address_without_a_cluster_is_refused(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    assert call("run", "--cluster", address) == 2
    output = capsys.readouterr()
    assert f"There is no Ray cluster at {address!r}" in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


def test_ray_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'arithscope\[cluster\]'"):
        RayExecutor("local", LoadOptions(), Silent())


def test_devices_of_one_machine_are_refused() -> None:
    for device in ("cuda:1", "mps"):
        with pytest.raises(UserError, match="use auto, cpu or cuda"):
            RayExecutor("local", LoadOptions(device=device), Silent())


class Actors:
    """A stand-in for Ray with made-up nodes, whose actors are only counted."""

    def __init__(self, *nodes: dict[str, float]):
        self._nodes, self.made = nodes, list[Any]()
        self.exceptions: Any = None
        self.get: Any = None

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": bool(node), "NodeID": str(i), "Resources": node} for i, node in enumerate(self._nodes)]

    def remote(self, kind: type) -> Any:
        def options(**wanted: Any) -> Any:
            return SimpleNamespace(remote=lambda *arguments: self.made.append((wanted, arguments)))

        return SimpleNamespace(options=options)

    def kill(self, actor: Any) -> None:
        pass

    def shutdown(self) -> None:
        pass


GPUS, CPUS, DEAD = {"CPU": 16.0, "GPU": 4.0}, {"CPU": 3.0}, dict[str, float]()
ONE_GPU, ONE_CPU = Share(1, 0, 4), Share(0, 1, 1)


@pytest.mark.parametrize(
    ("nodes", "options", "shares", "description"),
    [
        ([CPUS, DEAD, CPUS], {}, [ONE_CPU] * 6, "6 workers with one CPU each"),
        ([GPUS, CPUS], {}, [ONE_GPU] * 4, "4 workers with one GPU each"),
        ([GPUS, CPUS], {"device": "cuda"}, [ONE_GPU] * 4, "4 workers with one GPU each"),
        ([GPUS, CPUS], {"device": "cpu"}, [ONE_CPU] * 19, "19 workers with one CPU each"),
        ([GPUS, GPUS, CPUS], {"device_map": "auto"}, [Share(4, 0, 16)] * 2, "2 workers with 4 GPUs each"),
        ([CPUS], {"device_map": "auto"}, [Share(0, 3, 3)], "one worker with 3 CPUs"),
        ([GPUS], {"quantize": "4bit"}, [ONE_GPU] * 4, "4 workers with one GPU each"),
    ],
)
def test_one_worker_for_each_gpu_or_cpu(
    nodes: Any, options: Any, shares: list[Share], description: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Actors(*nodes)
    monkeypatch.setattr(ray_executor, "_connected", lambda address: (ray, False))
    cluster = RayExecutor("somewhere", LoadOptions(**options), Silent())
    assert [slot.share for slot in cluster._slots] == shares
    assert cluster.where == description
    for (requested, (device, threads)), share in zip(ray.made, shares, strict=True):
        assert (requested["num_gpus"], requested["num_cpus"], threads) == (share.gpus, share.cpus, share.threads)
        assert device == ("cuda" if share.gpus else "cpu")


def waiting_for(ready: Any, monkeypatch: pytest.MonkeyPatch) -> RayExecutor:
    """A cluster whose first worker has just reported that it is ready."""
    ray = Actors(CPUS)
    ray.exceptions = SimpleNamespace(RayTaskError=ZeroDivisionError, RayError=ConnectionError)
    ray.get = lambda promise: ready
    monkeypatch.setattr(ray_executor, "_connected", lambda address: (ray, False))
    return RayExecutor("somewhere", LoadOptions(), Silent())


def test_each_worker_takes_a_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a worker on a node that has joined since the last model."""
    ray, taken = Actors(CPUS), list[Any]()
    monkeypatch.setattr(ray_executor, "_connected", lambda address: (ray, False))
    cluster = RayExecutor("somewhere", LoadOptions(), Silent())
    monkeypatch.setattr(cluster, "_start", taken.append)
    ray._nodes += (CPUS,)
    cluster._give(lambda: small("llama"))
    assert len(cluster._slots) == 6
    assert taken == cluster._slots


@pytest.mark.parametrize("name", list(versions()))
def test_another_version_on_a_node_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same = Ready(versions(), "1", "node-1", None)
    cluster = waiting_for(same, monkeypatch)
    cluster._started(cluster._slots[0], None)
    assert cluster._idle == cluster._slots[:1]
    cluster = waiting_for(replace(same, versions=versions() | {name: "0.0"}), monkeypatch)
    with pytest.raises(UserError, match=rf"node-1 has {name} 0\.0, but here it is {versions()[name]}"):
        cluster._started(cluster._slots[0], None)


def test_another_model_on_a_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = model_spec(small("llama"))
    other = replace(spec, identity=replace(spec.identity, weight_hash="another"))
    cluster = waiting_for(Ready(versions(), "1", "node-1", other), monkeypatch)
    cluster._spec = spec
    with pytest.raises(UserError, match=r"node-1 has a different small llama \(other weights"):
        cluster._started(cluster._slots[0], None)


def test_workers_that_do_not_start_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = waiting_for(None, monkeypatch)

    def lost(promise: Any) -> Any:
        raise ConnectionError("No module named 'arithscope'\nand much more")

    replaced: list[Any] = []
    monkeypatch.setattr(cluster, "_replace", replaced.append)
    monkeypatch.setattr(cluster._ray, "get", lost)
    [slot, *_] = cluster._slots
    for _ in range(ray_executor.TRIES - 1):
        cluster._started(slot, None)
    assert replaced == [slot] * (ray_executor.TRIES - 1)
    with pytest.raises(UserError, match=r"could not be started \(No module named 'arithscope'\); arithscope must be"):
        cluster._started(slot, None)


def test_a_cluster_without_gpus_is_refused_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "_connected", lambda address: (Actors(CPUS), False))
    with pytest.raises(UserError, match="The cluster has no GPUs"):
        RayExecutor("somewhere", LoadOptions(device="cuda"), Silent())

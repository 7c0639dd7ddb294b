"""A model split between a GPU, main memory and disk gives the same numbers as on the CPU alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from arithscope.models.load import LoadOptions, load
from arithscope.models.model import Model
from arithscope.pipeline.runner import describe_model, run_stages
from arithscope.utils.progress import Silent
from tests.approximate import assert_close
from tests.conftest import smaller
from tests.models.placements import (
    EVERYTHING,
    Device,
    assert_same,
    dispatched,
    head,
    places,
    plain,
    wanted,
)

pytestmark = pytest.mark.gpu
NAMES = ("tiny-llama", "tiny-pythia", "tiny-gptj")
WAYS: dict[str, tuple[tuple[Device, ...], Device]] = {  # devices of the layers, in turn, and of everything else
    "layers in memory": ((0, "cpu"), 0),
    "layers in memory and on disk": ((0, "cpu", "disk"), 0),
    "ends in memory": ((0,), "cpu"),
    "ends on disk": (("cpu", 0), "disk"),
    "most of it on disk": (("disk", "disk", 0), "disk"),
}
RUN_BY_BOTH = "layers run by CPU and GPU"  # not possible with a device map, but similar to several GPUs


def spread(name: str, how: str) -> Model:
    if how == RUN_BY_BOTH:
        where = places(plain(name), lambda i: "cpu" if i % 2 else 0, "cpu") | {head(plain(name)): 0}
        return dispatched(load(name, options=LoadOptions(device="cpu")), where, "cpu")
    layers, rest = WAYS[how]
    where = places(plain(name), lambda i: layers[i % len(layers)], rest)
    return load(name, options=LoadOptions(device_map=where))


@pytest.mark.parametrize("how", [*WAYS, RUN_BY_BOTH])
@pytest.mark.parametrize("name", NAMES)
def test_a_split_model_gives_the_same_numbers(name: str, how: str) -> None:
    model = spread(name, how)
    assert model.device == torch.device("cpu" if how == RUN_BY_BOTH else "cuda:0")
    assert model.offloads == (how != RUN_BY_BOTH)
    assert describe_model(model) == describe_model(plain(name))
    for what in EVERYTHING:
        assert_same(what(model), wanted(name, what), 1e-3)


def test_auto_leaves_in_memory_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    total = torch.cuda.mem_get_info()[1]
    with monkeypatch.context() as little:
        little.setattr(torch.cuda, "mem_get_info", lambda device=None: (4_000_000, total))
        little.setattr(torch.cuda, "memory_reserved", lambda device=None: 0)
        little.setattr(torch.cuda, "memory_allocated", lambda device=None: 0)
        model = load("tiny-llama", options=LoadOptions(device_map="auto"))
    assert {p.device.type for p in model.hf_model.parameters()} == {"cuda", "meta"}
    assert model.device == torch.device("cuda:0")
    for what in EVERYTHING:
        assert_same(what(model), wanted("tiny-llama", what), 1e-3)


@pytest.mark.parametrize("how", ["layers in memory and on disk", "most of it on disk", RUN_BY_BOTH])
def test_a_whole_study_gives_the_same_summary(how: str, tmp_path: Path) -> None:
    """Against one on the GPU alone, with the same rounding noise."""
    settings = smaller(("+", "-"), 40, topk=16, neurons="atp")
    device = "cpu" if how == RUN_BY_BOTH else "cuda"
    theirs = run_stages(
        load("tiny-llama", options=LoadOptions(device=device)), settings, tmp_path / "a", None, Silent()
    )
    ours = run_stages(spread("tiny-llama", how), settings, tmp_path / "b", None, Silent())
    assert_close(ours.summary, theirs.summary, rel=2e-2, abs=2e-2)

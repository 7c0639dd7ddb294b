"""A model spread over several fake GPUs: tensors of different devices never meet in one operation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from arithscope.experiments import probe
from arithscope.models import memory, offload
from arithscope.models.load import LoadOptions, load
from arithscope.models.model import Model
from arithscope.pipeline.runner import run_stages
from arithscope.utils import threads
from arithscope.utils.progress import Silent
from tests.approximate import assert_close
from tests.conftest import smaller
from tests.models.fake_gpus import FakeGPUs, InlineExecutor
from tests.models.placements import (
    EVERYTHING,
    assert_same,
    dispatched,
    head,
    passes,
    places,
    plain,
    replays,
    wanted,
    weights,
)

GPU, SECOND, THIRD = (torch.device("cuda", i) for i in range(3))
SEVERAL_GPUS, LAYERS_IN_MEMORY, ENDS_IN_MEMORY, CPU_AND_GPU = (
    "several GPUs",
    "layers in memory",
    "ends in memory",
    "CPU and GPU",
)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGPUs]:
    monkeypatch.setattr(memory, "_free", lambda model: 2**28)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a fake GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(threads, "ThreadPoolExecutor", InlineExecutor)
    monkeypatch.setattr(probe, "_recorded", lambda step, reset, device: step)
    mode, fetch = FakeGPUs(), offload._fetch_view

    def fetch_inside(*view: Any) -> Tensor:  # a backward pass would fetch outside of the mode
        with mode:
            return fetch(*view)

    monkeypatch.setattr(offload, "_fetch_view", fetch_inside)
    with mode:
        yield mode


def spread(name: str, how: str) -> Model:
    """A model whose weights in main memory are fetched by the GPU, unless it mainly runs on the CPU."""
    model = load(name, options=LoadOptions(device="cpu"))
    if how == SEVERAL_GPUS:  # the final norm is elsewhere than the last layer, and than the head
        where = places(model, lambda i: SECOND if i % 2 == 0 else GPU, GPU)
        where |= {model.architecture.final_norm: SECOND, head(model): THIRD}
    elif how == CPU_AND_GPU:
        where = places(model, lambda i: GPU if i % 2 else "cpu", "cpu")
    else:
        in_memory = how == ENDS_IN_MEMORY
        where = places(model, lambda i: GPU if in_memory or i % 2 else "cpu", "cpu" if in_memory else GPU)
    return dispatched(model, where, "cpu" if how == CPU_AND_GPU else GPU)


def test_fake_gpus_behave_like_real_ones(fake: FakeGPUs) -> None:
    here, there, cpu = torch.ones(3, device=GPU), torch.ones(3).to("cuda:1"), torch.arange(3)
    assert (here.device, there[1:].device, cpu.device, there.cpu().device.type) == (GPU, SECOND, cpu.device, "cpu")
    for crossing in (
        lambda: here + there,
        lambda: here + cpu,
        lambda: here[cpu.to(SECOND)],
        lambda: torch.cat([here, there]),
        lambda: torch.nn.functional.linear(here, there[None]),
        lambda: here.numpy(),
    ):
        with pytest.raises(RuntimeError):
            crossing()
    assert (here + there.to(here)).device == GPU
    assert (here[cpu] * cpu.sum()).device == GPU
    here[1:] = there[1:]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(("tiny-llama", how) for how in (SEVERAL_GPUS, LAYERS_IN_MEMORY, CPU_AND_GPU)),
        ("tiny-pythia", ENDS_IN_MEMORY),
        ("tiny-gptj", SEVERAL_GPUS),
        pytest.param("tiny-pythia", SEVERAL_GPUS, marks=pytest.mark.slow),
        pytest.param("tiny-gptj", ENDS_IN_MEMORY, marks=pytest.mark.slow),
    ],
)
def test_a_spread_model_gives_the_same_numbers(name: str, how: str, fake: FakeGPUs) -> None:
    model = spread(name, how)
    assert model.device.type == ("cpu" if how == CPU_AND_GPU else "cuda")
    assert model.devices == {
        SEVERAL_GPUS: {GPU, SECOND, THIRD},
        CPU_AND_GPU: {torch.device("cpu"), GPU},
    }.get(how, {GPU})
    assert model.offloads == (how in (LAYERS_IN_MEMORY, ENDS_IN_MEMORY))
    results = {what: what(model) for what in EVERYTHING}
    replayed = {key: x for key, x in results[replays].items() if not key.startswith("tape")}
    for x in (results[passes]["logits"], *replayed.values(), *results[weights].values()):
        assert x.device == model.device
    for what, found in results.items():
        assert_same({key: x.cpu() for key, x in found.items()}, wanted(name, what), 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("how", [SEVERAL_GPUS, LAYERS_IN_MEMORY, CPU_AND_GPU])
def test_a_whole_study_gives_the_same_summary(how: str, tmp_path: Path, fake: FakeGPUs) -> None:
    settings = smaller(("+", "-"), 20, topk=8, neurons="atp")
    ours = run_stages(spread("tiny-llama", how), settings, tmp_path / "spread", None, Silent()).summary
    theirs = run_stages(plain("tiny-llama"), settings, tmp_path / "plain", None, Silent()).summary
    assert_close(ours, theirs, abs=1e-3)

"""The same numbers with some or all weights on disk as with all weights in memory."""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from accelerate.utils import offload as of_accelerate
from packaging.version import Version
from safetensors.torch import load_file
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from arithscope.errors import UserError
from arithscope.models import load as load_module
from arithscope.models.families import FAMILIES
from arithscope.models.hooks import gradients
from arithscope.models.load import LoadOptions, load
from arithscope.models.memory import rows_that_fit
from arithscope.models.model import Model
from arithscope.models.offload import fetched, offloaded, weight_of
from arithscope.models.sources import ModelSource
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import describe_model, run_stages
from arithscope.utils.progress import Silent
from tests.approximate import assert_close
from tests.conftest import saved, smaller
from tests.families import small
from tests.models.placements import (
    EVERYTHING,
    assert_same,
    dispatched,
    passes,
    places,
    plain,
    slopes,
    some_ids,
    wanted,
    weights,
)
from tests.models.test_load import load_error

NAMES = ("tiny-llama", "tiny-pythia", "tiny-gptj")
LAYERS, ENDS, ALL, HOOKS = "some layers on disk", "embedding, norm and head on disk", "all on disk", "hooks alone"


WHOLE_MODELS = Version(version("transformers")) >= Version("5.15")  # can be left on disk
needs_whole_models = pytest.mark.skipif(
    not WHOLE_MODELS, reason="this transformers cannot leave all of a model on disk"
)


@pytest.mark.skipif(WHOLE_MODELS, reason="this transformers can leave all of a model on disk")
def test_leaving_the_whole_model_on_disk_is_refused(saved_model: Path) -> None:
    assert "put a part of it on cpu" in map_error(saved_model, {"": "disk"})


@cache
def spread(name: str, how: str) -> Model:
    if how == HOOKS:
        return dispatched(load(name, options=LoadOptions(device="cpu")), {"": "cpu"}, "cpu")
    where = {
        LAYERS: places(plain(name), lambda i: "disk" if i % 2 else "cpu", "cpu"),
        ENDS: places(plain(name), lambda i: "cpu", "disk"),
        ALL: {"": "disk"},
    }
    return load(name, options=LoadOptions(device="cpu", device_map=where[how]))


@pytest.mark.parametrize("how", [LAYERS, ENDS, pytest.param(ALL, marks=needs_whole_models), HOOKS])
@pytest.mark.parametrize("name", NAMES)
def test_offloading_gives_the_same_numbers(name: str, how: str) -> None:
    model = spread(name, how)
    for what in EVERYTHING:
        assert_same(what(model), wanted(name, what), 2e-5)
    left = {p.device.type for p in model.hf_model.parameters()}
    assert left == {LAYERS: {"cpu", "meta"}, ENDS: {"cpu", "meta"}, ALL: {"meta"}, HOOKS: {"cpu"}}[how]


@pytest.mark.parametrize("how", [LAYERS, ENDS, pytest.param(ALL, marks=needs_whole_models)])
def test_properties_of_an_offloaded_model(how: str) -> None:
    model = spread("tiny-llama", how)
    assert model.device == torch.device("cpu")
    assert model.devices == {torch.device("cpu")}
    assert model.offloads
    assert not plain("tiny-llama").offloads
    assert describe_model(model) == describe_model(plain("tiny-llama"))  # so that stages have the same keys
    assert model.identity == plain("tiny-llama").identity
    assert rows_that_fit(model, 1, 5) > rows_that_fit(plain("tiny-llama"), 1, 5)  # each pass reads the weights again


@needs_whole_models
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_runs_from_disk(family: str, tmp_path: Path) -> None:
    """Including families with tied embeddings."""
    folder = str(saved(small(family, "eager" if FAMILIES[family].eager_only else "sdpa"), tmp_path))
    one, other = (load(folder, options=LoadOptions(device="cpu", device_map=m)) for m in (None, {"": "disk"}))
    assert {p.device.type for p in other.hf_model.parameters()} == {"meta"}
    assert describe_model(one) == describe_model(other)
    for what in (passes, weights, slopes):
        assert_same(what(other), what(one), 1e-5)


class Watch:
    """Records which weights are read from disk, and whether they are still in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.names: list[str] = []
        self.refs: list[StorageWeakRef] = []
        original = of_accelerate.OffloadedWeightsLoader.__getitem__

        def watched(loader: Any, name: str) -> Tensor:
            found = original(loader, name)
            self.names.append(name)
            self.refs.append(StorageWeakRef(found.untyped_storage()))
            return found

        monkeypatch.setattr(of_accelerate.OffloadedWeightsLoader, "__getitem__", watched)

    def still_there(self) -> int:
        return sum(not ref.expired() for ref in self.refs)


@needs_whole_models
def test_gradients_do_not_keep_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model, watch = spread("tiny-llama", ALL), Watch(monkeypatch)
    kept = []

    def measures(logits: Tensor) -> Tensor:  # is called when the forward pass is done
        kept.append(watch.still_there())
        return torch.stack([logits[:, 1], logits[:, 2], logits[:, 3]])

    gradients(model, some_ids(model), measures, neurons=[2])
    assert kept == [0]
    assert watch.still_there() == 0
    assert watch.names.count("model.layers.4.mlp.up_proj.weight") == 1 + 3  # once in each backward pass
    assert watch.names.count("model.layers.1.mlp.up_proj.weight") == 1  # no gradient was requested there


@needs_whole_models
def test_weights_are_read_once_for_many_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    model, watch = spread("tiny-llama", ALL), Watch(monkeypatch)
    with fetched(model.unembedding):
        for row in model.value_vectors(0)[:3]:
            model.logit_lens(row)
    assert watch.names.count("lm_head.weight") == 1
    assert watch.names.count("model.layers.0.mlp.down_proj.weight") == 1
    assert model.unembedding.weight.device.type == "meta"
    assert offloaded(model.unembedding)
    assert torch.equal(weight_of(model.unembedding), plain("tiny-llama").unembedding.weight)
    assert weight_of(model.unembedding, "bias") is None


@pytest.mark.slow
@needs_whole_models
def test_a_whole_study_gives_the_same_summary(small_run: Path, tmp_path: Path) -> None:
    """Every stage has the same key and the same results with all weights on disk."""
    run_stages(spread("tiny-llama", ALL), smaller(("+", "-"), 40, topk=64, neurons="atp"), tmp_path, None, Silent())
    for stage in (s.name for s in all_stages() if not s.on_request):
        keys = {json.loads((folder / stage / "stage.json").read_text())["key"] for folder in (tmp_path, small_run)}
        assert len(keys) == 1, stage
    assert_close(*(json.loads((folder / "summary.json").read_text()) for folder in (tmp_path, small_run)), abs=1e-3)


def test_auto_puts_on_disk_what_does_not_fit(saved_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = load(str(saved_model), options=LoadOptions(device="cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=80_000))
    model = load(str(saved_model), options=LoadOptions(device_map="auto"))
    monkeypatch.undo()
    assert {p.device.type for p in model.hf_model.parameters()} == {"cpu", "meta"}
    assert_same(passes(model), passes(one), 1e-5)


@needs_whole_models
def test_pickled_weights_can_be_left_on_disk(
    saved_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied as safetensors, and the copy is removed with the model."""
    folder = Path(shutil.copytree(saved_model, tmp_path / "model"))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    one, other = (
        load(str(folder), options=LoadOptions(device="cpu", allow_pickle=True, device_map=m))
        for m in (None, {"": "disk"})
    )
    assert other.identity.weight_hash == one.identity.weight_hash
    assert_same(weights(other), weights(one), 1e-5)
    assert len(list((tmp_path / "temporary").glob("*/*.safetensors"))) > 10
    del other
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())


def map_error(folder: Path, device_map: Any) -> str:
    """The message with which a device map is refused."""
    return load_error(folder, LoadOptions(device="cpu", device_map=device_map))


def test_a_device_map_from_a_file(saved_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"model": "disk", "lm_head": "cpu"}))
    model = load(str(saved_model), options=LoadOptions(device="cpu", device_map=str(path)))
    assert {offloaded(m) for m in model._sites["heads"]} == {True}
    assert not offloaded(model.unembedding)
    path.write_text("{")
    assert "cannot be read; write it as JSON" in map_error(saved_model, str(path))
    path.write_text('"auto"')
    assert "this one is 'auto'" in map_error(saved_model, str(path))


def test_invalid_device_maps_are_refused(saved_model: Path, tmp_path: Path) -> None:
    assert "no device map 'sideways'; use auto" in map_error(saved_model, "sideways")
    assert "this one is {}" in map_error(saved_model, {})
    assert "'nose', which the model does not have; its layers are model.layers.0" in map_error(
        saved_model, {"nose": "cpu"}
    )
    assert "leaves lm_head.weight out" in map_error(saved_model, {"model": "disk"})
    assert "one inside the other" in map_error(saved_model, {"": "cpu", "model.layers.1": "disk"})
    for nonsense in ("abacus", "", "auto", "cuda:", -1, 0.5, True, None, []):
        assert f"cannot put anything on {nonsense!r}" in map_error(saved_model, {"": nonsense})
    for gpu in (99, "99", "cuda:99"):
        assert "uses GPU 99" in map_error(saved_model, {"": gpu})
    tied = saved(small("gpt2", "sdpa"), tmp_path)
    assert "must put both on the same device" in map_error(tied, {"transformer": "disk", "lm_head": "cpu"})


def test_a_gguf_file_cannot_be_left_on_disk(tmp_path: Path) -> None:
    """transformers cannot read it piece by piece. The map is refused before the file is read."""
    place = ModelSource("model", str(tmp_path), None, "model.gguf", local=True)
    config, cpu = small("llama", "sdpa").hf_model.config, torch.device("cpu")
    with pytest.raises(UserError, match="No part of a GGUF file can be left on disk"):
        load_module._load_weights(place, config, cpu, LoadOptions(device_map={"model": "cpu", "lm_head": "disk"}))
    with pytest.raises(UserError, match=r"The weights in .* cannot be loaded"):  # there is no such file
        load_module._load_weights(place, config, cpu, LoadOptions(device_map={"": "cpu"}))

"""Damaged model files (configuration, tokenizer, weights, GGUF) load as a working model or are refused."""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from arithscope.models.load import LoadOptions, load
from arithscope.models.model import Model
from arithscope.models.untrained import number_tokenizer, untrained_model
from arithscope.prompts import Prompts
from tests.families import CONFIGS
from tests.fuzz.damage import corrupted, files, written
from tests.fuzz.effort import fuzz, refused, twice
from tests.fuzz.gguf_file import write_llama

FAMILIES = ("llama", "gpt2", "gptj", "gemma2")
NUMBERS = 12
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of a one-layer model, by family."""
    found = {}
    for family in FAMILIES:
        folder, tokenizer = tmp_path_factory.mktemp(family), number_tokenizer(NUMBERS)
        layers = "n_layer" if "n_layer" in CONFIGS[family] else "num_hidden_layers"
        model: Any = untrained_model(family, {**CONFIGS[family], layers: 1}, tokenizer)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        found[family] = {file.name: file.read_bytes() for file in folder.iterdir()}
    return found


def works(model: Model) -> None:
    """All numbers can be used in prompts, and the logits are finite."""
    assert 1 <= model.limit <= model.sizes.vocabulary
    numbers = np.arange(model.limit)
    for operator in model.encoder.operators:
        index = "+-*/".index(operator)
        prompts = Prompts(numbers, np.full_like(numbers, index), numbers[::-1])
        with torch.no_grad():
            logits = model.logits(model.encode(prompts))
        assert logits.shape == (model.limit, model.sizes.vocabulary)
        assert logits.isfinite().all()
        model.token_numbers  # noqa: B018 (computed on first use)
    assert model.encoder.first_mismatch(model.encoder.examples()) is None


def accepts_in(folder: Path) -> Callable[[tuple[str, dict[str, bytes]]], bool]:
    numbers = itertools.count()

    def accepts(model: tuple[str, dict[str, bytes]]) -> bool:
        name, content = model
        place = folder / f"{next(numbers)}"
        place.mkdir()
        for file, data in content.items():
            (place / file).write_bytes(data)
        made: list[Model] = []
        refusal = refused(lambda: made.append(load(str(place / name), options=LoadOptions(device="cpu"))))
        if made:
            works(made[0])
        shutil.rmtree(place)
        return refusal is None

    return accepts


@st.composite
def with_one(draw: st.DrawFn, models: dict[str, dict[str, bytes]], *names: str) -> tuple[str, dict[str, bytes]]:
    """The files of a model, one of them damaged."""
    content = models[draw(st.sampled_from(FAMILIES))]
    name = draw(st.sampled_from(names))
    return "", {**content, name: draw(files(json.loads(content[name])))}


@twice
def test_model_configurations(models: dict[str, dict[str, bytes]], tmp_path: Path, full: bool) -> None:
    inputs = with_one(models, "config.json", "config.json", "generation_config.json")
    assert fuzz("model configurations", inputs, accepts_in(tmp_path), full).accepted


@twice
def test_tokenizers(models: dict[str, dict[str, bytes]], tmp_path: Path, full: bool) -> None:
    inputs = with_one(models, "tokenizer.json", "tokenizer.json", "tokenizer_config.json")
    assert fuzz("tokenizers", inputs, accepts_in(tmp_path), full).accepted


def split(content: bytes) -> tuple[Any, bytes]:
    """The header of a safetensors file, and the data after it."""
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: bytes, data: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


@st.composite
def damaged_weights(draw: st.DrawFn, content: bytes) -> bytes:
    """Safetensors with another header, another header length, or corrupted bytes anywhere."""
    header, data = split(content)
    kind = draw(st.sampled_from(["header", "header", "length", "bytes"]))
    if kind == "bytes":
        return draw(corrupted(content))
    if kind == "length":
        return joined(written(header), data, draw(st.sampled_from([0, 1, 2**32, 2**63, 2**64 - 1, len(content)])))
    return joined(draw(files(header)), data)


@st.composite
def weights(draw: st.DrawFn, models: dict[str, dict[str, bytes]]) -> tuple[str, dict[str, bytes]]:
    content = dict(models[draw(st.sampled_from(FAMILIES))])
    if draw(st.booleans()):
        return "", {**content, "model.safetensors": draw(damaged_weights(content["model.safetensors"]))}
    whole = content.pop("model.safetensors")
    names = [name for name in split(whole)[0] if name != "__metadata__"]
    index = {"metadata": {"total_size": len(whole)}, "weight_map": dict.fromkeys(names, "part-1.safetensors")}
    return "", {**content, "part-1.safetensors": whole, INDEX: draw(st.one_of(st.just(written(index)), files(index)))}


@twice
def test_model_weights(models: dict[str, dict[str, bytes]], tmp_path: Path, full: bool) -> None:
    assert fuzz("model weights", weights(models), accepts_in(tmp_path), full).accepted


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_llama(path)
    return path.read_bytes()


@twice
def test_gguf_files(gguf: bytes, tmp_path: Path, full: bool) -> None:
    header = corrupted(gguf[:3000]).map(lambda start: start + gguf[3000:])
    changed = st.one_of(header, header, corrupted(gguf), st.just(gguf)).map(
        lambda data: ("model.gguf", {"model.gguf": data})
    )
    assert fuzz("GGUF files", changed, accepts_in(tmp_path), full).accepted

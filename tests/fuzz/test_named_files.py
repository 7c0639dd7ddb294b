"""Device maps in JSON, and checkpoints by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from arithscope.models.offload import check_device_map, read_device_map
from arithscope.models.sources import checkpoint_folder, select_checkpoints
from tests.families import small
from tests.fuzz.damage import TEXTS, files
from tests.fuzz.effort import fuzz, refused, twice

MAP = {
    "model.embed_tokens": "cpu",
    "model.layers": "cpu",
    "model.norm": "disk",
    "lm_head": "cpu",
    "model.rotary_emb": "cpu",
}
PARTS = [
    "model",
    "model.layers.0",
    "model.layers.1.mlp",
    "",
    "lm_head",
    "model.norm",
    "nothing",
    "model.norm.weight",
    "x",
]
PLACES = [
    "cpu",
    "disk",
    "cuda",
    "cuda:0",
    0,
    7,
    -1,
    "mps",
    "gpu",
    "",
    None,
    True,
    1.0,
    [],
    "cuda:" + "9" * 5000,
    "٣",
    "0 ",
]


def is_map(content: bytes, weights: list[str], modules: set[str]) -> bool:
    """Whether a file gives each weight exactly one device, on a machine without GPUs."""
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, dict) or not found or not set(found) <= modules:
        return False
    if not all(isinstance(place, str) and place in ("cpu", "disk") for place in found.values()):
        return False
    return all(sum(part == "" or weight.startswith(part + ".") for part in found) == 1 for weight in weights)


@twice
def test_device_maps(tmp_path: Path, full: bool) -> None:
    path, model = tmp_path / "places.json", small("llama").hf_model
    modules = {name for name, _ in model.named_modules()}
    weights = list(model.state_dict())
    made = st.dictionaries(st.sampled_from(PARTS), st.sampled_from(PLACES), max_size=3).map(
        lambda m: json.dumps(m).encode()
    )
    whole = st.sampled_from([{"": "cpu"}, {"model": "disk", "lm_head": "cpu"}, MAP]).map(
        lambda m: json.dumps(m).encode()
    )

    def accepts(content: bytes) -> bool:
        path.write_bytes(content)

        def checked() -> None:
            found: Any = read_device_map(str(path))
            check_device_map(found, model)

        accepted = refused(checked) is None
        assert accepted == is_map(content, weights, modules)
        return accepted

    assert fuzz("device maps", st.one_of(made, whole, files(MAP)), accepts, full).accepted


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    for name in ("step-00002", "step-00010", "a,b", "x@y", "é"):
        (tmp_path / "model" / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "model" / "checkpoints" / name / "config.json").write_text("{}")
    return tmp_path / "model"


@twice
def test_checkpoint_names(trained: Path, full: bool) -> None:
    known = {"step-00002", "step-00010", "a,b", "x@y", "é"}
    names = st.one_of(
        st.sampled_from(sorted(known)),
        st.sampled_from([*TEXTS, "all", "step-2", "../checkpoints/é"]),
        st.text(max_size=5),
    )
    inputs = st.one_of(names, st.lists(names, max_size=4).map(",".join), st.lists(names, max_size=4).map(" , ".join))

    def accepts(wanted: str) -> bool:
        found: list[list[str]] = []
        accepted = refused(lambda: found.append(select_checkpoints(str(trained), wanted))) is None
        requested = {name for part in wanted.split(",") if (name := part.strip())}
        assert accepted == (wanted == "all" or (bool(requested) and requested <= known))
        if accepted:
            assert set(found[0]) == (known if wanted == "all" else requested)
        assert (refused(lambda: checkpoint_folder(trained, wanted)) is None) == (wanted in known)
        return accepted

    assert fuzz("checkpoint names", inputs, accepts, full).accepted

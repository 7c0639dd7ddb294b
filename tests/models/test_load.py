"""Loading models, and refusing bad ones in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from arithscope.errors import UserError
from arithscope.models import load as load_module
from arithscope.models.load import LoadOptions, load, pick_device
from arithscope.models.model import Model
from arithscope.prompts import Template
from tests.families import small
from tests.tokenizers_for_tests import digit_splitting


@pytest.fixture
def copied(saved_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_model, tmp_path / "model"))


def test_a_model_folder(saved_model: Path) -> None:
    model = load(str(saved_model), options=LoadOptions(device="cpu"))
    assert model.identity.name == "small-llama"
    assert len(model.identity.weight_hash) == len(model.identity.tokenizer_hash) == 64
    assert (model.dtype_name, model.attention_implementation, model.limit) == ("float32", "sdpa", 40)
    ids = model.encode(model.encoder.examples())
    with torch.no_grad():
        assert torch.equal(model.logits(ids), small("llama", "sdpa").logits(ids))


def test_the_weight_hash_depends_on_the_weights(copied: Path) -> None:
    first = load(str(copied)).identity
    weights = load_file(copied / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    second = load(str(copied)).identity
    assert first.weight_hash != second.weight_hash
    assert first.tokenizer_hash == second.tokenizer_hash


def test_dtypes(saved_model: Path) -> None:
    model = load(str(saved_model), options=LoadOptions(dtype="bfloat16"))
    assert model.dtype_name == "bfloat16"
    assert model.logits(model.encode(model.encoder.examples())).dtype == torch.float32


def test_device_map(saved_model: Path) -> None:
    model = load(str(saved_model), options=LoadOptions(device_map="auto"))
    plain = load(str(saved_model))
    ids = plain.encode(plain.encoder.examples())
    with torch.no_grad():
        assert torch.equal(model.logits(ids), plain.logits(ids))


def test_a_template_is_kept(saved_model: Path) -> None:
    assert load(str(saved_model), Template(prefix="1+2=3=")).encoder.length == 11


def load_error(model: str | Path, options: LoadOptions | None = None) -> str:
    """The message with which loading a model is refused."""
    with pytest.raises(UserError) as caught:
        load(str(model), options=options)
    return str(caught.value)


def test_missing_files_are_refused(tmp_path: Path, saved_model: Path) -> None:
    assert "no folder or file" in load_error(tmp_path / "nowhere")
    assert "no folder or file" in load_error("./nowhere.gguf")
    assert "No model was named" in load_error("")
    assert "has no config.json" in load_error(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"0")
    assert "not a GGUF file" in load_error(tmp_path / "weights.bin")
    assert "no checkpoint 'main'; it has: none" in load_error(f"{saved_model}@main")


def test_hub_names_are_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(source: str, **arguments: object) -> None:
        assert (source, arguments["revision"]) == ("somebody/model", "v2")
        raise OSError("no connection")

    monkeypatch.setattr(load_module.AutoConfig, "from_pretrained", unreachable)
    assert "model hub: no connection" in load_error("somebody/model@v2")


def test_unknown_families_are_refused(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"model_type": "bloom"}))
    assert "'bloom' are not supported" in load_error(copied)
    (copied / "config.json").write_text(json.dumps(config | {"model_type": "unheard-of"}))
    assert "cannot be loaded" in load_error(copied)
    (copied / "config.json").write_text("{")
    assert "cannot be loaded" in load_error(copied)


def test_broken_weights_are_refused(copied: Path) -> None:
    whole = (copied / "model.safetensors").read_bytes()
    for broken in (whole[: len(whole) // 2], whole[:4], b""):
        (copied / "model.safetensors").write_bytes(broken)
        assert "weights" in load_error(copied)


def test_missing_weights_are_refused(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    assert "incomplete: model.layers.1.mlp.down_proj.weight" in load_error(copied)


def test_pickled_weights_need_consent(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    (copied / "model.safetensors").unlink()
    torch.save(weights, copied / "pytorch_model.bin")
    assert "--allow-pickle" in load_error(copied)
    model = load(str(copied), options=LoadOptions(allow_pickle=True))
    assert len(model.identity.weight_hash) == 64


def test_remote_code_does_not_run(copied: Path, tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    (copied / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Own: pass\n")
    config = json.loads((copied / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (copied / "config.json").write_text(json.dumps(config))
    assert "cannot be loaded" in load_error(copied)
    assert not marker.exists()


def test_a_missing_tokenizer_is_refused(copied: Path) -> None:
    for file in copied.glob("tokenizer*"):
        file.unlink()
    assert "tokenizer" in load_error(copied)


def test_a_tokenizer_that_splits_digits_limits_the_numbers(copied: Path) -> None:
    digit_splitting().save_pretrained(copied)
    assert load(str(copied)).limit == 10


def test_impossible_token_ids_are_refused(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "arithscope.models.load.LARGEST_TOKEN", 1 << 16
    )  # so that it costs little without the check, too
    path = copied / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["0"] = 1 << 17
    path.write_text(json.dumps(tokenizer))
    assert "impossible id 131072" in load_error(copied)


def test_unknown_devices_and_dtypes_are_refused(saved_model: Path) -> None:
    if not torch.cuda.is_available():
        assert "visible CUDA GPUs: 0" in load_error(saved_model, LoadOptions(device="cuda"))
    assert "no device 'abacus'" in load_error(saved_model, LoadOptions(device="abacus"))
    assert "no device 'meta'" in load_error(saved_model, LoadOptions(device="meta"))
    assert "no dtype 'int3'" in load_error(saved_model, LoadOptions(dtype="int3"))
    assert "choose 4bit or 8bit" in load_error(saved_model, LoadOptions(quantize="3bit"))
    assert pick_device("cpu") == torch.device("cpu")


def test_a_model_that_does_not_replay_is_refused(saved_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Model.unembed
    monkeypatch.setattr(Model, "unembed", lambda self, x: original(self, x).cumsum(-1))
    assert "could not be trusted" in load_error(saved_model)


IN_A_HUB_CACHE = """
from arithscope.models.load import load
for name in ("somebody/small", "somebody/small@v2"):
    identity = load(name).identity
    print(identity.name, identity.revision, identity.weight_hash)
"""


def test_a_cached_hub_model_loads_offline(saved_model: Path, tmp_path: Path) -> None:
    """The hub's cache is made by hand, with the files in a folder named after a commit."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "hub" / "models--somebody--small"
    shutil.copytree(saved_model, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    for ref in ("main", "v2"):
        (cache / "refs" / ref).write_text(commit)
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_HUB_CACHE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = f"somebody/small {commit} {load(str(saved_model)).identity.weight_hash}"
    assert done.stdout.splitlines() == [expected, expected]

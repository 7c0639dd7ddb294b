"""Every check passes on every family, and fails on a model with the fault it looks for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arithscope.errors import UserError
from arithscope.models import checks
from arithscope.models.checks import CHECKS, float32_copy, rounding_noise, soundness_checks, tokenization_check
from arithscope.models.engine.replay import PrefixCache
from arithscope.models.engine.sweep import replica
from arithscope.models.families import FAMILIES
from arithscope.models.model import Model
from arithscope.pipeline.runner import run_stages
from arithscope.prompts import Prompts, Template, legal_prompts
from arithscope.settings import Settings
from arithscope.stats.effects import token_logits
from arithscope.utils.progress import Silent
from tests.families import FAMILY_AND_ATTENTION, NUMBERS, small
from tests.tokenizers_for_tests import word_tokenizer

Break = Callable[[Model, pytest.MonkeyPatch], Any]


def failed(model: Model) -> dict[str, str]:
    return {check.name: check.problem for check in soundness_checks(model) if check.problem}


@pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION)
def test_every_family_is_sound(family: str, attention: str) -> None:
    found = list(soundness_checks(small(family, attention)))
    assert len(found) == len({check.name for check in found}) == len(CHECKS)
    assert [check.problem for check in found] == [""] * len(CHECKS)
    assert all(check.detail for check in found)


@pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION[::3])
def test_half_precision_is_sound_within_its_noise(family: str, attention: str) -> None:
    model = small(family, attention, torch.bfloat16)
    wide = float32_copy(model)
    assert wide is not None
    assert (model.dtype_name, wide.dtype_name) == ("bfloat16", "float32")
    noise = rounding_noise(model, wide)
    assert 1e-4 < noise < 0.1
    assert not any(check.problem for check in soundness_checks(model, noise))
    assert rounding_noise(model, model) == 0.0


def test_checks_work_with_memory_for_one_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arithscope.models.engine.replay.rows_that_fit", lambda *args, **options: 1)
    assert failed(small("llama", "sdpa")) == {}


def hooked(module: torch.nn.Module, change: Callable[[Any], Any]) -> None:
    module.register_forward_hook(lambda m, args, output: change(output))


def not_finite(model: Model, patch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        model.unembedding.weight[5, 0] = torch.nan


def constant_logits(model: Model, patch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        model.unembedding.weight.zero_()


def noisy(model: Model, patch: pytest.MonkeyPatch) -> None:
    hooked(model.layers[1].mlp, lambda x: x + 0.1 * torch.randn_like(x))


def wrong_fast_norm(model: Model, patch: pytest.MonkeyPatch) -> None:
    plain = torch.nn.functional.rms_norm
    patch.setattr(torch.nn.functional, "rms_norm", lambda *args: plain(*args) * 1.01)


def mixing_prompts(model: Model, patch: pytest.MonkeyPatch) -> None:
    hooked(model.layers[0].mlp, lambda x: x + 0.1 * x.mean(0, keepdim=True))


def reading_masked_tokens(model: Model, patch: pytest.MonkeyPatch) -> None:
    hooked(model.layers[0].mlp, lambda x: x + 0.1 * x.mean(1, keepdim=True))


def leaking_attention(model: Model, patch: pytest.MonkeyPatch) -> None:
    hooked(model.attention(1), lambda output: (output[0], None if output[1] is None else output[1] * 0.9))


def looking_ahead(model: Model, patch: pytest.MonkeyPatch) -> None:
    hooked(model.attention(1), lambda output: (output[0], None if output[1] is None else output[1].flip(-1)))


def different_when_eager(model: Model, patch: pytest.MonkeyPatch) -> None:
    hooked(model.attention(1), lambda out: out if out[1] is None else (out[0] * 1.1, out[1]))


def wrong_value_vectors(model: Model, patch: pytest.MonkeyPatch) -> None:
    own = Model.value_vectors
    patch.setattr(Model, "value_vectors", lambda self, layer: own(self, layer).roll(1, 0))


def heads_that_interact(model: Model, patch: pytest.MonkeyPatch) -> None:
    hooked(model.module(checks.Site.HEADS, 1), lambda x: x + 0.1 * x.square())


def something_more_in_the_stream(model: Model, patch: pytest.MonkeyPatch) -> None:
    hooked(model.layers[1], lambda output: output * 1.01)


def uncentred(model: Model, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checks, "normalized_logit", lambda z, answers: token_logits(z, answers) / z.amax(-1))


def forgetful_cache(model: Model, patch: pytest.MonkeyPatch) -> None:
    plain = PrefixCache.__init__
    patch.setattr(
        PrefixCache,
        "__init__",
        lambda self, prefix, separate: plain(self, [(keys * 0.9, values * 0.9) for keys, values in prefix], separate),
    )


BROKEN: dict[str, tuple[str, Break]] = {
    "not finite": ("logits", not_finite),
    "constant logits": ("logits", constant_logits),
    "noise": ("determinism", noisy),
    "wrong kernel": ("library", wrong_fast_norm),
    "mixed prompts": ("batches", mixing_prompts),
    "masked tokens read": ("padding", reading_masked_tokens),
    "leaking attention": ("attention", leaking_attention),
    "looking ahead": ("attention", looking_ahead),
    "eager attention differs": ("attention", different_when_eager),
    "wrong value vectors": ("components", wrong_value_vectors),
    "heads that interact": ("components", heads_that_interact),
    "more in the stream": ("components", something_more_in_the_stream),
    "uncentred": ("centring", uncentred),
    "forgetful cache": ("replay", forgetful_cache),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_models_fail_their_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, break_it = BROKEN[name]
    model = copy.deepcopy(small("llama", "eager" if name == "forgetful cache" else "sdpa"))
    break_it(model, monkeypatch)
    assert check in failed(model)


@pytest.mark.parametrize("family", [f for f, row in FAMILIES.items() if row.post_norms])
def test_a_wrong_architecture_row_is_noticed(family: str) -> None:
    model = replica(small(family, "eager"))
    model.architecture = replace(model.architecture, post_norms=False)
    found = failed(model)
    assert {"components", "replay"} <= found.keys()
    assert "layer" in found["components"]


def with_tokenizer(tokenizer: Any, template: Template | None = None) -> Model:
    model = small("llama", "eager")
    return Model(copy.deepcopy(model.hf_model), tokenizer, model.identity, template)


def test_bos_must_occur_at_most_once() -> None:
    own = small("llama", "eager").tokenizer
    assert "more than once" in failed(with_tokenizer(own, Template(prefix="<bos>")))["BOS"]
    numbers = [*map(str, range(NUMBERS)), "+", "-", "*", "/", "="]
    assert failed(with_tokenizer(word_tokenizer(r"\d+|.", numbers, bos=None))) == {}
    large = word_tokenizer(r"\d+|.", [*map(str, range(500)), "+", "-", "*", "/", "="])
    with pytest.raises(UserError, match="uses token 505, but the model has only"):
        with_tokenizer(large)


def test_a_prompt_that_is_tokenized_differently_is_named() -> None:
    model = replica(small("llama", "eager"))
    prompts = legal_prompts("+", 20, model.limit)
    assert tokenization_check(model, prompts).problem == ""
    tables = copy.copy(model.encoder)
    [op2] = tables._tables["op2"]
    changed = op2.copy()
    changed[7] = changed[8]
    tables._tables = tables._tables | {"op2": [changed]}
    model.encoder = tables
    assert "'0+7='" in tokenization_check(model, prompts).problem


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    yield
    assert not folder.exists()


def test_a_run_refuses_an_unsound_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, folder = Settings(("+",), 9), tmp_path / "run"
    model = copy.deepcopy(small("llama", "eager"))
    with monkeypatch.context() as patch, untouched(folder):
        wrong_value_vectors(model, patch)
        with pytest.raises(UserError, match=r"could not be trusted.*components: the value vectors of layer.*doctor"):
            run_stages(model, settings, folder, ["means"], Silent())
    with monkeypatch.context() as patch, untouched(folder):
        patch.setattr(type(model.encoder), "first_mismatch", lambda self, prompts: "1+2=")
        with pytest.raises(UserError, match=r"tokenisation: its tokenizer reads '1\+2='"):
            run_stages(model, settings, folder, ["means"], Silent())
    checked: list[Prompts] = []
    plain = type(model.encoder).first_mismatch
    monkeypatch.setattr(type(model.encoder), "first_mismatch", lambda self, p: (checked.append(p), plain(self, p))[1])
    for _ in range(2):  # a sound model is not checked again
        run_stages(model, settings, folder, ["means"], Silent())
    assert [len(p) for p in checked] == [len(legal_prompts("+", 9, model.limit))]

"""Exchanging the residual stream, against a hook written by hand. What it shows is tested on the hand-built digit adder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from arithscope.experiments.common.exchange import exchanged_answers
from arithscope.models.engine.full_pass import FullPass
from arithscope.models.hooks import EMBEDDINGS
from arithscope.models.model import Model
from arithscope.prompts import Prompts
from tests.families import small_at, some_of_stratum

LAYERS = (EMBEDDINGS, 0, 1, 2)


def two_samples(model: Model) -> tuple[Prompts, Prompts]:
    return some_of_stratum(model, 12), some_of_stratum(model, 12, seed=1)


def silent(n: int) -> None:
    pass


@torch.no_grad()
def by_hand(model: Model, prompts: Prompts, sources: Prompts, at: int, layer: int) -> list[int]:
    """Answers of the library's own Llama, one prompt at a time. Layer −1 is the module that embeds the tokens."""
    path = "model.embed_tokens" if layer == EMBEDDINGS else f"model.layers.{layer}"
    module = model.hf_model.get_submodule(path)

    def run(prompt: Prompts, hook: Callable[..., Any]) -> Tensor:
        handle = module.register_forward_hook(hook)
        try:
            return model.hf_model(input_ids=model.encode(prompt), use_cache=False).logits[0, -1]
        finally:
            handle.remove()

    found = []
    for i in range(len(prompts)):
        seen: list[Tensor] = []
        run(sources[[i]], lambda module, args, output, seen=seen: seen.append(output.clone()))

        def replace(module: Any, args: Any, output: Tensor, seen: list[Tensor] = seen) -> Tensor:
            return torch.cat([output[:, :at], seen[0][:, at : at + 1], output[:, at + 1 :]], dim=1)

        token = model.tokenizer.convert_ids_to_tokens(int(run(prompts[[i]], replace).argmax()))
        # All three-digit sums begin with 1, so no other number is an answer in the first step.
        possible = {"1"} if model.encoder.step == 1 else set("0123456789")
        found.append(int(token) if token in possible else -1)
    return found


@pytest.mark.parametrize("step", [1, 2, 3])
def test_answers_equal_those_with_a_hook_written_by_hand(step: int) -> None:
    model = small_at("llama", "sdpa", "digits", step)
    prompts, sources = two_samples(model)
    changed = 0
    for name, at in model.positions.named().items():
        found = exchanged_answers(model, prompts, sources, name, LAYERS, advance=silent)
        assert (found.shape, found.dtype) == ((len(LAYERS), len(prompts)), np.int32)
        want = [by_hand(model, prompts, sources, at, layer) for layer in LAYERS]
        assert found.tolist() == want
        changed += int((found != found[-1]).sum())
    assert changed > 10


@pytest.mark.parametrize(("family", "attention"), [("gpt2", "sdpa"), ("gemma2", "eager")])
def test_both_engines_agree(family: str, attention: str) -> None:
    model = small_at(family, attention, "digits", 2)
    prompts, sources = two_samples(model)
    for name in model.positions.named():
        fast, slow = (
            exchanged_answers(m, prompts, sources, name, LAYERS, advance=silent)
            for m in (model, model.with_engine(FullPass()))
        )
        assert fast.tolist() == slow.tolist()


def test_one_prompts_own_stream_changes_nothing_and_the_last_one_everything() -> None:
    model = small_at("llama", "sdpa", "digits", 3)
    prompts, sources = two_samples(model)
    own, other = (model.token_numbers[model.logits(model.encode(p)).argmax(-1)].tolist() for p in (prompts, sources))
    assert own != other
    for name in model.positions.named():
        assert exchanged_answers(model, prompts, prompts, name, LAYERS, advance=silent).tolist() == [own] * 4
    last = model.positions.final_name
    assert exchanged_answers(model, prompts, sources, last, [2], advance=silent).tolist() == [other]
    assert exchanged_answers(model, prompts, sources, "op1.1", [2], advance=silent).tolist() == [own]


def test_batches_do_not_change_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_at("llama", "sdpa", "digits", 2)
    prompts, sources = two_samples(model)
    counted: list[int] = []
    whole = exchanged_answers(model, prompts, sources, "op2.2", LAYERS, advance=counted.append)
    assert counted == [12] * 4
    monkeypatch.setattr("arithscope.experiments.common.samples.rows_that_fit", lambda *_: 5)
    counted.clear()
    assert (
        exchanged_answers(model, prompts, sources, "op2.2", LAYERS, advance=counted.append).tolist() == whole.tolist()
    )
    assert sum(counted) == 48
    assert max(counted) == 5


def test_every_prompt_needs_a_source() -> None:
    model = small_at("llama", "sdpa", "digits", 2)
    prompts, sources = two_samples(model)
    with pytest.raises(ValueError, match="12 prompts, but 11 sources"):
        exchanged_answers(model, prompts, sources[:11], "last", LAYERS, advance=silent)

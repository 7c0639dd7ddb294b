"""Attribution methods against finite differences, a slow loop, and one prompt at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common.attribution import ATTRIBUTION_METHODS, STEPS, attributed_effects
from arithscope.experiments.common.samples import Split, split_prompts
from arithscope.models.model import Model
from arithscope.prompts import Prompts
from arithscope.settings import SampleSizes
from arithscope.stats.effects import EFFECTS
from tests.experiments import plain
from tests.families import FAMILY_AND_ATTENTION, small
from tests.models.test_hooks import slope_of

LAYER, NEURONS = 1, (0, 11, 30)


def pairs(model: Model, n: int = 3) -> Split:
    return split_prompts(plain.all_correct(model, "+", 9), SampleSizes(n, 1, 1, 1), 0)["+"]


def estimates(model: Model, split: Split, method: str) -> NDArray[np.float32]:
    """[neurons, prompts, measures] of LAYER."""
    found = attributed_effects(
        model, split.discovery, split.counterfactuals, [LAYER], method, model.positions.final, advance=lambda n: None
    )
    return found[0]


def landmarks(z: Tensor, answer: int, other: int) -> Tensor:
    z = z - z.mean()
    return torch.stack([z[answer], z[other], z.logsumexp(0)])


def effects(before: Tensor, change: Tensor) -> list[float]:
    """By every measure, from the landmarks and their change."""
    (r, other, norm), (r_after, other_after, norm_after) = before, before + change
    p, q = (r - norm).exp(), (other - norm).exp()
    p_after, q_after = (r_after - norm_after).exp(), (other_after - norm_after).exp()
    found = {
        "probability": 0.5 * ((q_after - q) / q + (p - p_after) / p_after),
        "log_ratio": 0.5 * (torch.log(q_after / q) + torch.log(p / p_after)),
        "logit": 0.5 * ((other_after - other) / other.abs() + (r - r_after) / r_after.abs()),
    }
    return [float(found[measure]) for measure in EFFECTS]


@pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION)
@torch.no_grad()
def test_atp_uses_the_slope_at_the_prompt(family: str, attention: str) -> None:
    """Finite differences of the landmarks, by plain passes, in double precision."""
    model = small(family, attention, torch.float64)
    split, module = pairs(model), plain.mlp_module(model, LAYER)
    found, last = estimates(model, split, "atp"), model.positions.final
    for i in range(len(split.discovery)):
        prompt, other = split.discovery[[i]], split.counterfactuals[[i]]
        answers = int(model.answers(prompt)), int(model.answers(other))
        old, new = (plain.activation(model, p, module)[last] for p in (prompt, other))
        for neuron in NEURONS:
            entry = slice(neuron, neuron + 1)

            def at(value: Tensor, prompt: Prompts = prompt, entry: slice = entry) -> Tensor:
                return plain.logits(model, prompt, [(module, last, entry, value)])

            slope = slope_of(lambda by: landmarks(at(old[neuron] + by), *answers))  # noqa: B023
            want = effects(landmarks(at(old[neuron]), *answers), (new - old)[neuron] * slope)
            assert found[neuron, i] == pytest.approx(want, rel=5e-3, abs=1e-4)
    assert np.abs(found).max() > 1e-2


def test_ig_uses_the_mean_slope_along_the_path() -> None:
    """One prompt, step and measure at a time, from the library's own argument for embeddings."""
    model = small("gpt2", "eager", torch.float64)
    split, module = pairs(model), plain.mlp_module(model, LAYER)
    found, embed = estimates(model, split, "ig"), model.hf_model.get_input_embeddings()
    for i in range(len(split.discovery)):
        prompt, other = split.discovery[[i]], split.counterfactuals[[i]]
        answers = int(model.answers(prompt)), int(model.answers(other))
        change = plain.activation(model, other, module)[-1] - plain.activation(model, prompt, module)[-1]
        total = torch.zeros(3, model.sizes.neurons, dtype=torch.float64)
        for step in range(STEPS):
            t = (step + 0.5) / STEPS
            mixed = (1 - t) * embed(model.encode(prompt)) + t * embed(model.encode(other))
            for m in range(3):
                seen: list[Tensor] = []
                handle = module.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))  # type: ignore[misc]
                logits = model.hf_model(inputs_embeds=mixed.clone().requires_grad_()).logits[0, -1]
                handle.remove()
                [slope] = torch.autograd.grad(landmarks(logits, *answers)[m], seen)
                total[m] += slope[0, -1] / STEPS
        before = landmarks(plain.logits(model, prompt), *answers)
        for neuron in NEURONS:
            want = effects(before, change[neuron] * total[:, neuron])
            assert found[neuron, i] == pytest.approx(want, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("method", list(ATTRIBUTION_METHODS))
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_estimates_do_not_depend_on_the_batch(family: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(family, "sdpa", torch.float64)
    split = pairs(model, 5)
    together = estimates(model, split, method)
    monkeypatch.setattr("arithscope.experiments.common.samples.rows_that_fit", lambda *args, **options: 2)
    assert np.allclose(estimates(model, split, method), together, rtol=1e-4, atol=1e-6)

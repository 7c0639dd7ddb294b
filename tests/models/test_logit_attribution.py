"""Direct logit attribution: the contributions are right, and add up."""

from __future__ import annotations

import pytest
import torch

from arithscope.models.families import FAMILIES
from arithscope.models.hooks import capturing
from arithscope.models.load import load
from arithscope.models.logit_attribution import direct_logit_attribution
from arithscope.models.model import Model
from arithscope.prompts import operand_grid, random_source, sample
from tests.families import FAMILY_AND_ATTENTION, small

families = pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION)


def inputs(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    prompts = sample(operand_grid(model.encoder.operators, 30), 4, random_source(0, "contributions"))
    return model.encode(prompts), torch.tensor([3, 17, 0, 29])


@families
def test_contributions_add_up_to_the_models_own_logit(family: str, attention: str) -> None:
    """Nothing is unexplained except in families with norms after MLP and attention."""
    model = small(family, attention)
    ids, tokens = inputs(model)
    found = direct_logit_attribution(model, ids, tokens)
    own = model.logits(ids).gather(1, tokens[:, None])[:, 0].double()
    cap = getattr(model.hf_model.config, "final_logit_softcapping", None)
    capped = found.logit if cap is None else torch.tanh(found.logit / cap) * cap
    assert capped.tolist() == pytest.approx(own.tolist(), abs=1e-5)
    if FAMILIES[family].post_norms:
        assert float(found.unexplained.abs().max()) > 1e-3
    else:
        assert float(found.unexplained.abs().max()) < 1e-5


@families
@torch.no_grad()
def test_each_neuron_adds_activation_times_value_vector_logit(family: str, attention: str) -> None:
    model = small(family, attention)
    ids, tokens = inputs(model)
    found = direct_logit_attribution(model, ids, tokens)
    layers = range(model.sizes.layers)
    with capturing(model, neurons=layers, keep=lambda x: x[:, -1].clone()) as seen:
        model.logits(ids)
    for layer in layers:
        lens = model.logit_lens(model.value_vectors(layer))[:, tokens].T.double()
        want = seen.neurons[layer].double() * lens / found.scale[:, None]
        assert torch.allclose(found.neurons[:, layer], want, atol=1e-6)
        assert torch.equal(found.activations[:, layer], seen.neurons[layer])


@families
@torch.no_grad()
def test_logit_lens_directions(family: str, attention: str) -> None:
    model = small(family, attention)
    vectors = torch.randn(5, model.sizes.width, generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([0, 7, 30])
    want = model.logit_lens(vectors)[:, tokens]
    assert torch.allclose(vectors @ model.logit_lens_direction(tokens).T, want, atol=1e-5)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-pythia", "tiny-gptj"])
def test_embedded_models(name: str) -> None:
    model = load(name)
    prompts = model.encoder.examples()
    ids, tokens = model.encode(prompts), model.answers(prompts)
    found = direct_logit_attribution(model, ids, tokens)
    own = model.logits(ids).gather(1, tokens[:, None])[:, 0].double()
    assert found.logit.tolist() == pytest.approx(own.tolist(), abs=1e-4)
    assert float(found.unexplained.abs().max()) < 1e-4

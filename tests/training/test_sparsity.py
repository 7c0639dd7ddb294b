"""The penalty on active neurons equals a plain loop over its definition."""

from __future__ import annotations

import pytest
import torch

from arithscope.models.families import FAMILIES
from arithscope.models.untrained import untrained_model
from arithscope.training.batches import Batches, Writer
from arithscope.training.evaluation import answer_logits
from arithscope.training.recipe import DataRecipe, ModelRecipe, Recipe, ScheduleRecipe
from arithscope.training.sparsity import Sparsity
from tests.families import CONFIGS

CPU = torch.device("cpu")
DATA = DataRecipe({"+": 0.5, "-": 0.5}, 0.0, 0, 100, 9, tasks={"count": 0.3})


def recipe(family: str, config: dict[str, object], sparsity: float = 0.0) -> Recipe:
    schedule = ScheduleRecipe(40, 32, 3e-3, 2, 0.0, sparsity=sparsity, early=3.0)
    return Recipe("toy", 5, ModelRecipe(family, config), DATA, schedule)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gptj", "gpt2"])
@pytest.mark.parametrize("early", [1.0, 3.0])
def test_penalty_is_the_mean_cost_of_neurons(family: str, early: float) -> None:
    writer = Writer(DATA)
    model = untrained_model(family, CONFIGS[family], writer.tokenizer, seed=3).eval()  # no dropout
    batch = Batches(recipe(family, CONFIGS[family]), writer, CPU)[0]
    sparsity = Sparsity(model, family, early)
    with sparsity:
        answer_logits(model, batch)
    found = sparsity.penalty(batch)

    layers = model.get_submodule(FAMILIES[family].layers)
    kept: list[torch.Tensor] = []
    downs = [layer.get_submodule(FAMILIES[family].mlp_down) for layer in layers]
    hooks = [down.register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0])) for down in downs]
    with torch.no_grad():
        model(input_ids=batch.tokens)
    for hook in hooks:
        hook.remove()
    costs = []
    for index, activations in enumerate(kept):
        neurons = activations.shape[-1]
        for row in range(len(batch.tokens)):
            words = writer.tokenizer.convert_ids_to_tokens(batch.tokens[row].tolist())
            if "=" not in words:
                continue  # counting is not penalised
            last = words.index("=")
            for position, cost in ((last - 1, 1.0), (last, early ** (len(downs) - 1 - index))):
                for n in range(neurons):
                    costs.append(cost * abs(activations[row, position, n].item()))
    assert found.item() == pytest.approx(sum(costs) / len(costs), rel=1e-4)
    assert found.requires_grad


def test_nothing_is_kept_outside_of_a_training_pass() -> None:
    model = untrained_model("llama", CONFIGS["llama"], Writer(DATA).tokenizer)
    sparsity = Sparsity(model, "llama", 1.0)
    with sparsity:
        pass
    batch = Batches(recipe("llama", CONFIGS["llama"]), Writer(DATA), CPU)[0]
    answer_logits(model, batch)
    with pytest.raises(ValueError, match="shorter"):
        sparsity.penalty(batch)  # there are no activations

"""The same numbers on a GPU as on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from arithscope.experiments.accuracy import measure_accuracy
from arithscope.experiments.probe import Examples, initial_probes, train
from arithscope.models.engine.replay import check_replay, record, replay_neurons
from arithscope.models.engine.sweep import mean_activations
from arithscope.models.hooks import capturing
from arithscope.models.load import LoadOptions, load
from arithscope.pipeline.runner import run_stages
from arithscope.prompts import legal_prompts, operand_grid, random_source, sample
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests.hand_built import MAX_OPERAND

pytestmark = pytest.mark.gpu
NAMES = pytest.mark.parametrize("name", ["tiny-llama", "tiny-pythia", "tiny-gptj"])


@NAMES
@torch.no_grad()
def test_replay(name: str) -> None:
    logits = []
    for device in ("cpu", "cuda"):
        model = load(name, options=LoadOptions(device=device))
        prompts = sample(legal_prompts("+*", 300, 1000), 20, random_source(0, "gpu"))
        with capturing(model, neurons=[3], keep=lambda x: x[:, -1]) as seen:
            model.logits(model.encode(prompts).roll(1, 0))
        tape = record(model, model.encode(prompts), model.positions.final, neurons=[3])
        neurons = torch.arange(model.sizes.neurons)
        logits.append(replay_neurons(tape, 3, neurons, seen.neurons[3].T, lambda base, edited: edited).cpu())
    assert torch.allclose(*logits, atol=2e-3)


@NAMES
def test_means_and_accuracy(name: str) -> None:
    results = []
    for device in ("cpu", "cuda"):
        model = load(name, options=LoadOptions(device=device))
        means = mean_activations(model, operand_grid("+/", 40))
        results.append((means.neurons.cpu(), measure_accuracy(model, legal_prompts("+/", 40, model.limit)).prompts))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-4)
    assert (results[0][1].correct == results[1][1].correct).mean() > 0.999


@NAMES
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_replays_within_its_noise(name: str, dtype: str) -> None:
    model = load(name, options=LoadOptions(device="cuda", dtype=dtype))
    assert check_replay(model, model.encode(model.encoder.examples())) < 0.1


def test_all_stages_find_the_hand_built_circuit(
    saved_adder: Path, adder_results: dict[str, Any], tmp_path: Path
) -> None:
    model = load(str(saved_adder), options=LoadOptions(device="cuda"))
    summary = run_stages(model, Settings(("+",), MAX_OPERAND), tmp_path, None, Silent()).summary
    want = adder_results["circuit"].summary()["+"]
    assert summary["circuit"]["+"]["head_names"] == want["head_names"]
    for measure in ("faithfulness", "accuracy", "p_answer", "random_faithfulness"):
        assert summary["circuit"]["+"][measure]["value"] == pytest.approx(want[measure]["value"], abs=1e-3)
    assert summary["probe"]["all"]["first_answer_layer"] == adder_results["probe"].first_answer_layer
    roles = {key: value for key, value in summary["heads"]["+"].items() if key.startswith("attend_to")}
    assert roles == {k: v for k, v in adder_results["heads"].summary()["+"].items() if k.startswith("attend_to")}


def test_all_stages_in_half_precision(tmp_path: Path) -> None:
    model = load("tiny-llama", options=LoadOptions(device="cuda", dtype="bfloat16"))
    summary = run_stages(model, Settings(("+", "-"), 60), tmp_path, None, Silent()).summary
    for operator in ("+", "-"):
        assert summary["circuit"][operator]["faithfulness"]["value"] > 0.9


def test_probes_trained_in_tf32_are_as_accurate() -> None:
    """On the hand-made task that the answer is a noisy linear function of the state, in every layer."""
    generator = torch.Generator().manual_seed(0)
    answer = torch.randint(0, 50, (2000,), generator=generator)
    directions = torch.randn(3, 50, 64, generator=generator)
    states = directions[:, answer] + 1.5 * torch.randn(3, 2000, 64, generator=generator)
    accuracy = []
    for device in ("cpu", "cuda"):
        examples = Examples(states.to(device), torch.arange(2000, device=device), answer.to(device))
        probes = train(initial_probes(range(3), 64, 50, 0, "last"), examples, 1600, 0, "last", lambda n: None)
        accuracy.append(probes.correct(examples, torch.arange(1600, 2000)).float().mean(1).cpu())
    assert accuracy[0].min() > 0.3
    assert torch.allclose(*accuracy, atol=0.01)

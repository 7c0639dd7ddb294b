"""The same numbers on a GPU as on the CPU."""

from __future__ import annotations

import pytest
import torch

from arithscope.experiments.accuracy import accuracy
from arithscope.progress import Silent
from arithscope.prompts import legal_prompts, random_source, sample, square
from arithscope.subject.edits import capturing
from arithscope.subject.load import LoadOptions, load
from arithscope.subject.replay import check_replay, record, replay_neurons
from arithscope.subject.sweep import mean_activations

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
NAMES = pytest.mark.parametrize("name", ["tiny-llama", "tiny-pythia", "tiny-gptj"])


@NAMES
@torch.no_grad()
def test_replay(name: str) -> None:
    logits = []
    for device in ("cpu", "cuda"):
        subject = load(name, options=LoadOptions(device=device))
        prompts = sample(legal_prompts("+*", 300, 1000), 20, random_source(0, "gpu"))
        with capturing(subject, neurons=[3], keep=lambda x: x[:, -1]) as seen:
            subject.logits(subject.encode(prompts).roll(1, 0))
        tape = record(subject, subject.encode(prompts), subject.positions.last, neurons=[3])
        neurons = torch.arange(subject.sizes.neurons)
        logits.append(replay_neurons(tape, 3, neurons, seen.neurons[3].T, lambda base, edited: edited).cpu())
    assert torch.allclose(*logits, atol=2e-3)


@NAMES
def test_means_and_accuracy(name: str) -> None:
    results = []
    for device in ("cpu", "cuda"):
        subject = load(name, options=LoadOptions(device=device))
        means = mean_activations(subject, square("+/", 40))
        results.append((means.neurons.cpu(), accuracy(subject, "+/", 40, 0, Silent()).prompts))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-4)
    assert (results[0][1].correct == results[1][1].correct).mean() > 0.999


@NAMES
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_replays_within_its_noise(name: str, dtype: str) -> None:
    subject = load(name, options=LoadOptions(device="cuda", dtype=dtype))
    assert check_replay(subject, subject.encode(subject.encoder.examples())) < 0.1

"""The shared-prefix sweep against plain batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from arithscope.prompts import Prompts, random_source, sample, square
from arithscope.subject.edits import capturing, edit, editing
from arithscope.subject.subject import Site, Subject
from arithscope.subject.sweep import mean_activations, sweep, sweep_neurons
from arithscope.subject.twins import passes_at_once, twin
from tests.conftest import torch_threads
from tests.families import FAMILY_AND_ATTENTION, small

families = pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION)


def plain(subject: Subject, prompts: Prompts):  # type: ignore[no-untyped-def]
    layers = range(subject.sizes.layers)
    with torch.no_grad(), capturing(subject, heads=layers, neurons=layers, residual=layers) as seen:
        logits = subject.logits(subject.encode(prompts))
    return logits, seen


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) < tolerance


@families
def test_sweep_equals_plain_batches(family: str, attention: str) -> None:
    subject = small(family, attention)
    prompts = sample(square("+-*/", 12), 150, random_source(1, "sweep"))
    logits, seen = plain(subject, prompts)
    covered = np.zeros(len(prompts), dtype=int)
    for block in sweep(subject, prompts, heads=[0, 2], neurons=[1], residual=[0, 1], rows=37):
        covered[block.rows] += 1
        assert close(block.logits, logits[block.rows])
        for got, want in (
            (block.seen.heads, seen.heads),
            (block.seen.neurons, seen.neurons),
            (block.seen.residual, seen.residual),
        ):
            for layer in got:
                assert close(got[layer], want[layer][block.rows, -1])
    assert (covered == 1).all()


@families
def test_means_equal_the_mean_of_plain_batches(family: str, attention: str) -> None:
    subject = small(family, attention)
    prompts = square("+/", 6)
    _, seen = plain(subject, prompts)
    counted = []
    means = mean_activations(subject, prompts, progress=counted.append, rows=11)
    assert sum(counted) == len(prompts)
    for layer in range(subject.sizes.layers):
        assert close(means.heads[layer], seen.heads[layer].double().mean(0).float())
        assert close(means.neurons[layer], seen.neurons[layer].double().mean(0).float())


@families
def test_neurons_of_passes_that_end_early_equal_plain_batches(family: str, attention: str) -> None:
    subject = small(family, attention)
    prompts = sample(square("+-*/", 12), 60, random_source(1, "sweep"))
    _, seen = plain(subject, prompts)
    chosen = {1: torch.tensor([5, 0]), 0: torch.tensor([7])}
    covered, counted = np.zeros(len(prompts), dtype=int), []
    for rows, found in sweep_neurons(subject, prompts, chosen, counted.append, rows=17):
        covered[rows] += 1
        assert found.keys() == chosen.keys()
        for layer, which in chosen.items():
            assert close(found[layer], seen.neurons[layer][rows, -1][:, which])
    assert (covered == 1).all()
    assert sum(counted) == len(prompts)
    again, _ = plain(subject, prompts)
    assert again.shape == (len(prompts), subject.sizes.vocabulary)  # nothing ends the passes that come after


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many threads in torch, and therefore so many passes at a time."""
    with torch_threads(request.param):
        yield request.param


@pytest.mark.parametrize("threads", [1, 3], indirect=True)
@families
def test_passes_side_by_side_do_not_see_each_other(family: str, attention: str, threads: int) -> None:
    """Every pass watches its own prompts only, whatever runs beside it."""
    subject = small(family, attention)
    assert passes_at_once(subject) == threads
    prompts = square("+-", 8)
    logits, seen = plain(subject, prompts)
    for block in sweep(subject, prompts, heads=[1], neurons=[0, 2], residual=[2], rows=9):
        assert close(block.logits, logits[block.rows])
        assert close(block.seen.heads[1], seen.heads[1][block.rows, -1])
        assert close(block.seen.neurons[2], seen.neurons[2][block.rows, -1])
        assert close(block.seen.residual[2], seen.residual[2][block.rows, -1])
    assert torch.get_num_threads() == threads
    told = torch.zeros_like(logits)
    means = mean_activations(subject, prompts, rows=9, see=lambda rows, some: told.__setitem__(rows, some))
    assert close(told, logits)
    for layer in range(subject.sizes.layers):
        assert close(means.heads[layer], seen.heads[layer].double().mean(0).float())
        assert close(means.neurons[layer], seen.neurons[layer].double().mean(0).float())


def test_a_twin_has_its_own_modules_and_the_same_weights() -> None:
    subject = small("llama", "sdpa")
    other = twin(subject)
    assert not set(map(id, subject.model.modules())) & set(map(id, other.model.modules()))
    assert [id(p) for p in other.model.parameters()] == [id(p) for p in subject.model.parameters()]
    assert other.encoder is subject.encoder
    with capturing(other, neurons=[0]) as seen:
        subject.logits(subject.encode(square("+", 2)))
        assert not seen.neurons
        other.logits(other.encode(square("+", 2)))
        assert seen.neurons


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_what_is_edited_is_edited_in_every_pass(threads: int) -> None:
    """And no longer than it is."""
    subject, prompts = small("llama", "sdpa"), square("+-", 6)
    unedited, _ = plain(subject, prompts)
    silenced = edit(subject, Site.NEURONS, 1, positions=subject.positions.last)
    for change in ([], [silenced], []):
        with editing(subject, change, 1, subject.positions.op2):
            for block in sweep(subject, prompts, rows=9):
                assert close(block.logits, unedited[block.rows]) == (not change)


def test_a_failure_in_a_pass_is_told() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError, match="no"):
        list(sweep(small("llama", "sdpa"), square("+", 4), neurons=[0], keep=broken, rows=5))


@pytest.mark.parametrize("family", ["qwen3", "gptj"])
def test_behind_a_few_shot_prefix(family: str) -> None:
    subject = small(family, prefix="1+2=3=4+5=9=")
    prompts = square("+*", 5)
    logits, seen = plain(subject, prompts)
    for block in sweep(subject, prompts, neurons=[2], rows=10):
        assert close(block.logits, logits[block.rows])
        assert close(block.seen.neurons[2], seen.neurons[2][block.rows, -1])
    assert close(mean_activations(subject, prompts, rows=10).heads[1], seen.heads[1].double().mean(0).float())


def test_means_weigh_prompts_not_beginnings() -> None:
    """Where beginnings are shared unequally, each prompt still counts once."""
    subject = small("llama", "sdpa")
    prompts = Prompts(np.array([3, 3, 3, 8]), np.array([0, 0, 0, 1]), np.array([1, 2, 5, 7]))
    _, seen = plain(subject, prompts)
    assert close(mean_activations(subject, prompts).neurons[0], seen.neurons[0].double().mean(0).float())


def test_batch_size_does_not_matter() -> None:
    subject = small("qwen3", "sdpa")
    prompts = square("-", 8)
    a, b = (mean_activations(subject, prompts, rows=rows) for rows in (None, 5))
    assert close(a.neurons, b.neurons)
    assert close(a.heads, b.heads)

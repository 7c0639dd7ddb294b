"""Sweeps with shared prefixes against plain batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from arithscope.models.engine.full_pass import FullPass
from arithscope.models.engine.interface import REPLAY
from arithscope.models.engine.sweep import mean_activations, num_parallel_passes, replica, sweep, sweep_neurons
from arithscope.models.hooks import capturing, edit, editing
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts, operand_grid, random_source, sample
from tests.conftest import torch_threads
from tests.families import FAMILY_AND_ATTENTION, small

families = pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION)


def plain(model: Model, prompts: Prompts):  # type: ignore[no-untyped-def]
    layers = range(model.sizes.layers)
    with torch.no_grad(), capturing(model, heads=layers, neurons=layers, residual=layers) as seen:
        logits = model.logits(model.encode(prompts))
    return logits, seen


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) < tolerance


@families
def test_sweep_equals_plain_batches(family: str, attention: str) -> None:
    model = small(family, attention)
    prompts = sample(operand_grid("+-*/", 12), 150, random_source(1, "sweep"))
    logits, seen = plain(model, prompts)
    covered = np.zeros(len(prompts), dtype=int)
    for block in sweep(model, prompts, heads=[0, 2], neurons=[1], residual=[0, 1], rows=37):
        covered[block.rows] += 1
        assert close(block.logits, logits[block.rows])
        for got, want in (
            (block.activations.heads, seen.heads),
            (block.activations.neurons, seen.neurons),
            (block.activations.residual, seen.residual),
        ):
            for layer in got:
                assert close(got[layer], want[layer][block.rows, -1])
    assert (covered == 1).all()


@families
def test_both_engines_give_the_same_activations(family: str, attention: str) -> None:
    """Logits, activations at every tail position, chosen neurons, and means."""
    model = small(family, attention)
    prompts = sample(operand_grid("+-*/", 12), 40, random_source(1, "sweep"))
    fast, slow = model.engine, FullPass()
    assert fast is REPLAY
    wanted: dict[str, Any] = {"heads": [0, 2], "neurons": [1], "residual": [0, 1], "keep": torch.clone}
    blocks = [
        {row: (b, i) for b in e.sweep(model, prompts, rows=11, **wanted) for i, row in enumerate(b.rows)}
        for e in (fast, slow)
    ]
    assert blocks[0].keys() == blocks[1].keys() == set(range(len(prompts)))
    for row, (block, i) in blocks[0].items():
        other, j = blocks[1][row]
        assert close(block.logits[i], other.logits[j])
        for site in ("heads", "neurons", "residual"):
            got, want = getattr(block.activations, site), getattr(other.activations, site)
            assert got.keys() == want.keys() == set(wanted[site])
            assert all(close(got[layer][i], want[layer][j]) for layer in got)
            assert all(x.shape[1] == model.encoder.length - model.positions.op2 for x in got.values())
    chosen = {1: torch.tensor([5, 0]), 0: torch.tensor([7])}
    neurons = [torch.empty(2, len(prompts)), torch.empty(2, len(prompts))]
    for engine, activations in zip((fast, slow), neurons, strict=True):
        for rows, seen in engine.sweep_neurons(model, prompts, chosen, rows=13, keep=lambda x: x.T.clone()):
            assert seen[0].shape == (1, len(rows))
            activations[:, rows] = seen[1]
    assert close(*neurons)
    observed = [torch.zeros(len(prompts), 1, model.sizes.vocabulary) for _ in range(2)]
    means = [
        e.mean_activations(model, prompts, rows=17, observe=lambda rows, logits, x=x: x.__setitem__(rows, logits))
        for e, x in zip((fast, slow), observed, strict=True)
    ]
    assert close(*observed)
    assert close(means[0].heads, means[1].heads)
    assert close(means[0].neurons, means[1].neurons)


@families
def test_means_equal_the_mean_of_plain_batches(family: str, attention: str) -> None:
    model = small(family, attention)
    prompts = operand_grid("+/", 6)
    _, seen = plain(model, prompts)
    counted = []
    means = mean_activations(model, prompts, progress=counted.append, rows=11)
    assert sum(counted) == len(prompts)
    for layer in range(model.sizes.layers):
        assert close(means.heads[layer], seen.heads[layer].double().mean(0).float())
        assert close(means.neurons[layer], seen.neurons[layer].double().mean(0).float())


@families
def test_neurons_of_passes_that_end_early_equal_plain_batches(family: str, attention: str) -> None:
    model = small(family, attention)
    prompts = sample(operand_grid("+-*/", 12), 60, random_source(1, "sweep"))
    _, seen = plain(model, prompts)
    chosen = {1: torch.tensor([5, 0]), 0: torch.tensor([7])}
    covered, counted = np.zeros(len(prompts), dtype=int), []
    for rows, found in sweep_neurons(model, prompts, chosen, counted.append, rows=17):
        covered[rows] += 1
        assert found.keys() == chosen.keys()
        for layer, which in chosen.items():
            assert close(found[layer], seen.neurons[layer][rows, -1][:, which])
    assert (covered == 1).all()
    assert sum(counted) == len(prompts)
    again, _ = plain(model, prompts)
    assert again.shape == (len(prompts), model.sizes.vocabulary)  # later passes do not end early


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Number of threads in torch, and therefore of parallel passes."""
    with torch_threads(request.param):
        yield request.param


@pytest.mark.parametrize("threads", [1, 3], indirect=True)
@families
def test_parallel_passes_do_not_see_each_other(family: str, attention: str, threads: int) -> None:
    """Every pass captures its own prompts only."""
    model = small(family, attention)
    assert num_parallel_passes(model) == threads
    prompts = operand_grid("+-", 8)
    logits, seen = plain(model, prompts)
    covered = np.zeros(len(prompts), dtype=int)
    for block in sweep(model, prompts, heads=[1], neurons=[0, 2], residual=[2], rows=9):
        covered[block.rows] += 1
        assert close(block.logits, logits[block.rows])
        assert close(block.activations.heads[1], seen.heads[1][block.rows, -1])
        assert close(block.activations.neurons[2], seen.neurons[2][block.rows, -1])
        assert close(block.activations.residual[2], seen.residual[2][block.rows, -1])
    assert (covered == 1).all()
    assert torch.get_num_threads() == threads
    observed = torch.zeros_like(logits[:, None])
    means = mean_activations(model, prompts, rows=9, observe=lambda rows, logits: observed.__setitem__(rows, logits))
    assert close(observed[:, 0], logits)
    for layer in range(model.sizes.layers):
        assert close(means.heads[layer], seen.heads[layer].double().mean(0).float())
        assert close(means.neurons[layer], seen.neurons[layer].double().mean(0).float())


def test_a_replica_has_its_own_modules_and_the_same_weights() -> None:
    model = small("llama", "sdpa")
    other = replica(model)
    assert not set(map(id, model.hf_model.modules())) & set(map(id, other.hf_model.modules()))
    assert [id(p) for p in other.hf_model.parameters()] == [id(p) for p in model.hf_model.parameters()]
    assert other.encoder is model.encoder
    with capturing(other, neurons=[0]) as seen:
        model.logits(model.encode(operand_grid("+", 2)))
        assert not seen.neurons
        other.logits(other.encode(operand_grid("+", 2)))
        assert seen.neurons


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_edits_apply_to_every_parallel_pass(threads: int) -> None:
    """And only inside the context manager."""
    model, prompts = small("llama", "sdpa"), operand_grid("+-", 6)
    unedited, _ = plain(model, prompts)
    ablated = edit(model, Site.NEURONS, 1, positions=model.positions.final)
    for change in ([], [ablated], []):
        with editing(model, change, 1, model.positions.op2):
            blocks = list(sweep(model, prompts, rows=9))
        assert sum(len(block.rows) for block in blocks) == len(prompts)
        for block in blocks:
            assert close(block.logits, unedited[block.rows]) == (not change)


def test_an_error_in_a_pass_is_raised() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError, match="no"):
        list(sweep(small("llama", "sdpa"), operand_grid("+", 4), neurons=[0], keep=broken, rows=5))


@pytest.mark.parametrize("family", ["qwen3", "gptj"])
def test_with_a_few_shot_prefix(family: str) -> None:
    model = small(family, prefix="1+2=3=4+5=9=")
    prompts = operand_grid("+*", 5)
    logits, seen = plain(model, prompts)
    blocks = list(sweep(model, prompts, neurons=[2], rows=10))
    assert sum(len(block.rows) for block in blocks) == len(prompts)
    for block in blocks:
        assert close(block.logits, logits[block.rows])
        assert close(block.activations.neurons[2], seen.neurons[2][block.rows, -1])
    assert close(mean_activations(model, prompts, rows=10).heads[1], seen.heads[1].double().mean(0).float())


def test_means_weigh_prompts_not_prefixes() -> None:
    """Where prefixes are shared unequally, each prompt still counts once."""
    model = small("llama", "sdpa")
    prompts = Prompts(np.array([3, 3, 3, 8]), np.array([0, 0, 0, 1]), np.array([1, 2, 5, 7]))
    _, seen = plain(model, prompts)
    assert close(mean_activations(model, prompts).neurons[0], seen.neurons[0].double().mean(0).float())


def test_batch_size_does_not_matter() -> None:
    model = small("qwen3", "sdpa")
    prompts = operand_grid("-", 8)
    a, b = (mean_activations(model, prompts, rows=rows) for rows in (None, 5))
    assert close(a.neurons, b.neurons)
    assert close(a.heads, b.heads)

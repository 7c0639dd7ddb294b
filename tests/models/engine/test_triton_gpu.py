"""The GPU kernels against PyTorch and the library."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama

from arithscope.experiments.probe import Examples, initial_probes, train, training_steps
from arithscope.models.engine.fast_ops import triton_kernels, unrounded_linear
from arithscope.models.engine.prefix_attention import attend
from arithscope.models.engine.sweep import mean_activations
from arithscope.models.load import LoadOptions, load

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
PRECISIONS = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
SHAPES = [(32, 8, 1, 4, 128), (32, 8, 4, 1, 128), (28, 4, 3, 2, 128), (8, 8, 2, 5, 64), (6, 2, 4, 3, 80)]


def some(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=CUDA).to(dtype)


def test_kernels_run_on_this_gpu() -> None:
    assert triton_kernels(CUDA) is not None


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("heads", "kv_heads", "tail", "length", "dim"), SHAPES)
def test_attention(
    heads: int, kv_heads: int, tail: int, length: int, dim: int, dtype: torch.dtype, tolerance: float
) -> None:
    prefixes, variants = 5, 3
    rows = prefixes * variants
    query = some(rows, tail, heads, dim, dtype=dtype).transpose(1, 2)
    key, value = (some(rows, tail, kv_heads, dim, dtype=dtype).transpose(1, 2) for _ in range(2))
    keys, values = (some(prefixes, kv_heads, length, dim, dtype=dtype) for _ in range(2))
    want = attend(query, key, value, keys, values, None, None)
    owner = torch.arange(rows, device=CUDA) % prefixes
    found = triton_kernels(CUDA).attend(query, key, value, keys, values, owner, None)
    torch.testing.assert_close(found, want, rtol=tolerance, atol=tolerance)
    shuffled = torch.randperm(rows, device=CUDA)
    found = triton_kernels(CUDA).attend(
        query[shuffled], key[shuffled], value[shuffled], keys, values, owner[shuffled], None
    )
    torch.testing.assert_close(found, want[shuffled], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("family", "share"), [(modeling_llama, 1), (modeling_gpt_neox, 4)])
def test_rotary_embeddings(family: object, share: int, dtype: torch.dtype, tolerance: float) -> None:
    for heads, kv_heads, tail, _, dim in SHAPES:
        query, key = (some(6, tail, n, dim, dtype=dtype).transpose(1, 2) for n in (heads, kv_heads))
        angle = some(1, tail, dim // share)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        want = family.apply_rotary_pos_emb(*(x.float() for x in (query, key, cos, sin)))
        for found, wanted in zip(triton_kernels(CUDA).rotary(query, key, cos, sin), want, strict=True):
            torch.testing.assert_close(found.float(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_gated_product(dtype: torch.dtype, tolerance: float) -> None:
    gate, up = some(1001, 333, dtype=dtype), some(1001, 333, dtype=dtype)
    want = torch.nn.functional.silu(gate.float()) * up.float()
    torch.testing.assert_close(triton_kernels(CUDA).gated_silu(gate, up).float(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("vocabulary", [1, 1009, 4096, 50_257])
def test_sums_over_the_vocabulary(vocabulary: int) -> None:
    from arithscope.stats.triton_sums import sums  # needs Triton

    logits = some(3, 5, vocabulary) * 30
    logits[0, 0] -= 1000
    found = sums(logits).double()
    torch.testing.assert_close(
        found, torch.stack([logits.double().logsumexp(-1), logits.double().mean(-1)]), rtol=1e-5, atol=1e-3
    )


def test_products_are_not_rounded() -> None:
    linear = torch.nn.Linear(512, 300, bias=True, device=CUDA, dtype=torch.bfloat16)
    x = some(7, 512, dtype=torch.bfloat16)
    want = x.double() @ linear.weight.double().T + linear.bias.double()
    torch.testing.assert_close(unrounded_linear(linear, x).double(), want, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(linear(x).double(), want, rtol=1e-5, atol=1e-5)


def test_probes_train_as_on_a_cpu() -> None:
    states, answer = some(3, 500, 96), torch.randint(0, 50, (500,), device=CUDA)
    start, own = initial_probes(range(3), 96, 50, 0, "x"), torch.arange(500, device=CUDA)
    done: list[int] = []
    found = train(start, Examples(states, own, answer), 450, 0, "x", done.append)
    want = train(start, Examples(states.cpu(), own.cpu(), answer.cpu()), 450, 0, "x", done.append)
    torch.testing.assert_close(found.matrix.cpu(), want.matrix, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.bias.cpu(), want.bias, rtol=1e-3, atol=1e-5)
    assert sum(done) == 2 * 3 * training_steps(450)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-pythia", "tiny-gptj"])
def test_sweeps_are_the_same_as_on_a_cpu(name: str) -> None:
    here, there = (load(name, options=LoadOptions(device=device)) for device in ("cuda", "cpu"))
    prompts = here.encoder.examples()
    for found, want in zip(*(vars(mean_activations(s, prompts)).values() for s in (here, there)), strict=True):
        torch.testing.assert_close(found.cpu(), want, rtol=1e-4, atol=1e-5)

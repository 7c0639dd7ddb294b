"""How long the circuit stages take on a large model: random weights in the shape of Llama-3-8B, in bfloat16, one operator.

A random model is never right, so every prompt is counted as correct; times do not depend on that. Samples are the paper's
but for single neurons (8 prompts instead of 50) and probes (4,000 prompts instead of all), and means are taken over operands
up to 100 instead of 300. Needs 40 GB of GPU memory.

    python benchmarks/large.py [--layers 32]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from arithscope.experiments.ablation import Judging
from arithscope.experiments.accuracy import Accuracy, accuracy
from arithscope.experiments.circuit import circuit
from arithscope.experiments.heads import heads
from arithscope.experiments.localize import localize
from arithscope.experiments.means import means
from arithscope.experiments.mlp0 import mlp0
from arithscope.experiments.probe import probe
from arithscope.experiments.samples import SampleSizes
from arithscope.progress import Silent
from arithscope.subject.fresh import number_tokenizer
from arithscope.subject.subject import Identity, Subject

SIZES = SampleSizes(discovery=100, evaluation=100, first_mlp=8, probe=4000)
CIRCUIT_HEADS = 20  # what is left of the circuit for the later stages, as many as the paper's largest
T = TypeVar("T")


def shaped_like_8b(layers: int) -> Subject:
    tokenizer = number_tokenizer(1000)
    config = LlamaConfig(
        hidden_size=4096,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128256,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return Subject(model, tokenizer, Identity("random weights", "", "random", "numbers"))


def timed(name: str, function: Callable[..., T], *arguments: object) -> T:
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    started = time.perf_counter()
    result = function(*arguments)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(f"{name:10} {time.perf_counter() - started:7.1f} s, at most {peak:.0f} GiB", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    subject = shaped_like_8b(parser.parse_args().layers)
    print(f"{subject}\ntorch {torch.__version__}, {torch.cuda.get_device_name()}")
    silent, judging = Silent(), Judging()
    asked = timed("accuracy", accuracy, subject, ("+",), 300, 0, silent)
    asked = Accuracy(asked.prompts.assign(correct=True), asked.table)
    average = timed("means", means, subject, 100, silent)
    where = timed("localize", localize, subject, asked, SIZES, 0, silent)
    found = timed("circuit", circuit, subject, asked, average, where, SIZES, 0, "probability", judging, silent)
    found = replace(found, heads=found.heads.assign(in_circuit=found.heads["rank"] < CIRCUIT_HEADS))
    timed("probe", probe, subject, asked, SIZES, 0, silent)
    timed("heads", heads, subject, asked, average, found, SIZES, 0, judging, silent)
    timed("mlp0", mlp0, subject, asked, average, found, 300, SIZES, 0, "probability", judging, silent)


if __name__ == "__main__":
    main()

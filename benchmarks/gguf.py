"""How long loading a model from a GGUF file takes, measured by what cannot be avoided: reading the file once.

    plain reading    parsing the file once with gguf.GGUFReader and dequantising every tensor once with gguf.dequantize, both as
                     the package gguf does it by itself
    load             arithscope.load: configuration, weights, tokenizer, hashes, and the check that the model replays exactly
    transformers     the configuration, weights and tokenizer as transformers reads them by itself, without hashes or checks

These are seconds of the processor, the least of several repetitions in turn, all in one process and with the file in memory:
what else the machine does counts as little as possible.

    python -m benchmarks.gguf FILE … [--repeats 3] [--record NAME]
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from time import process_time
from typing import Any

import pandas as pd
from gguf import GGUFReader, dequantize
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from arithscope.models.load import LoadOptions, load, silence_libraries
from benchmarks.record import Table, record, record_option

COLUMNS = ["file", "MB", "parse", "dequantise", "plain reading", "load", "load ÷ plain reading", "transformers"]


def measure(file: Path, repeats: int) -> list[Any]:
    """A row of the table: the size of a file, and seconds."""
    repeated = [
        (*plain_reading(file), seconds(load_file, file), seconds(by_transformers, file)) for _ in range(repeats)
    ]
    parse, dequantise, loading, alone = (min(each) for each in zip(*repeated, strict=True))
    plain = parse + dequantise
    times = [parse, dequantise, plain, loading, loading / plain, alone]
    return [file.stem, round(file.stat().st_size / 1e6), *(float(f"{x:.3g}") for x in times)]


def plain_reading(file: Path) -> tuple[float, float]:
    """Seconds of parsing the file, and of dequantising all tensors, each of which is dropped again."""
    start = process_time()
    tensors = GGUFReader(file).tensors
    parsed = process_time()
    for tensor in tensors:
        dequantize(tensor.data, tensor.tensor_type)
    return parsed - start, process_time() - parsed


def load_file(file: Path) -> None:
    load(str(file), options=LoadOptions(device="cpu", dtype="float32"))


def by_transformers(file: Path) -> None:
    location = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(**location)
    with redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off
        AutoModelForCausalLM.from_pretrained(**location, config=config, dtype="float32")
    AutoTokenizer.from_pretrained(**location)


def seconds(call: Callable[[Path], None], file: Path) -> float:
    start = process_time()
    call(file)
    return process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--repeats", type=int, default=3)
    record_option(parser)
    arguments = parser.parse_args()
    silence_libraries()
    table = Table(COLUMNS, [measure(file, arguments.repeats) for file in arguments.files])
    print(pd.DataFrame(table.rows, columns=table.columns).to_string(index=False))
    if arguments.record:
        note = f"seconds of the processor, the least of {arguments.repeats} repetitions in turn; weights in float32"
        record(arguments.record, {"loading": table}, [note])


if __name__ == "__main__":
    main()
